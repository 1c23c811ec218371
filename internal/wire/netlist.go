package wire

import (
	"encoding/json"
	"reflect"

	"github.com/treeline-edge/treeline/api"
)

// RouteList has the routes of one message. Most routes have the same few peers, whose records are
// long because of their certificates. In JSON the first occurrence of a peer is complete; later
// ones are its key with "again". Lists in which all peers are complete are read too.
type RouteList []api.Route

// SourceList is RouteList for sources.
type SourceList []Source

// listedPeer is a Peer in a list that is decoded.
type listedPeer struct {
	api.Peer
	Again bool `json:"again,omitempty"` // same as the last peer with this key
}

// samePeer is the encoded form of a repeated peer.
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

// peersOnce has the peers of the list so far, by key.
type peersOnce map[api.PeerKey]api.Peer

func (o peersOnce) write(p api.Peer) any {
	if last, ok := o[p.Key]; ok && reflect.DeepEqual(last, p) {
		return samePeer{p.Key, true}
	}
	o[p.Key] = p
	return p
}

// read returns the peer. A peer that is marked as "again" without an earlier occurrence has only
// its key.
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

// UnmarshalJSON reads what MarshalJSON writes. Equal peers share memory.
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
