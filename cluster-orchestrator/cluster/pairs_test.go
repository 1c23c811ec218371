package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/violations"
	"github.com/treeline-edge/treeline/internal/wire"
)

// measures sends a node's measurements of its connections.
func (w *world) measures(id api.NodeID, said ...wire.NetPair) {
	w.t.Helper()
	n := w.nodes[id]
	n.said++
	w.step(NetUp{id, wire.NetUp{Boot: 1, Seq: n.said, Between: said}})
}

// ms returns a measurement of the given round trip in ms.
func ms(local, remote api.ServiceID, node api.NodeID, least float64) wire.NetPair {
	return wire.NetPair{Local: local, Remote: remote, Node: node, Least: time.Duration(least * float64(time.Millisecond)), Connections: 3}
}

// violated returns an instance's violation after the next check.
func (w *world) violated(id api.InstanceID) string {
	w.t.Helper()
	w.pass(violations.CheckEvery)
	return w.record(id).Violated
}

// tiedTo returns a line of nodes with pre on n3, and web with a link to it on n2 or n4, which
// are 10 ms away by coordinates.
func tiedTo(t *testing.T, bound float64) (w *world, on api.NodeID) {
	w = line(t, 6, nil)
	w.wants(of(pre, 0, 1, onNode("n3")))
	w.step(Cordon{"n3", true})
	w.wants(of(web, 0, 2, near("pre.prod", bound)))
	w.beat()
	if on = w.at(0).Node; on != "n2" && on != "n4" {
		t.Fatalf("it is on %q", on)
	}
	return w, on
}

func TestTCPMeasurementsPrecedeCoordinates(t *testing.T) {
	w, on := tiedTo(t, 12)
	epoch := w.at(0).Epoch
	w.measures("n3", ms(pre, web, on, 40))
	if v := w.violated(web.Instance(0)); v != "latency: 40 ms, need 12 ms to pre.prod; measured by 3 connections at 00:00:00 UTC" {
		t.Fatalf("it says %q", v)
	}
	// A short violation moves nothing.
	w.pass(10 * time.Second)
	w.measures("n3", ms(pre, web, on, 11))
	w.pass(time.Minute)
	if v := w.violated(web.Instance(0)); v != "" || w.at(0).Epoch != epoch {
		t.Fatalf("it says %q, and is on %s", v, w.at(0).Node)
	}
	// After a longer violation it moves once, and not back to the node of the measurement,
	// although that is near enough by coordinates.
	w.measures("n3", ms(pre, web, on, 40))
	w.pass(30 * time.Second)
	next := w.at(0).Node
	if next == on || next != "n2" && next != "n4" || w.violated(web.Instance(0)) != "" {
		t.Fatalf("it is on %s, %q", next, w.violated(web.Instance(0)))
	}
	w.measures("n3", ms(pre, web, next, 40))
	w.pass(time.Minute)
	if w.at(0).Node != next || !w.record(web.Instance(0)).NoBetterNode {
		t.Errorf("it goes back to %s, where it was no better", w.at(0).Node)
	}
	w.checkBooks()
}

func TestAMeasuredRoundTripBelowTheEstimateMeetsTheSLA(t *testing.T) {
	w, on := tiedTo(t, 12)
	w.stands(on, 90)
	w.pass(10 * time.Second)
	if v := w.violated(web.Instance(0)); !strings.HasSuffix(v, "; estimated by coordinates") {
		t.Fatalf("it says %q", v)
	}
	for range 4 {
		w.measures("n3", ms(pre, web, on, 5))
		w.pass(time.Minute)
	}
	if v := w.violated(web.Instance(0)); v != "" || w.at(0).Node != on {
		t.Fatalf("it says %q on %s", v, w.at(0).Node)
	}
	// Old measurements do not count. Their age includes the time before the report.
	old := ms(pre, web, on, 5)
	old.Age = wire.MaxNetPairAge - 25*time.Second
	w.measures("n3", old)
	if v := w.violated(web.Instance(0)); v != "" {
		t.Fatalf("it says %q", v)
	}
	w.pass(20 * time.Second)
	if v := w.violated(web.Instance(0)); !strings.HasSuffix(v, "; estimated by coordinates") {
		t.Fatalf("it says %q", v)
	}
	w.pass(wire.MaxNetPairAge)
	if n := w.c.latency.Size().Pairs; n != 0 {
		t.Errorf("%d pairs are left, want none", n)
	}
}

