package kernelpath_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	own   = netip.MustParseAddr("192.168.1.10")
	via   = netip.MustParseAddr("192.168.1.11")
	one   = api.PeerKey{1}
	route = plane.Paths{Route: true}
)

// machine knows peer one in its own unencrypted network.
var self = kernelpath.Self{
	Known: true, Leased: true, Addresses: []netip.Addr{own}, OnLink: []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")},
	Unencrypted: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")},
}

func machine() *kernelpath.Machine {
	m := kernelpath.New(0)
	m.SetSelf(self)
	m.Start(start, 1)
	return m
}

func direct(addr netip.Addr) kernelpath.Path {
	return kernelpath.Path{Key: one, Kind: api.PathDirect, NoNAT: true, Addr: netip.AddrPortFrom(addr, 7000)}
}

func terms(serial, ack uint64) peermsg.Terms {
	return peermsg.Terms{Serial: serial, Ack: ack, Paths: route, From: own, At: []netip.Addr{via}}
}

func TestBothEndsMustAcceptAPath(t *testing.T) {
	m := machine()
	eff := m.Report(start, direct(via))
	if len(eff.Terms) != 1 || eff.Terms[0].Paths != route || eff.Terms[0].From != via {
		t.Fatalf("the peer is sent %+v, want terms for a route from %s", eff.Terms, via)
	}
	if st := m.Status(one); st.Path != "" || st.Accepts != route || st.Reason == "" {
		t.Errorf("before the peer's terms: %+v, want the tunnel with a reason", st)
	}
	m.Agreed(start, one, terms(1, eff.Terms[0].Serial))
	if st := m.Status(one); st.Path != api.PathRoute || st.Via != via {
		t.Errorf("after the peer's terms: %+v, want a route by %s", st, via)
	}
	late := terms(0, 0)
	late.Paths = plane.Paths{}
	m.Agreed(start, one, late)
	if st := m.Status(one); st.Path != api.PathRoute {
		t.Errorf("late terms changed the path to %q", st.Path)
	}
}

func TestNoPathOutsideUnencryptedNetworks(t *testing.T) {
	for name, p := range map[string]kernelpath.Path{
		"another network": direct(netip.MustParseAddr("172.16.0.1")),
		"behind a NAT":    {Key: one, Kind: api.PathDirect, Addr: netip.AddrPortFrom(via, 7000)},
		"IPv6":            direct(netip.MustParseAddr("fd00::1")),
		"unknown":         {Key: one, Kind: api.PathNone},
	} {
		m := machine()
		m.Report(start, p)
		m.Agreed(start, one, terms(1, 0))
		if st := m.Status(one); st.Path != "" || st.Accepts != (plane.Paths{}) {
			t.Errorf("%s: %+v, want the tunnel", name, st)
		}
	}
}

func TestWithdrawnPathsAreAcceptedForAWhile(t *testing.T) {
	m := machine()
	m.Report(start, direct(via))
	m.Agreed(start, one, terms(1, 0))
	self := kernelpath.Self{Known: true, Leased: true, Addresses: []netip.Addr{own}}
	m.SetSelf(self)
	m.Refresh(start, one)
	if st := m.Status(one); st.Path != "" || st.Accepts != route {
		t.Errorf("after the network was withdrawn: %+v, want to send by the tunnel and to accept the route", st)
	}
	for at := m.Next(); !at.IsZero() && !at.After(start.Add(3*time.Second)); at = m.Next() {
		m.Expire(at)
	}
	if st := m.Status(one); st.Accepts != (plane.Paths{}) {
		t.Errorf("3 s later: %+v, want to accept nothing", st)
	}
}

func TestAPathWithoutArrivalsIsAvoided(t *testing.T) {
	m := machine()
	m.Report(start, direct(via))
	m.Agreed(start, one, terms(1, 0))
	now := start
	for sent := uint64(1); m.Status(one).Path != ""; sent++ {
		if sent > 20 {
			t.Fatal("the path is kept, though nothing arrives")
		}
		now = now.Add(time.Second)
		for _, o := range m.Counted(now, map[api.PeerKey][2]uint64{one: {100 * sent, 0}}).Orders {
			if p, ok := o.Message.(peermsg.TrafficProbe); ok {
				m.Arrived(now, one, peermsg.Traffic{Serial: p.Serial, Bytes: 40})
			}
		}
	}
	if r := m.Status(one).Reason; !strings.Contains(r, "nothing gets through by route") {
		t.Errorf("the reason is %q", r)
	}
	for at := m.Next(); !at.After(now.Add(30 * time.Second)); at = m.Next() {
		m.Expire(at)
	}
	if st := m.Status(one); st.Path != api.PathRoute {
		t.Errorf("30 s later: %+v, want another attempt", st)
	}
}

func TestARestartKeepsTheAgreement(t *testing.T) {
	m := machine()
	m.Report(start, direct(via))
	m.Agreed(start, one, terms(1, 0))
	next := kernelpath.New(0)
	for _, d := range m.Save() {
		if err := next.Restore(d, one, true); err != nil {
			t.Fatal(err)
		}
	}
	next.Start(start, 2)
	next.Report(start, kernelpath.Path{Key: one, Kind: api.PathNone, Idle: true})
	if st := next.Status(one); st.Path != api.PathRoute || st.Accepts != route {
		t.Errorf("after a report that comes before the node's description: %+v, want the route", st)
	}
	next.SetSelf(self)
	next.Refresh(start, one)
	if st := next.Status(one); st.Path != api.PathRoute || st.Accepts != route {
		t.Errorf("after a restart: %+v, want the route", st)
	}
	eff := next.Remove(start, one)
	if len(eff.Orders) != 1 || next.Status(one).Path != "" || len(next.Save()) != 1 {
		t.Errorf("removing the peer: %+v, want a message that withdraws the route and a deletion", eff)
	}
}
