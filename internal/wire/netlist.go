package wire

import (
	"encoding/json"
	"reflect"

	"github.com/treeline-edge/treeline/api"
)

// RouteList are routes that travel together. Most of them lead to the same few
// nodes, and a node's record is long for its certificates: in JSON each is written
// where it comes first, and after that its key alone, marked as "again". A list
// with all of them in full is read just as well.
type RouteList []api.Route

// SourceList are sources that travel together, as RouteList has it.
type SourceList []Source

// listedPeer is a Peer as a list has it.
type listedPeer struct {
	api.Peer
	Again bool `json:"again,omitempty"` // as the last one with this key
}

// samePeer is how a listedPeer is written that is the same again.
type samePeer struct {
	Key   api.PeerKey `json:"key"`
	Again bool        `json:"again"`
}

type listedRoute struct {
	api.Route
	Peers []any `json:"peers,omitempty"`
}

type readRoute struct {
	api.Route
	Peers []listedPeer `json:"peers,omitempty"`
}

type listedSource struct {
	Source
	Peer any `json:"peer"`
}

type readSource struct {
	Source
	Peer listedPeer `json:"peer"`
}

// peersOnce knows the peers of a list so far, by key.
type peersOnce map[api.PeerKey]api.Peer

func (o peersOnce) write(p api.Peer) any {
	if last, ok := o[p.Key]; ok && reflect.DeepEqual(last, p) {
		return samePeer{p.Key, true}
	}
	o[p.Key] = p
	return p
}

// read gives what the peer is; one that comes again and was not there is its key.
func (o peersOnce) read(p listedPeer) api.Peer {
	if p.Again {
		if last, ok := o[p.Key]; ok {
			return last
		}
		return api.Peer{Key: p.Key}
	}
	o[p.Key] = p.Peer
	return p.Peer
}

// MarshalJSON writes each peer once.
func (l RouteList) MarshalJSON() ([]byte, error) {
	once, out := peersOnce{}, make([]listedRoute, len(l))
	for i, r := range l {
		out[i].Route = r
		for _, p := range r.Peers {
			out[i].Peers = append(out[i].Peers, once.write(p))
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes. Peers that are the same share what
// they refer to.
func (l *RouteList) UnmarshalJSON(b []byte) error {
	var in []readRoute
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	once := peersOnce{}
	if *l = nil; len(in) > 0 {
		*l = make(RouteList, len(in))
	}
	for i, r := range in {
		for _, p := range r.Peers {
			r.Route.Peers = append(r.Route.Peers, once.read(p))
		}
		(*l)[i] = r.Route
	}
	return nil
}

// MarshalJSON writes each peer once.
func (l SourceList) MarshalJSON() ([]byte, error) {
	once, out := peersOnce{}, make([]listedSource, len(l))
	for i, s := range l {
		out[i] = listedSource{s, once.write(s.Peer)}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *SourceList) UnmarshalJSON(b []byte) error {
	var in []readSource
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	once := peersOnce{}
	if *l = nil; len(in) > 0 {
		*l = make(SourceList, len(in))
	}
	for i, s := range in {
		s.Source.Peer = once.read(s.Peer)
		(*l)[i] = s.Source
	}
	return nil
}
