package sim

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// This file has faults that end workloads without an event, and the bound within which every
// core must detect that.

// powerCut ends all machines at once, workloads included. Disks keep what was
// saved. Every machine starts again by itself, in any order, some before their
// runtime answers.
func (c *chaos) powerCut() {
	w := c.w
	w.note("world", "the power fails")
	w.root.crash()
	w.after(w.between(0, 5*time.Second), w.root.start)
	for _, m := range w.living() {
		m.crash()
		if w.externalBroker && w.chance.IntN(2) == 0 {
			clear(m.retained) // the broker stores nothing on disk
		}
		w.after(w.between(0, 5*time.Second), m.start)
		for _, n := range m.living() {
			n.crashMachine(false)
			if w.externalBroker {
				n.link.reset(0, 0)
			}
			late := w.chance.IntN(3) == 0
			if late {
				n.runtime.down = true
				w.after(w.between(time.Second, 8*time.Second), func() { n.setRuntime(false) })
			}
			w.after(w.between(0, 5*time.Second), n.start)
		}
	}
}

// runtimeEnds stops a node's runtime without an event, with or without its tasks, while the
// node engine runs. The runtime comes back with tasks that still run, tasks that ended, or
// none.
func (c *chaos) runtimeEnds(n *NodeMachine) {
	w := c.w
	with, hides := w.chance.IntN(3), w.opts.Plant == PlantHiddenStop
	if hides {
		with = 0
	}
	w.note(n.name, "the runtime ends %s", []string{"with its tasks", "with some of its tasks", "alone"}[with])
	n.setRuntime(true)
	for _, v := range n.runtime.all() {
		if with == 2 || with == 1 && w.chance.IntN(2) == 0 {
			continue
		}
		v.hidden = hides && v.phase == wire.WorkloadRunning
		n.runtime.lose(v, w.chance.IntN(2) == 0 && !hides)
	}
	w.after(w.between(500*time.Millisecond, 15*time.Second), func() { n.setRuntime(false) })
}

// lose ends a workload without an event; the runtime may forget it.
func (r *FakeRuntime) lose(v *workload, forgets bool) {
	v.lift()
	if v.phase == wire.WorkloadRunning {
		v.phase, v.exit = wire.WorkloadExited, 255
		v.run++
		r.w.ended(r.machine, v)
	}
	if forgets {
		r.remove(v)
	}
}

// recheck reports all workloads to the engine again, as the driver does when an order shows
// that the engine's view is wrong.
func (r *FakeRuntime) recheck() {
	era := r.era
	r.w.after(time.Millisecond, func() {
		if m := r.machine; r.era == era && !r.down && m.proc.alive {
			m.proc.give(node.Info{Info: m.present(), Found: r.found(), Fresh: true})
		}
	})
}

// repeatExits repeats some earlier exits late, when other processes may run: a runtime may
// report an exit twice.
func (r *FakeRuntime) repeatExits() {
	for _, v := range r.all() {
		if v.phase != wire.WorkloadExited || r.w.chance.IntN(4) > 0 {
			continue
		}
		e := wire.WorkloadEvent{Key: v.Key, Attempt: v.attempt, Phase: wire.WorkloadExited, ExitCode: v.exit}
		r.w.after(r.w.between(0, 4*time.Second), func() {
			if !r.down {
				r.tell(e)
			}
		})
	}
}

// ghostBound is how long an engine with a runtime that answers may report an instance
// without a process as running: it allows for a poll each second, a slow answer of the
// runtime, and a pause of a daemon.
const ghostBound = 15 * time.Second

// checkGhosts checks that no engine reports an instance without a process as running for
// longer than the bound.
func (w *World) checkGhosts() {
	seen := map[ghost]moment{}
	for _, c := range w.clusters {
		for _, n := range c.nodes {
			if !n.proc.running() || n.gone || n.runtime.down {
				continue
			}
			for _, in := range n.core.Instances() {
				v := n.runtime.find(wire.Key{Instance: in.ID, Epoch: in.Epoch})
				if in.State != api.Running || v != nil && v.phase == wire.WorkloadRunning {
					continue
				}
				g := ghost{n, in.ID, in.Epoch}
				since, ok := w.ghosts[g]
				if !ok {
					since = w.now
				}
				seen[g] = since
				if w.now-since > ghostBound {
					w.violate("ghost", string(in.ID), "%s reports %s as running since %s, but it has no process", n.name, in.Epoch, since)
				}
			}
		}
	}
	w.ghosts = seen
}

// ghost is a placement that an engine reports as running and that has no process.
type ghost struct {
	machine  *NodeMachine
	instance api.InstanceID
	epoch    api.Epoch
}