// Amounts change all the time and are shown once a minute. A measurement replaces an estimate at
// once.
func TestKnownMeasurementsAreSentAtOnce(t *testing.T) {
	w := line(t, 4, nil)
	w.wants(of(pre, 0, 1, onNode("n3")), of(web, 0, 1, near("pre.prod", 12), onNode("n2")))
	w.beat()
	w.stands("n2", 90)
	if v := w.violated(web.Instance(0)); !strings.HasSuffix(v, "; estimated by coordinates") {
		t.Fatalf("it says %q", v)
	}
	w.measures("n3", ms(pre, web, "n2", 50))
	if v := w.violated(web.Instance(0)); !strings.HasPrefix(v, "latency: 50 ms,") {
		t.Fatalf("it says %q", v)
	}
	w.measures("n3", ms(pre, web, "n2", 70))
	if v := w.violated(web.Instance(0)); !strings.HasPrefix(v, "latency: 50 ms,") {
		t.Fatalf("it says %q", v)
	}
	w.pass(time.Minute)
	if v := w.violated(web.Instance(0)); !strings.HasPrefix(v, "latency: 70 ms,") {
		t.Fatalf("it says %q", v)
	}
}

// The text does not decide whether a violation was estimated: a label may contain the same
// words.
func TestALabelTextDoesNotMarkAViolationAsEstimated(t *testing.T) {
	w := line(t, 1, nil)
	label := func(note, disk string) { w.relabelled("n0", map[string]string{"note": note, "disk": disk}) }
	const odd = "estimated by coordinates"
	label(odd, "ssd")
	w.wants(of(web, 0, 1, api.Constraint{Type: api.ConstrainLabels, Labels: []string{"note=" + odd, "disk=ssd"}, Rigidness: 3600}))
	w.beat()
	label("none", "ssd")
	first := "labels: note=none, need note=" + odd
	if v := w.violated(web.Instance(0)); v != first {
		t.Fatalf("it says %q", v)
	}
	label(odd, "hdd")
	if v := w.violated(web.Instance(0)); v != first {
		t.Fatalf("at once it says %q", v)
	}
	w.pass(time.Minute)
	if v := w.violated(web.Instance(0)); v != "labels: disk=hdd, need disk=ssd" {
		t.Fatalf("it says %q", v)
	}
}

// A link is to the nearest instance: a measurement of a distant one does not count for another.
func TestAFarInstanceViolatesNoLinkIfAnotherIsNear(t *testing.T) {
	w, on := tiedTo(t, 12)
	w.step(Cordon{"n3", false})
	other := map[api.NodeID]api.NodeID{"n2": "n1", "n4": "n5"}[on]
	w.wants(of(pre, 1, 3, onNode(other)))
	w.beat()
	w.measures("n3", ms(pre, web, on, 40))
	if v := w.violated(web.Instance(0)); v != "" {
		t.Fatalf("it says %q", v)
	}
	w.measures(other, ms(pre, web, on, 30))
	if v := w.violated(web.Instance(0)); !strings.HasPrefix(v, "latency: 30 ms,") {
		t.Fatalf("it says %q", v)
	}
	w.measures(on, ms(web, pre, "n3", 9)) // the other end of the first pair measured a shorter round trip
	if v := w.violated(web.Instance(0)); v != "" {
		t.Fatalf("it says %q", v)
	}
}

