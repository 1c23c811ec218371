// Package usage measures the load of the workloads whose services scale, and passes it to the node's
// core. Without such workloads it does nothing.
//
//	u := usage.New(usage.Options{Runtime: rt, Post: post})
//	g.Go(func() error { return u.Run(ctx) })
//	u.Measure(order) // from the loop's send function
package usage

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/inside"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
)

const (
	interval = 5 * time.Second
	// share bounds the cost: the pause after a round is at least share times as long as the round. A
	// workload decides how many connections it has, and the kernel lists them all.
	share = 50
)

// Options are what a Meter uses.
type Options struct {
	// Runtime must be runtime.Namespaced and runtime.Guarded; see Supported.
	Runtime runtime.Runtime
	Post    func(node.Input) // must not block
	Log     *slog.Logger
}

// Supported reports whether the load of a runtime's workloads can be measured.
func Supported(rt runtime.Runtime) bool {
	_, spaced := rt.(runtime.Namespaced)
	_, grouped := rt.(runtime.Guarded)
	return spaced && grouped
}

// Meter measures workloads. Its methods are safe for concurrent use.
type Meter struct {
	opt     Options
	changed chan struct{}

	connect func(context.Context, wire.Key, goal) (net.Conn, error) // to a workload
	scrapes *fairshare.Pool
	sockets *inside.Sockets
	reads   sync.WaitGroup

	mu   sync.Mutex // guards keys
	keys map[wire.Key]goal
}

// New returns a Meter that measures nothing before Run.
func New(o Options) *Meter {
	o.Log = cmp.Or(o.Log, slog.Default())
	m := &Meter{
		opt: o, changed: make(chan struct{}, 1), keys: map[wire.Key]goal{},
		scrapes: fairshare.NewPool(scrapeBound, fairshare.Policy{Fixed: true}), sockets: inside.NewSockets(),
	}
	m.connect = m.dial
	return m
}

// Measure begins or ends the measurement of a workload. It may be repeated.
func (m *Meter) Measure(o node.Measure) {
	m.mu.Lock()
	if o.On {
		m.keys[o.Key] = goal{o.Requests, o.Address}
	} else {
		delete(m.keys, o.Key)
	}
	m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func (m *Meter) list() (keys []wire.Key, goals map[wire.Key]goal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	goals = maps.Clone(m.keys)
	for k := range goals {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b wire.Key) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Epoch, b.Epoch))
	})
	return keys, goals
}

// Run measures until ctx ends.
func (m *Meter) Run(ctx context.Context) error {
	defer m.sockets.Close()
	defer m.reads.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	known := map[wire.Key]*workload{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.changed:
			if len(known) > 0 {
				continue // the timer runs
			}
		case <-timer.C:
		}
		began := time.Now()
		var all []wire.InstanceUsage
		next := map[wire.Key]*workload{}
		keys, goals := m.list()
		for _, k := range keys {
			w := known[k]
			if w == nil {
				w = &workload{}
			}
			next[k] = w
			g := goals[k]
			if g.requests != nil {
				m.count(ctx, k, g, &w.requests)
			}
			if u, ok := m.measure(ctx, k, w); ok {
				if g.requests != nil {
					w.requests.usage(time.Now(), &u)
				}
				all = append(all, u)
			}
		}
		if known = next; len(known) == 0 {
			continue
		}
		if len(all) > 0 {
			m.opt.Post(node.Load{All: all})
		}
		timer.Reset(max(interval, share*time.Since(began)))
	}
}

// workload is what is known about a workload from the last round.
type workload struct {
	proc   string // "/proc/4711"
	group  cgroup.Group
	at     time.Time     // of the last round; zero: none
	cpu    time.Duration // of the last round in which it was known
	seen   counters
	active time.Time // when it was last seen active

	requests rate
}

// measure returns the load of a workload since the last round. ok is false in the first round and if
// something cannot be read: unknown is not idle.
func (m *Meter) measure(ctx context.Context, k wire.Key, w *workload) (u wire.InstanceUsage, ok bool) {
	if w.proc == "" {
		path, _, err := m.opt.Runtime.(runtime.Namespaced).Namespace(ctx, k)
		proc, found := strings.CutSuffix(path, "/ns/net")
		if err != nil || !found {
			return u, false
		}
		fs, err := cgroup.Mounted()
		if err != nil {
			return u, false
		}
		at, err := m.opt.Runtime.(runtime.Guarded).CgroupOf(ctx, k)
		if err != nil {
			return u, false
		}
		w.proc, w.group = proc, fs.Group(at)
	}
	now := time.Now()
	c, err := readCounters(filepath.Join(w.proc, "net"))
	if err != nil {
		m.opt.Log.Debug("measure the load of a workload failed", "instance", k.Instance, "epoch", k.Epoch, "err", err)
		*w = workload{requests: w.requests}
		return u, false
	}
	first, since := w.at.IsZero(), now.Sub(w.at)
	if first || c.packets != w.seen.packets || c.connections > 0 {
		w.active = now
	}
	u = wire.InstanceUsage{Key: k, MilliCPU: -1, MemoryMB: -1, Connections: c.connections, Idle: now.Sub(w.active)}
	cpu, memory, err := w.group.Usage()
	if err == nil {
		u.MilliCPU, u.MemoryMB = max(0, int64(cpu-w.cpu)*1000/max(1, int64(since))), memory>>20
	} else {
		m.opt.Log.Debug("read the control group of a workload failed", "instance", k.Instance, "epoch", k.Epoch, "err", err)
	}
	w.at, w.cpu, w.seen = now, cpu, c
	return u, !first
}
