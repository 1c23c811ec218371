package overlay

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// asked returns a world whose cluster requests the round trips of the client, with a route to web on n1
// and n2.
func asked(t *testing.T) (w *world, client netip.Addr) {
	w, client = ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1, 2)}}})
	w.answer(wire.NetDown{Measure: []api.Peer{}, Between: []api.ServiceID{svc("client")}})
	w.pass(time.Second)
	return w, client
}

// looks samples TCP after fifteen seconds, and returns what the cluster receives.
func (w *world) sampled(flows ...Flow) (reported []wire.NetPair) {
	w.t.Helper()
	hear := func(ups []wire.NetUp) {
		for _, up := range ups {
			reported = append(reported, up.Between...)
			w.answer(wire.NetDown{})
		}
	}
	for range 30 {
		hear(w.pass(500 * time.Millisecond))
	}
	hear(messages(w.step(Sampled{flows})))
	return reported
}

func flow(local, remote netip.Addr, least time.Duration) Flow {
	return Flow{Local: local, Remote: remote, Sockets: 2, RTT: 5 * least, Least: least}
}

func between(node string, least time.Duration) wire.NetPair {
	return wire.NetPair{Local: svc("client"), Remote: svc("web"), Node: api.NodeID(node), Least: least, Connections: 2}
}

func TestRequestedPairsAreReported(t *testing.T) {
	w, client := asked(t)
	const ms = time.Millisecond
	one, two := instanceAt(1, 1), instanceAt(2, 1)
	if up := messages(w.answer(wire.NetDown{RequestHeld: true})); len(up) != 1 || up[0].Measure != svc("client").Digest() {
		t.Fatalf("it says that it has %+v", up)
	}
	foreign := route("abroad", 1, 3, 3)
	foreign.Peers[0].Cluster = "c9" // whose nodes may be called like those of this cluster
	other := route("web", 1, 4, 4)
	other.Service = "acme/blog.prod.web.eu"
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{foreign, other}}})
	w.step(attachOf("server", 0, 1))
	server, _ := w.c.View().Attached(attachOf("server", 0, 1).Key)
	got := w.sampled(flow(client, one, 3*ms), flow(client, one, 2*ms), flow(client, two, 9*ms), flow(client, server.Address, ms/50),
		flow(client, vip(1), 7*ms),           // only the other end knows the instance
		flow(client, instanceAt(3, 3), 7*ms), // in another cluster
		flow(client, instanceAt(4, 4), 7*ms), // of another application
		flow(server.Address, one, 7*ms),      // not requested
		flow(client, client, 7*ms))           // none
	first := between("n1", 2*ms)
	first.Connections = 4
	here := between("n0", ms/50)
	here.Remote = svc("server")
	abroad := farPair(key(3), 7*ms)
	if want := []wire.NetPair{abroad, here, first, between("n2", 9*ms)}; !slices.Equal(got, want) {
		t.Fatalf("it is reported %+v,\nwant %+v", got, want)
	}
	w.checkIndexes()

	// Services that are not requested any more are removed.
	w.answer(wire.NetDown{Measure: []api.Peer{}})
	if got := w.sampled(flow(client, one, 90*ms)); len(got) != 0 {
		t.Errorf("it is reported %+v", got)
	}
}

// away returns a pair whose other end is in another cluster.
func farPair(k api.PeerKey, least time.Duration) wire.NetPair {
	p := between(k.String(), least)
	p.Remote, p.Cluster = svc("abroad"), "c9"
	return p
}