// A node measures the services that a latency link leads from or to, while it runs them.
func TestNodesAreAskedAboutLinkedServices(t *testing.T) {
	w := netWorld(t, 2)
	for id, n := range w.nodes {
		n.said = 1
		w.stands(id, 1)
	}
	w.wants(of(pre, 0, 1, onNode("n0")), of(far, 0, 1, onNode("n0")), of(web, 0, 1, onNode("n1")))
	w.run("n0")
	w.run("n1")
	w.pass(15 * time.Second)
	has := map[api.NodeID]api.Digest{}
	asked := func(id api.NodeID) []api.ServiceID {
		t.Helper()
		for range 3 { // it reports the measurements that it was sent
			n := w.nodes[id]
			n.said++
			lease, _ := w.c.Lease(id)
			w.step(NetUp{id, wire.NetUp{Boot: 1, Seq: n.said, Held: w.c.netbook.Held(id), Rev: 1 << 62, Lease: lease.Digest(), Measure: has[id]}})
			for _, m := range n.got {
				if d, ok := m.(wire.NetDown); ok && d.Measure != nil {
					has[id] = 0
					for _, p := range d.Measure {
						has[id] = has[id].Toggle(p.Digest())
					}
					for _, s := range d.Between {
						has[id] = has[id].Toggle(s.Digest())
					}
				}
			}
			n.got = nil
			w.pass(2 * time.Second)
		}
		if peers, _ := w.c.latency.Peers(id); len(peers) == 0 {
			t.Fatalf("node %s measures no other node", id)
		}
		return w.c.latency.Reports(id)
	}
	if got := asked("n0"); len(got) != 0 {
		t.Fatalf("nobody links, and it is asked about %v", got)
	}
	before := has["n0"]
	asked("n1")
	at := func(id api.NodeID) (list []api.ServiceID) { // before the node's next message
		for _, m := range w.nodes[id].got {
			if d, ok := m.(wire.NetDown); ok && d.Measure != nil {
				list = d.Between
			}
		}
		return list
	}
	w.wants(of(web, 0, 2, near("pre.prod", 5), onNode("n1")))
	if got := at("n0"); !slices.Equal(got, []api.ServiceID{pre}) {
		t.Errorf("at once it is asked about %v", got)
	}
	if got := asked("n0"); !slices.Equal(got, []api.ServiceID{pre}) || has["n0"] != before.Toggle(pre.Digest()) {
		t.Errorf("asked about %v", got)
	}
	if got := asked("n1"); !slices.Equal(got, []api.ServiceID{web}) {
		t.Errorf("asked about %v", got)
	}
	w.wants(of(pre, 1, 2, onNode("n1")))
	if got := at("n1"); !slices.Equal(got, []api.ServiceID{pre, web}) {
		t.Errorf("at once it is asked about %v", got)
	}
	w.wants(of(web, 0, 3, onNode("n1"))) // no link any more
	if got := asked("n0"); len(got) != 0 || has["n0"] != before {
		t.Errorf("asked about %v", got)
	}
}

// abroad returns a pair whose other end is on a node of another cluster, named by its key.
func abroad(local, remote api.ServiceID, key byte, least float64) wire.NetPair {
	p := ms(local, remote, api.NodeID(api.PeerKey{key}.String()), least)
	p.Cluster = "bonn"
	return p
}

// tiedAbroad returns a line of nodes with web on n2, at 20 ms, with a link to pre in another
// cluster, whose positions have become places.
func tiedAbroad(t *testing.T, bound float64, places ...float64) (w *world, goesTo func(...float64)) {
	w = line(t, 6, nil)
	a := of(web, 0, 1, near("pre.prod", bound), onNode("n2"))
	goesTo = func(places ...float64) {
		a.Targets = nil
		for _, ms := range places {
			if len(a.Targets) == 0 {
				a.Targets = []api.Target{{Service: pre}}
			}
			a.Targets[0].Positions = append(a.Targets[0].Positions, api.Position{Coord: at(ms)})
		}
		w.wants(a)
	}
	goesTo(20)
	w.beat()
	goesTo(places...)
	return w, goesTo
}

