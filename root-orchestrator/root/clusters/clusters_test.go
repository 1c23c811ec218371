package clusters

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newMachine(t *testing.T, info api.ClusterInfo) *Machine {
	t.Helper()
	m := New(Config{Dead: 30 * time.Second})
	m.Begin(epoch, epoch)
	if _, err := m.Join(info, nil); err != nil {
		t.Fatal(err)
	}
	return m
}

const web = api.ServiceID("acme/shop.prod.web.prod")

// checkSums compares the sums of a cluster with a computation from scratch.
func checkSums(t *testing.T, m *Machine, id api.ClusterID) {
	t.Helper()
	cl := m.clusters[id]
	var digest, known api.Digest
	for _, a := range cl.desired.assigned {
		digest = digest.Toggle(a.digest)
	}
	for _, d := range cl.observed {
		known = known.Toggle(d)
	}
	if cl.desired.digest != digest || cl.known != known {
		t.Fatalf("digests are %x of the desired set and %x of what is observed, want %x and %x", cl.desired.digest, cl.known, digest, known)
	}
	var sum api.Resources
	resources, devices := map[string]api.Resources{}, map[string]map[string]int{}
	for _, r := range cl.reservations.pending {
		sum = sum.Plus(r.needs)
		resources[r.runtime] = resources[r.runtime].Plus(r.needs)
		if devices[r.runtime] == nil {
			devices[r.runtime] = map[string]int{}
		}
		for _, d := range r.devices {
			devices[r.runtime][d.Name] += d.Count
		}
	}
	if cl.reservations.sum != sum {
		t.Fatalf("%v are reserved, want %v", cl.reservations.sum, sum)
	}
	for k, r := range cl.reservations.byRuntime {
		if r.Resources != resources[k] || !maps.Equal(r.devices, devices[k]) {
			t.Fatalf("%v are reserved for %s, want %v and %v", r, k, resources[k], devices[k])
		}
	}
}

func TestSumsAreKept(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 5))
		m := newMachine(t, api.ClusterInfo{ID: "a"})
		gen, seq := api.Generation(1), uint64(0)
		for range 200 {
			in := web.Instance(rng.IntN(10))
			gen++
			if !m.clusters["a"].desired.touched {
				m.Touch("a", func() api.Generation { return gen })
			}
			switch rng.IntN(7) {
			case 0, 1:
				m.Put("a", in, api.Digest(rng.Uint64()))
				m.Left("a", in)
				if _, reserved := m.clusters["a"].reservations.pending[in]; !reserved {
					m.Reserve("a", in, &api.Microservice{
						Virtualization: []string{"container", "vm"}[rng.IntN(2)], VCPUs: rng.Float64(), Memory: rng.Int64N(99), VGPUs: rng.IntN(3),
					})
				}
			case 2:
				if m.Has("a", in) {
					m.Drop("a", in)
					m.Leave("a", in)
				}
			case 3:
				m.Observe("a", &api.Observed{Instance: in, State: api.Running, Restarts: rng.IntN(3), Stopped: rng.IntN(3) == 0})
			case 4:
				m.Forget("a", in)
			case 5:
				seq++
				m.Report(&wire.Report{Cluster: "a", Boot: 1, Seq: seq, Gen: gen - api.Generation(rng.IntN(20))})
			default:
				for _, id := range m.TakeTouched() {
					m.Update(id)
				}
			}
			checkSums(t, m, "a")
		}
	}
}

