package netbook

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

const web = api.ServiceID("acme/shop.prod.web.prod")

// world calls a netbook like the root's core. It is also the View: tests set which clusters host
// instances.
type world struct {
	t        testing.TB
	cfg      Config
	book     *Machine
	now      Now
	services map[api.ServiceID]Service
	hosts    map[api.ServiceID]map[api.ClusterID]int
	stored   []byte
	shareDoc map[api.ClusterID][]netip.Prefix
	events   []api.Event
	last     []wire.Envelope
}

func newWorld(t testing.TB, clusters ...api.ClusterID) *world {
	t.Helper()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := &world{
		t: t, cfg: Config{ClusterPercent: 25, Wait: 30 * time.Second}, now: Now{Mono: at, Wall: at},
		services: map[api.ServiceID]Service{}, hosts: map[api.ServiceID]map[api.ClusterID]int{}, shareDoc: map[api.ClusterID][]netip.Prefix{},
	}
	w.book = New(w.cfg)
	w.start()
	for _, id := range clusters {
		w.join(id)
	}
	return w
}

func (w *world) Service(id api.ServiceID) (Service, bool)             { s, ok := w.services[id]; return s, ok }
func (w *world) Owner(netip.Addr) api.ServiceID                       { return "" }
func (w *world) Hosts(id api.ServiceID) []api.ClusterID               { return step.Keys(w.hosts[id]) }
func (w *world) Hosting(cl api.ClusterID, id api.ServiceID) bool      { return w.hosts[id][cl] > 0 }
func (w *world) Instances(cl api.ClusterID, id api.ServiceID) (n int) { return w.hosts[id][cl] }

func (w *world) start() {
	w.t.Helper()
	if err := w.book.Init(); err != nil {
		w.t.Fatal(err)
	}
	w.book.Start(w.now, step.Keys(w.services))
	w.stored, _ = json.Marshal(w.book.Record())
}

func (w *world) take(e Effects) {
	if e.Save {
		w.stored, _ = json.Marshal(w.book.Record())
	}
	for _, id := range e.Changed {
		w.shareDoc[id] = slices.Clone(w.book.Shares(id))
	}
	w.events, w.last = append(w.events, e.Events...), append(w.last, e.Send...)
}

func (w *world) join(id api.ClusterID) {
	w.book.AddCluster(id, slices.Clone(w.shareDoc[id]))
	w.take(w.book.SetLiveness(w.now, w, id, true, false))
}

func (w *world) remove(id api.ClusterID) {
	w.take(w.book.RemoveCluster(w.now, w, id))
	delete(w.shareDoc, id)
	w.end()
}

// restart starts a netbook from the stored document. No cluster has reported.
func (w *world) restart() {
	w.t.Helper()
	known := step.Keys(w.book.clusters)
	w.book = New(w.cfg)
	if err := w.book.Restore(w.stored); err != nil {
		w.t.Fatal(err)
	}
	for _, id := range known {
		w.book.AddCluster(id, slices.Clone(w.shareDoc[id]))
	}
	w.start()
}

// host sets how many instances of a service each cluster runs.
func (w *world) host(id api.ServiceID, on map[api.ClusterID]int) {
	w.services[id] = Service{Spec: &api.Microservice{Virtualization: "container"}}
	w.hosts[id] = on
	w.take(w.book.SetServices(w.now, w, nil, []api.ServiceID{id}))
	w.book.SetRehosted(id)
	w.end()
}

// spread returns a world in which the clusters a and b have one instance of web each.
func spread(t testing.TB) *world {
	t.Helper()
	w := newWorld(t, "a", "b")
	w.host(web, map[api.ClusterID]int{"a": 1, "b": 1})
	return w
}

// inB returns the instance in cluster b of a spread world.
func (w *world) inB() api.InstanceID { return web.Instance(1) }

func (w *world) end() {
	if w.book.EndWait(w.now.Mono) {
		w.take(w.book.GrantAll(w.now))
	}
	w.take(w.book.Send(w.now, w))
}

func (w *world) pass(d time.Duration) {
	w.now.Mono, w.now.Wall = w.now.Mono.Add(d), w.now.Wall.Add(d)
	w.end()
}

// net makes a cluster report, and returns the messages to it.
func (w *world) net(id api.ClusterID, n wire.ClusterNet) []wire.RootNet {
	w.t.Helper()
	return w.netTo(id, id, n)
}

// netTo is net, but returns the messages to another cluster.
func (w *world) netTo(other, id api.ClusterID, n wire.ClusterNet) (out []wire.RootNet) {
	w.t.Helper()
	w.last = nil
	w.book.SetNetworked(id)
	if cl := w.book.clusters[id]; !cl.heard {
		w.take(w.book.SetLiveness(w.now, w, id, true, false))
	}
	w.take(w.book.Report(w.now, w, id, &n))
	w.end()
	for _, e := range w.last {
		if e.To == other.Addr() {
			out = append(out, e.Msg.(wire.RootNet))
		}
	}
	return out
}

func (w *world) shares(id api.ClusterID) []netip.Prefix { return w.book.Shares(id) }