// has sends the root's route with the given nodes of the other cluster.
func (w *world) has(rev uint64, id api.ServiceID, keys ...byte) {
	w.t.Helper()
	r := api.Route{Service: id, Rev: rev}
	for i, k := range keys {
		r.Backends = append(r.Backends, api.Backend{
			Instance: id.Instance(i), Epoch: 1, Address: netip.AddrFrom4([4]byte{10, 17, k, 2}), Peer: api.PeerKey{k}, State: api.BackendUp,
		})
		r.Peers = append(r.Peers, api.Peer{Key: api.PeerKey{k}, Cluster: "bonn", Rev: rev})
	}
	w.step(RootNet{wire.RootNet{Rev: rev, Ranges: wire.DefaultNetRanges(), Shares: []netip.Prefix{share}, Records: wire.Records{Routes: []api.Route{r}}}})
}

func TestTCPMeasurementsAcrossClustersPrecedeCoordinates(t *testing.T) {
	const byTCP, estimated = "; measured by 3 connections at 00:00:00 UTC", "; estimated by coordinates"
	for name, test := range map[string]struct {
		places []float64 // positions of pre in the other cluster
		said   []wire.NetPair
		on     []byte // keys of nodes in the route; nil: no route
		want   string // beginning and end of the violation's text
	}{
		"near by both":                     {places: []float64{30}, said: []wire.NetPair{abroad(web, pre, 1, 5)}},
		"measured far":                     {places: []float64{30}, said: []wire.NetPair{abroad(web, pre, 1, 40)}, want: "latency: 40 ms," + byTCP},
		"measured far where it is":         {places: []float64{30}, said: []wire.NetPair{abroad(web, pre, 1, 40)}, on: []byte{1}, want: "latency: 40 ms," + byTCP},
		"measured far where it was":        {places: []float64{30}, said: []wire.NetPair{abroad(web, pre, 1, 40)}, on: []byte{2}},
		"estimated far":                    {places: []float64{50}, want: "latency: 30 ms," + estimated},
		"measured near":                    {places: []float64{50}, said: []wire.NetPair{abroad(web, pre, 1, 5)}},
		"one of two measured far":          {places: []float64{30, 50}, said: []wire.NetPair{abroad(web, pre, 1, 40)}},
		"one of two far, the other beyond": {places: []float64{50, 60}, said: []wire.NetPair{abroad(web, pre, 1, 33)}, want: "latency: 30 ms," + estimated},
		"both measured far": {
			places: []float64{30, 50}, said: []wire.NetPair{abroad(web, pre, 1, 40), abroad(web, pre, 2, 35)}, want: "latency: 35 ms," + byTCP,
		},
		"one of both is elsewhere now": {places: []float64{30, 50}, said: []wire.NetPair{abroad(web, pre, 1, 40), abroad(web, pre, 2, 35)}, on: []byte{2, 3}},
		"two measured far at one of two places": {
			places: []float64{30, 50}, said: []wire.NetPair{abroad(web, pre, 1, 40), abroad(web, pre, 2, 45)}, on: []byte{1, 2, 3},
		},
		"another service": {places: []float64{30}, said: []wire.NetPair{abroad(web, far, 1, 40)}},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := tiedAbroad(t, 12, test.places...)
			if test.on != nil {
				w.has(1, pre, test.on...)
			}
			w.measures("n2", test.said...)
			begins, ends, _ := strings.Cut(test.want, ";")
			v := w.violated(web.Instance(0))
			if (v == "") != (test.want == "") || !strings.HasPrefix(v, begins) || !strings.HasSuffix(v, ends) {
				t.Errorf("it says %q", v)
			}
		})
	}
}