func TestAClusterCatchesUpFromTheLog(t *testing.T) {
	m := newMachine(t, api.ClusterInfo{ID: "a"})
	step := func(gen api.Generation, change func()) api.Digest {
		m.Touch("a", func() api.Generation { return gen })
		change()
		for _, id := range m.TakeTouched() {
			m.Update(id)
		}
		_, digest := m.Generation("a")
		return digest
	}
	step(1, func() {})
	at2 := step(2, func() { m.Put("a", web.Instance(0), 7); m.Put("a", web.Instance(1), 8) })
	step(3, func() { m.Drop("a", web.Instance(0)) })
	step(4, func() { m.Put("a", web.Instance(2), 9) })
	msg, put, ok := m.CatchUp("a", 2, at2)
	if !ok || msg.From != 2 || len(put) != 1 || put[0] != web.Instance(2) || len(msg.Drop) != 1 || msg.Drop[0] != web.Instance(0) {
		t.Errorf("from generation 2 it is sent %+v with %v, want #0 dropped and #2 put", msg, put)
	}
	if gen, digest := m.Generation("a"); gen != 4 {
		t.Errorf("generation %d, want 4", gen)
	} else if _, _, ok := m.CatchUp("a", gen, digest); ok {
		t.Error("a cluster that has the set is sent it again")
	} else if msg, put, _ := m.CatchUp("a", gen, digest+1); msg.From != 0 || len(put) != 2 {
		t.Errorf("a cluster with another set is sent %+v with %v, want all of it", msg, put)
	}
	for n := range maxRemovals + 50 {
		step(api.Generation(5+2*n), func() { m.Put("a", web.Instance(9), 1) })
		step(api.Generation(6+2*n), func() { m.Drop("a", web.Instance(9)) })
	}
	if msg, _, _ := m.CatchUp("a", 2, at2); msg.From != 0 {
		t.Error("a cluster behind the log is not sent the whole set")
	}
	if n := len(m.clusters["a"].desired.log); n > maxRemovals {
		t.Errorf("the log has %d removals, want at most %d", n, maxRemovals)
	}
}

func TestSilenceIsMeasuredInPauses(t *testing.T) {
	m := newMachine(t, api.ClusterInfo{ID: "a"})
	now := epoch
	lost := func(d time.Duration) bool {
		now = now.Add(d)
		m.Begin(now, now)
		for {
			due, ok := m.Pop(now)
			if !ok {
				return false
			}
			if due.Kind == DueSilence {
				return true
			}
		}
	}
	report := func(seq uint64) {
		m.Report(&wire.Report{Cluster: "a", Boot: 1, Seq: seq})
		m.SetLive("a")
	}
	report(1)
	if lost(20*time.Second) || m.DeadAfter("a") != 30*time.Second {
		t.Fatal("the cluster is lost after 20 s")
	}
	report(2)
	if lost(50 * time.Second) {
		t.Error("a cluster with pauses of 20 s is lost after 50 s, want 60 s")
	}
	if !lost(11*time.Second) || m.Live("a") {
		t.Error("a cluster with pauses of 20 s is not lost after 61 s")
	}
}

// A cluster of the installation that was stored before grants existed stays open to all tenants.
func TestStoresFromBeforeGrants(t *testing.T) {
	for owner, want := range map[api.Tenant]bool{"": true, "rival": false} {
		m := New(Config{})
		m.Restore(Record{Info: api.ClusterInfo{ID: "oslo", Tenant: owner}})
		if got := m.Admits("oslo", "acme"); got != want {
			t.Errorf("owner %q admits acme: %v, want %v", owner, got, want)
		}
	}
}

// A kind of nodes without known bandwidth differs from one with 0 Mbit/s.
func TestUnknownBandwidthIsASeparateKind(t *testing.T) {
	m := newMachine(t, api.ClusterInfo{ID: "a"})
	a := api.Aggregate{Nodes: 3, BandwidthUnknown: 3, Slots: []api.Slot{{Nodes: 3, BandwidthUnknown: 3}}}
	m.Report(&wire.Report{Cluster: "a", Boot: 1, Seq: 1, Aggregate: a})
	if rooms := m.Candidate("a").Slots; len(rooms) != 1 || rooms[0].BandwidthUnknown != 3 {
		t.Errorf("rooms %+v, want one with 3 nodes of unknown bandwidth", rooms)
	}
	a.BandwidthUnknown = 2
	if is := m.Report(&wire.Report{Cluster: "a", Boot: 1, Seq: 2, Aggregate: a}); !is.Replaced {
		t.Error("nodes of known bandwidth are taken for nodes of unknown bandwidth")
	}
}
