package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// asked is a node whose cluster asks about its client, and that knows of a service web
// on n1 and n2.
func asked(t *testing.T) (w *world, client netip.Addr) {
	w, client = ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(api.NetDown{Routes: []api.Route{route("web", 1, 1, 1, 2)}})
	w.answer(api.NetDown{Measure: []api.Peer{}, Between: []api.ServiceID{svc("client")}})
	w.pass(time.Second)
	return w, client
}

// looks has TCP looked at, fifteen seconds later, and says what the cluster is told.
func (w *world) looks(flows ...Flow) (told []api.NetPair) {
	w.t.Helper()
	hear := func(ups []api.NetUp) {
		for _, up := range ups {
			told = append(told, up.Between...)
			w.answer(api.NetDown{})
		}
	}
	for range 30 {
		hear(w.pass(500 * time.Millisecond))
	}
	hear(said(w.step(Sampled{flows})))
	return told
}

func flow(local, remote netip.Addr, least time.Duration) Flow {
	return Flow{Local: local, Remote: remote, Sockets: 2, RTT: 5 * least, Least: least}
}

func between(node string, least time.Duration) api.NetPair {
	return api.NetPair{Local: svc("client"), Remote: svc("web"), Node: api.NodeID(node), Least: least, Connections: 2}
}

func TestTheClusterIsToldWhatItAsksAbout(t *testing.T) {
	w, client := asked(t)
	const ms = time.Millisecond
	one, two := instanceAt(1, 1), instanceAt(2, 1)
	if up := said(w.answer(api.NetDown{WantHeld: true})); len(up) != 1 || up[0].Measure != svc("client").Digest() {
		t.Fatalf("it says that it has %+v", up)
	}
	foreign := route("abroad", 1, 3, 3)
	foreign.Peers[0].Cluster = "c9" // whose nodes may be called as ours are
	other := route("web", 1, 4, 4)
	other.Service = "acme/blog.prod.web.eu"
	w.answer(api.NetDown{Routes: []api.Route{foreign, other}})
	w.step(attachOf("server", 0, 1))
	server, _ := w.c.Attached(attachOf("server", 0, 1).Key)
	got := w.looks(flow(client, one, 3*ms), flow(client, one, 2*ms), flow(client, two, 9*ms), flow(client, server.Address, ms/50),
		flow(client, vip(1), 7*ms),           // whose instance it is only the other end knows
		flow(client, instanceAt(3, 3), 7*ms), // in another cluster
		flow(client, instanceAt(4, 4), 7*ms), // of another application
		flow(server.Address, one, 7*ms),      // not asked about
		flow(client, client, 7*ms))           // none
	first := between("n1", 2*ms)
	first.Connections = 4
	here := between("n0", ms/50)
	here.Remote = svc("server")
	if want := []api.NetPair{here, first, between("n2", 9*ms)}; !slices.Equal(got, want) {
		t.Fatalf("it is told %+v,\nwant %+v", got, want)
	}
	w.checkBooks()

	// What is no longer asked about is forgotten.
	w.answer(api.NetDown{Measure: []api.Peer{}})
	if got := w.looks(flow(client, one, 90*ms)); len(got) != 0 || len(w.c.gaps) != 0 {
		t.Errorf("it is told %+v", got)
	}
}

func TestTheClusterIsToldNewsAlone(t *testing.T) {
	w, client := asked(t)
	const ms = time.Millisecond
	one := instanceAt(1, 1)
	tells := func(least, want time.Duration) {
		t.Helper()
		got := w.looks(flow(client, one, least))
		for i := range got { // what waited is older
			if got[i].Age > 15*time.Second {
				t.Errorf("%+v", got[i])
			}
			got[i].Age = 0
		}
		if len(got) > 1 || len(got) == 1 != (want > 0) || want > 0 && got[0] != between("n1", want) {
			t.Fatalf("of %s it is told %+v, want %s", least, got, want)
		}
	}
	tells(10*ms, 10*ms)
	tells(11*ms, 0)
	tells(90*ms, 0) // a connection that has only begun
	tells(10*ms, 0)
	tells(90*ms, 0)
	tells(90*ms, 90*ms)
	tells(10*ms, 0) // too soon
	tells(10*ms, 10*ms)
	quiet := 0
	for range 40 { // ten minutes
		w.step(Miss{Local: client, Remote: vip(1)}) // it is used
		if got := w.looks(flow(client, one, 10*ms)); len(got) == 0 {
			quiet++
		}
	}
	if quiet != 36 {
		t.Errorf("said again %d times in ten minutes", 40-quiet)
	}
	// It goes along with what is said anyway, and all of it after a loss.
	tells(30*ms, 0)
	tells(30*ms, 30*ms)
	for range 2 {
		if up := said(w.step(Sampled{[]Flow{flow(client, one, 60*ms)}})); len(up) != 0 {
			t.Errorf("too soon it is told %+v", up)
		}
	}
	if up := said(w.answer(api.NetDown{WantHeld: true})); len(up) != 1 || len(up[0].Between) != 1 {
		t.Errorf("it is told %+v", up)
	}
	if up := said(w.answer(api.NetDown{WantWhole: true})); len(up) != 1 || len(up[0].Between) != 1 {
		t.Errorf("asked for all it is told %+v", up)
	}
	// What nobody tells of is forgotten.
	for range 25 {
		w.looks()
	}
	if n := len(w.c.gaps[svc("client")]); n != 0 {
		t.Errorf("%d are left", n)
	}
}

func TestWhatIsToldIsBounded(t *testing.T) {
	w, client := asked(t)
	var flows []Flow
	for i := range maxTold + 10 {
		a := instanceAt(1, byte(2+i%60))
		if i >= 60 {
			a = instanceAt(2, byte(2+i%60))
		}
		w.c.owners[a] = svc(fmt.Sprintf("s%d", i))
		flows = append(flows, flow(client, a, time.Millisecond))
	}
	flows = append(flows, flow(client, instanceAt(1, 1), api.NetPairRTT+1)) // cannot be
	for range 3 {
		if got := w.looks(flows...); len(got) > maxTold {
			t.Errorf("%d pairs at once", len(got))
		}
	}
	if n := len(w.c.gaps[svc("client")]); n != maxTold {
		t.Errorf("%d pairs", n)
	}
	var list []api.ServiceID
	for i := range 2 * maxGaps {
		list = append(list, svc(fmt.Sprintf("s%d", i)))
	}
	if w.answer(api.NetDown{Measure: []api.Peer{}, Between: list}); len(w.c.gaps) != maxGaps {
		t.Errorf("%d services", len(w.c.gaps))
	}
}
