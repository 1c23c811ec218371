package netbooks

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

var dawn = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is an installation with one clock.
type world struct {
	t        *testing.T
	rng      *rand.Rand
	now      time.Time
	lossy    bool
	root     *process[root.Input, *root.Core]
	clusters map[api.ClusterID]*process[cluster.Input, *cluster.Core]
	nodes    map[api.NodeID]*node
	queue    []letter
	seq      int
	sent     int // number of messages of the network
}

type letter struct {
	at      time.Time
	seq     int
	deliver func()
}

// process is a core with its disk.
type process[In any, C step.Core[In]] struct {
	make func([]store.Doc) C
	send func([]wire.Envelope)
	core C
	disk map[string]store.Doc
	wake time.Time
	off  bool
	snip func(docs int) int // returns after how many saves of the next step to crash
	fell func()
}

func (p *process[In, C]) step(t *testing.T, now time.Time, in In) error {
	if p.off {
		return nil
	}
	eff := p.core.Step(now, in)
	if p.snip != nil && len(eff.Save) > 0 {
		p.save(t, eff.Save[:p.snip(len(eff.Save))])
		p.snip = nil
		p.fell()
		return eff.Err
	}
	p.save(t, eff.Save)
	p.wake = eff.Wake
	p.send(eff.Send)
	return eff.Err
}

func (p *process[In, C]) save(t *testing.T, docs []store.Doc) {
	t.Helper()
	for i, d := range docs {
		k := d.Kind + "\x00" + d.Key
		switch store.Decide(p.disk[k], docs[i:]) {
		case store.Refuse:
			t.Fatalf("save %s %s: version %d does not follow version %d", d.Kind, d.Key, d.Version, p.disk[k].Version)
		case store.Write:
			if p.disk[k] = d; d.Data == nil {
				delete(p.disk, k)
			}
		}
	}
}

func (p *process[In, C]) docs() (docs []store.Doc) {
	for _, k := range step.Keys(p.disk) {
		docs = append(docs, p.disk[k])
	}
	return docs
}

func newWorld(t *testing.T, seed uint64, clusters, nodes int) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 21)), now: dawn,
		clusters: map[api.ClusterID]*process[cluster.Input, *cluster.Core]{}, nodes: map[api.NodeID]*node{},
	}
	w.root = &process[root.Input, *root.Core]{disk: map[string]store.Doc{}, make: func(docs []store.Doc) *root.Core {
		c := root.New(root.Config{})
		check(t, c.Restore(docs))
		return c
	}}
	w.root.send, w.root.fell = w.fromRoot, w.startRoot
	w.startRoot()
	for i := range clusters {
		id := api.ClusterID(fmt.Sprintf("c%d", i))
		check(t, w.root.step(t, w.now, root.JoinCluster{Info: api.ClusterInfo{ID: id}}))
		p := &process[cluster.Input, *cluster.Core]{disk: map[string]store.Doc{}, make: func(docs []store.Doc) *cluster.Core {
			c := cluster.New(cluster.Config{ID: id, LocalNumbers: 100_000 * (i + 1), Seed: []byte(id), Relay: string(id) + ":7444"})
			check(t, c.Restore(docs))
			return c
		}}
		p.send = func(envs []wire.Envelope) { w.fromCluster(id, envs) }
		w.clusters[id] = p
		p.fell = func() { w.startCluster(id) }
		w.startCluster(id)
		for j := range nodes {
			w.join(id, api.NodeID(fmt.Sprintf("%s-n%d", id, j)))
		}
	}
	return w
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) startRoot() {
	w.root.off = false
	w.root.core = w.root.make(w.root.docs())
	check(w.t, w.root.step(w.t, w.now, root.Start{}))
}

func (w *world) startCluster(id api.ClusterID) {
	p := w.clusters[id]
	p.core = p.make(p.docs())
	check(w.t, p.step(w.t, w.now, cluster.Start{}))
	check(w.t, p.step(w.t, w.now, cluster.RootLink{Up: true}))
}