// Nobody reports to which instance a semantic address led in another cluster. It is reported only if
// there is one possible node.
func TestARoundTripThroughASemanticAddressCountsForItsOnlyNode(t *testing.T) {
	const ms = time.Millisecond
	one, two := netip.MustParseAddr("10.30.3.10"), netip.MustParseAddr("10.30.3.11") // of the service's instances
	closest := netip.MustParseAddr("10.30.3.2")
	for name, test := range map[string]struct {
		nodes []byte // of the instances; from 3 on in another cluster
		local bool   // and one on this node
		to    netip.Addr
		want  byte // node; 0: not reported
	}{
		"one instance":            {nodes: []byte{3}, to: vip(3), want: 3},
		"the closest":             {nodes: []byte{3}, to: closest, want: 3},
		"two on one node":         {nodes: []byte{3, 3}, to: vip(3), want: 3},
		"two on two":              {nodes: []byte{3, 4}, to: vip(3)},
		"the first of them":       {nodes: []byte{3, 4}, to: one, want: 3},
		"the second":              {nodes: []byte{3, 4}, to: two, want: 4},
		"one in the cluster":      {nodes: []byte{3, 2}, to: vip(3)},
		"the other one":           {nodes: []byte{3, 2}, to: one, want: 3},
		"the one there":           {nodes: []byte{3, 2}, to: two},
		"one in the cluster only": {nodes: []byte{2}, to: vip(3)},
		"one here as well":        {nodes: []byte{3}, local: true, to: vip(3)},
		"none":                    {to: vip(3)},
		"none of that number":     {nodes: []byte{3}, to: two},
	} {
		t.Run(name, func(t *testing.T) {
			w, client := asked(t)
			r := route("abroad", 1, 3, test.nodes...)
			r.Addresses.Closest, r.Addresses.Instances = closest, map[int]netip.Addr{0: one, 1: two}
			for i := range r.Peers {
				if r.Peers[i].Key != key(2) {
					r.Peers[i].Cluster, r.Peers[i].Node = "c9", ""
				}
			}
			w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
			if test.local {
				w.step(attachOf("abroad", 9, 1))
			}
			var want []wire.NetPair
			if test.want != 0 {
				want = append(want, farPair(key(test.want), 7*ms))
			}
			if got := w.sampled(flow(client, test.to, 7*ms)); !slices.Equal(got, want) {
				t.Errorf("it is reported %+v, want %+v", got, want)
			}
			w.checkIndexes()
		})
	}
}

func TestOnlyChangedPairsAreReported(t *testing.T) {
	w, client := asked(t)
	const ms = time.Millisecond
	one := instanceAt(1, 1)
	tells := func(least, want time.Duration) {
		t.Helper()
		got := w.sampled(flow(client, one, least))
		for i := range got { // waiting reports are older
			if got[i].Age > 15*time.Second {
				t.Errorf("%+v", got[i])
			}
			got[i].Age = 0
		}
		if len(got) > 1 || len(got) == 1 != (want > 0) || want > 0 && got[0] != between("n1", want) {
			t.Fatalf("of %s it is reported %+v, want %s", least, got, want)
		}
	}
	tells(10*ms, 10*ms)
	tells(11*ms, 0)
	tells(90*ms, 0) // a new connection
	tells(10*ms, 0)
	tells(90*ms, 0)
	tells(90*ms, 90*ms)
	tells(10*ms, 0) // too soon
	tells(10*ms, 10*ms)
	quiet := 0
	for range 40 { // ten minutes
		w.step(Miss{Local: client, Remote: vip(1)}) // it is used
		if got := w.sampled(flow(client, one, 10*ms)); len(got) == 0 {
			quiet++
		}
	}
	if quiet != 36 {
		t.Errorf("said again %d times in ten minutes", 40-quiet)
	}
	// Round trips are added to messages that are sent anyway, and all of them after a loss.
	tells(30*ms, 0)
	tells(30*ms, 30*ms)
	for range 2 {
		if up := messages(w.step(Sampled{[]Flow{flow(client, one, 60*ms)}})); len(up) != 0 {
			t.Errorf("reported %+v before the report was due, want nothing", up)
		}
	}
	if up := messages(w.answer(wire.NetDown{RequestHeld: true})); len(up) != 1 || len(up[0].Between) != 1 {
		t.Errorf("it is reported %+v", up)
	}
	if up := messages(w.answer(wire.NetDown{RequestWhole: true})); len(up) != 1 || len(up[0].Between) != 1 {
		t.Errorf("asked for all it is reported %+v", up)
	}
}
