// Package planetest has a plane for tests and simulators. It stores what is applied to it and forwards
// nothing. netmanager/dataplane/dataplanetest tests real planes.
//
//	var p planetest.Model
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

// Model is a plane in memory. Call Sync first.
type Model struct {
	Node      plane.Node
	Endpoints map[netip.Addr]plane.Endpoint
	Services  map[netip.Addr]plane.Service
	Sources   map[netip.Addr]plane.Source
	Allowed   map[plane.Pair]bool
	Peers     map[api.PeerKey]plane.Peer
}

// Sync replaces everything with s.
func (m *Model) Sync(s plane.State) {
	*m = Model{
		Endpoints: map[netip.Addr]plane.Endpoint{}, Services: map[netip.Addr]plane.Service{}, Sources: map[netip.Addr]plane.Source{},
		Allowed: map[plane.Pair]bool{}, Peers: map[api.PeerKey]plane.Peer{},
	}
	m.Apply(plane.Change{
		Node: &s.Node, SetEndpoints: s.Endpoints, SetServices: s.Services, SetSources: s.Sources, Allow: s.Allowed, SetPeers: s.Peers,
	})
}

// Apply applies a change: drops first, then sets.
func (m *Model) Apply(c plane.Change) {
	if c.Node != nil {
		m.Node = *c.Node
	}
	for _, k := range c.DropEndpoints {
		delete(m.Endpoints, k)
	}
	for _, k := range c.DropServices {
		delete(m.Services, k)
	}
	for _, k := range c.DropSources {
		delete(m.Sources, k)
	}
	for _, k := range c.Deny {
		delete(m.Allowed, k)
	}
	for _, k := range c.DropPeers {
		delete(m.Peers, k)
	}
	for _, v := range c.SetEndpoints {
		m.Endpoints[v.Address] = v
	}
	for _, v := range c.SetServices {
		m.Services[v.Address] = v
	}
	for _, v := range c.SetSources {
		m.Sources[v.Address] = v
	}
	for _, v := range c.Allow {
		m.Allowed[v] = true
	}
	for _, v := range c.SetPeers {
		m.Peers[v.Key] = v
	}
}

// Differs describes the differences from s; "" if there are none.
func (m *Model) Differs(s plane.State) (out string) {
	var should Model
	should.Sync(s)
	a, b := reflect.ValueOf(*m), reflect.ValueOf(should)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			out += fmt.Sprintf("\n%s: %+v\nwant %+v", a.Type().Field(i).Name, x, y)
		}
	}
	return out
}