// An instance in the cluster may be nearer than those in other clusters, or farther away.
func TestTheNearestInstanceCountsInAnyCluster(t *testing.T) {
	w, _ := tiedAbroad(t, 12, 30)
	w.measures("n2", abroad(web, pre, 1, 40))
	w.wants(of(pre, 7, 2, onNode("n3")))
	w.beat()
	if v := w.violated(web.Instance(0)); v != "" {
		t.Fatalf("it says %q", v)
	}
	w.measures("n3", ms(pre, web, "n2", 50))
	if v := w.violated(web.Instance(0)); !strings.HasPrefix(v, "latency: 40 ms,") {
		t.Fatalf("it says %q", v)
	}
	w.measures("n2", abroad(web, pre, 1, 8))
	if v := w.violated(web.Instance(0)); v != "" {
		t.Fatalf("it says %q", v)
	}
}

// A measurement of another cluster counts while it is fresh and the service is there.
func TestMeasurementsAcrossClustersExpire(t *testing.T) {
	w, goesTo := tiedAbroad(t, 12, 50)
	w.measures("n2", abroad(web, pre, 1, 5))
	if v := w.violated(web.Instance(0)); v != "" {
		t.Fatalf("it says %q", v)
	}
	w.pass(wire.MaxNetPairAge)
	if v := w.violated(web.Instance(0)); !strings.HasSuffix(v, "; estimated by coordinates") {
		t.Fatalf("it says %q", v)
	}
	w.pass(wire.MaxNetPairAge)
	if n := w.c.latency.Size().Pairs; n != 0 {
		t.Errorf("%d pairs are left, want none", n)
	}
	w.wants(of(pre, 0, 2, onNode("n3")))
	w.beat()
	w.stands("n3", 60)
	w.measures("n2", abroad(web, pre, 1, 5))
	if v := w.violated(web.Instance(0)); v != "" {
		t.Fatalf("it says %q", v)
	}
	goesTo() // the service now runs in this cluster only
	if v := w.violated(web.Instance(0)); !strings.HasSuffix(v, "; estimated by coordinates") {
		t.Errorf("it says %q", v)
	}
}

// The latencies of an application are those of its links: estimated, measured, or on the same node.
func TestLatenciesOfLinksTellHowTheyAreKnown(t *testing.T) {
	w, on := tiedTo(t, 12)
	one := func() api.LinkStatus {
		t.Helper()
		all := w.c.Latencies(web.App())
		if len(all) != 1 || all[0].Instance != web.Instance(0) || all[0].To != "pre.prod" || all[0].Limit != 12*time.Millisecond {
			t.Fatalf("the latencies are %+v, want one of %s to pre.prod with 12 ms at most", all, web.Instance(0))
		}
		return all[0]
	}
	if l := one(); l.By != api.ByCoordinates || (l.RTT-10*time.Millisecond).Abs() > time.Millisecond {
		t.Errorf("without a measurement it is %s by %s, want about 10 ms by coordinates", l.RTT, l.By)
	}
	w.measures("n3", ms(pre, web, on, 7))
	if l := one(); l.By != api.ByConnections || l.RTT != 7*time.Millisecond {
		t.Errorf("after a measurement it is %s by %s, want 7 ms by connections", l.RTT, l.By)
	}
	if all := w.c.Latencies("acme/other.prod"); len(all) != 0 {
		t.Errorf("another application has the latencies %+v, want none", all)
	}
	linked, near := near("pre.prod", 12), line(t, 1, nil)
	near.wants(of(pre, 0, 1), of(web, 0, 2, linked))
	near.beat()
	if all := near.c.Latencies(web.App()); len(all) != 1 || all[0].By != api.ByNode || all[0].RTT != 0 {
		t.Errorf("on one node the latencies are %+v, want 0 by node", all)
	}
}
