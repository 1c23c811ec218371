// Package planetest has a plane for tests and simulators. It stores what is applied to it and forwards
// nothing. netmanager/dataplane/dataplanetest tests real planes.
//
//	var p planetest.Twin
//	p.Sync(core.Plane())
//	p.Apply(change)
//	if diff := p.Differs(core.Plane()); diff != "" { … }
package planetest

import (
	"fmt"
	"net/netip"
	"reflect"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Twin is the plane. Call Sync first.
type Twin struct {
	Node      plane.Node
	Endpoints map[netip.Addr]plane.Endpoint
	Services  map[netip.Addr]plane.Service
	Sources   map[netip.Addr]plane.Source
	Allowed   map[plane.Pair]bool
	Peers     map[api.PeerKey]plane.Peer
}

// Sync replaces everything with s.
func (t *Twin) Sync(s plane.State) {
	*t = Twin{
		Endpoints: map[netip.Addr]plane.Endpoint{}, Services: map[netip.Addr]plane.Service{}, Sources: map[netip.Addr]plane.Source{},
		Allowed: map[plane.Pair]bool{}, Peers: map[api.PeerKey]plane.Peer{},
	}
	t.Apply(plane.Change{
		Node: &s.Node, SetEndpoints: s.Endpoints, SetServices: s.Services, SetSources: s.Sources, Allow: s.Allowed, SetPeers: s.Peers,
	})
}

// Apply applies a change: drops first, then sets.
func (t *Twin) Apply(c plane.Change) {
	if c.Node != nil {
		t.Node = *c.Node
	}
	for _, k := range c.DropEndpoints {
		delete(t.Endpoints, k)
	}
	for _, k := range c.DropServices {
		delete(t.Services, k)
	}
	for _, k := range c.DropSources {
		delete(t.Sources, k)
	}
	for _, k := range c.Deny {
		delete(t.Allowed, k)
	}
	for _, k := range c.DropPeers {
		delete(t.Peers, k)
	}
	for _, v := range c.SetEndpoints {
		t.Endpoints[v.Address] = v
	}
	for _, v := range c.SetServices {
		t.Services[v.Address] = v
	}
	for _, v := range c.SetSources {
		t.Sources[v.Address] = v
	}
	for _, v := range c.Allow {
		t.Allowed[v] = true
	}
	for _, v := range c.SetPeers {
		t.Peers[v.Key] = v
	}
}

// Differs describes the differences from s; "" if there are none.
func (t *Twin) Differs(s plane.State) (out string) {
	var should Twin
	should.Sync(s)
	a, b := reflect.ValueOf(*t), reflect.ValueOf(should)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			out += fmt.Sprintf("\n%s: %+v\nwant %+v", a.Type().Field(i).Name, x, y)
		}
	}
	return out
}