// say delivers a message a little later, possibly twice or never.
func (w *world) say(deliver func()) {
	times, most := 1, 20
	if w.lossy {
		most = 400
		switch w.rng.IntN(10) {
		case 0, 1:
			times = 0
		case 2:
			times = 2
		}
	}
	for range times {
		w.seq++
		w.queue = append(w.queue, letter{w.now.Add(time.Duration(1+w.rng.IntN(most)) * time.Millisecond), w.seq, deliver})
	}
}

// through encodes and decodes a message, so that fields that are not encoded are lost.
func through[M any](t *testing.T, m M) (out M) {
	b, err := json.Marshal(m)
	check(t, err)
	check(t, json.Unmarshal(b, &out))
	return out
}

func (w *world) fromRoot(envs []wire.Envelope) {
	for _, e := range envs {
		id, ok := strings.CutPrefix(string(e.To), "cluster/")
		p := w.clusters[api.ClusterID(id)]
		if !ok || p == nil {
			continue
		}
		var in cluster.Input
		switch m := e.Msg.(type) {
		case wire.Desired:
			in = cluster.Desired{Desired: through(w.t, m)}
		case wire.ReportAck:
			in = cluster.Ack{ReportAck: through(w.t, m)}
		case wire.RootNet:
			w.sent++
			in = cluster.RootNet{RootNet: through(w.t, m)}
		default:
			w.t.Fatalf("unexpected message %T to a cluster", m)
		}
		w.say(func() { check(w.t, p.step(w.t, w.now, in)) })
	}
}

func (w *world) fromCluster(id api.ClusterID, envs []wire.Envelope) {
	for _, e := range envs {
		switch m := e.Msg.(type) {
		case wire.Report:
			m = through(w.t, m)
			w.say(func() { check(w.t, w.root.step(w.t, w.now, root.Report{Report: m})) })
		case wire.Hello:
			w.say(func() { check(w.t, w.root.step(w.t, w.now, root.Hello{Hello: m})) })
		case wire.Desired:
			n := w.nodes[api.NodeID(strings.TrimPrefix(string(e.To), "node/"))]
			m = through(w.t, m)
			w.say(func() { n.desired(m) })
		case wire.Lease:
			n := w.nodes[api.NodeID(strings.TrimPrefix(string(e.To), "node/"))]
			w.say(func() {
				if m.RequestWhole {
					n.report()
				}
			})
		case wire.NetDown:
			n := w.nodes[api.NodeID(strings.TrimPrefix(string(e.To), "node/"))]
			w.sent++
			m = through(w.t, m)
			w.say(func() { n.down(m) })
		case netbook.SetSlot, netbook.DropSlot, api.Change:
		default:
			w.t.Fatalf("unexpected message %T of a cluster", m)
		}
	}
}

// pass lets time go by in steps of 10 ms.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(10 * time.Millisecond)
		for {
			i := -1
			for j, l := range w.queue {
				if !l.at.After(w.now) && (i < 0 || cmp.Or(l.at.Compare(w.queue[i].at), cmp.Compare(l.seq, w.queue[i].seq)) < 0) {
					i = j
				}
			}
			if i < 0 {
				break
			}
			l := w.queue[i]
			w.queue = slices.Delete(w.queue, i, i+1)
			l.deliver()
		}
		if p := w.root; !p.wake.IsZero() && !p.wake.After(w.now) {
			check(w.t, p.step(w.t, w.now, root.Tick{}))
		}
		for _, id := range step.Keys(w.clusters) {
			if p := w.clusters[id]; !p.wake.IsZero() && !p.wake.After(w.now) {
				check(w.t, p.step(w.t, w.now, cluster.Tick{}))
			}
		}
		for _, id := range step.Keys(w.nodes) {
			w.nodes[id].tick()
		}
	}
}
