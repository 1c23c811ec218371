package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Only is the single kind of fault in a world that checks time bounds: its machines and links
// are otherwise without faults.
type Only string

// OnlyRestarts restarts orchestrators, each within shortRestart.
const OnlyRestarts Only = "restarts"

// Onlys returns the values of Only.
func Onlys() []string { return []string{string(OnlyRestarts), string(OnlySilence)} }

// OnlySilence cuts off several nodes, fewer than half of a cluster, at about the same time,
// ends their machines, and brings them back.
const OnlySilence Only = "silence"

const (
	silenceLeast = 5               // nodes of the cluster
	silenceSpan  = 4 * time.Second // between the first cut and the last
	// elsewhereBound is the guarantee: if there is capacity, the instances of a silent node
	// run elsewhere this long after the node was cut off.
	elsewhereBound = 8 * time.Second
)

// shortRestart is the maximum time that a restarted orchestrator is down. A lease of 5 s is
// longer by the time since the last heartbeat and the time that a node needs to reconnect.
const shortRestart = 2500 * time.Millisecond

func (o Only) quality(q Quality) Quality {
	return Quality{Delay: min(q.Delay, 20*time.Millisecond), Jitter: min(q.Jitter, 50*time.Millisecond), Silence: q.Silence}
}

// only starts the faults of the world's kind.
func (c *chaos) only(o Only) {
	switch o {
	case OnlyRestarts:
		c.every(12*time.Second, c.restart)
	case OnlySilence:
		c.every(250*time.Millisecond, c.silence)
	}
}

// roomy returns a machine on which every instance fits, for worlds that do not test capacity.
func (o Only) roomy(n api.NodeInfo) api.NodeInfo {
	if o == OnlySilence {
		n.Arch = "amd64"
		n.Capacity = api.Resources{MilliCPU: 64_000, MemoryMB: 1 << 18, StorageMB: 1 << 20, InMbit: 1 << 14, OutMbit: 1 << 14}
	}
	return n
}

// plain returns a service that fits on every machine and only runs.
func (o Only) plain(m api.Microservice) api.Microservice {
	if o != OnlySilence {
		return m
	}
	return api.Microservice{
		Name: m.Name, Namespace: m.Namespace, Virtualization: m.Virtualization, Code: m.Code[:strings.LastIndexByte(m.Code, ':')] + ":ok",
		Memory: 64, VCPUs: 0.125, Exclusive: m.Exclusive, OnDisconnect: m.OnDisconnect, StopGrace: 1, Replicas: m.Replicas,
	}
}

// silence cuts off fewer than half of the nodes, each at its own time, and ends their
// machines. After the bound it checks that their instances run elsewhere.
func (c *chaos) silence() {
	w := c.w
	m, _ := pickOf(c, w.living())
	if c.cutOff || c.ended || !w.isCalm() {
		return
	}
	c.cutOff = true
	victims := slices.Clone(m.living())
	w.chance.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	victims = victims[:2+w.chance.IntN(max(1, (len(victims)-1)/2-1))]
	lost := map[*NodeMachine]bool{}
	// In half of the cases all are cut off at once, and the next ones as soon as these are
	// back: a node that has returned must not count as silent.
	span, away, rest := silenceSpan, 25*time.Second, 10*time.Second
	if w.chance.IntN(2) == 0 {
		span, away, rest = 100*time.Millisecond, elsewhereBound+200*time.Millisecond, 0
	}
	for _, n := range victims {
		lost[n] = true
		w.after(w.between(0, span), func() {
			if !c.ended {
				c.cutOffNow(n, lost)
			}
		})
	}
	w.after(away, func() {
		for _, n := range victims {
			n.link.sever(false, false)
			n.start()
		}
		w.after(rest, func() { c.cutOff = false })
	})
}

// cutOffNow cuts off one node without closing its connections, and ends its machine.
func (c *chaos) cutOffNow(n *NodeMachine, lost map[*NodeMachine]bool) {
	w := c.w
	var had []api.InstanceID
	for _, in := range n.cluster.core.Instances() {
		if in.Node == n.id && in.State == api.Running && !in.Leaving {
			had = append(had, in.ID)
		}
	}
	w.note(n.name, "is cut off and ends")
	n.link.sever(true, true)
	n.crashMachine(false)
	w.after(elsewhereBound, func() {
		if c.ended {
			return // it may be back already, with its instances
		}
		for _, id := range had {
			if !slices.ContainsFunc(w.running[id], func(r *running) bool { return !lost[r.machine] }) && w.wants(id) {
				w.violate("elsewhere", string(id), "%s after %s was cut off, it does not run elsewhere", elsewhereBound, n.name)
			}
		}
	})
}

// wants reports whether the root wants the instance.
func (w *World) wants(id api.InstanceID) bool {
	in, ok := w.root.core.Instance(id)
	return ok && !in.Leaving
}

// isCalm reports whether every node is ready and every instance runs.
func (w *World) isCalm() bool {
	for _, c := range w.living() {
		if c.core == nil {
			return false // it has not joined yet
		}
		for _, n := range c.core.Nodes() {
			if n.Status != api.NodeReady {
				return false
			}
		}
		for _, in := range c.core.Instances() {
			if in.State != api.Running {
				return false
			}
		}
	}
	return true
}

// restart restarts one orchestrator, or all at once.
func (c *chaos) restart() {
	w := c.w
	m, _ := pickOf(c, w.living())
	which := w.chance.IntN(4)
	if which != 1 && m.proc.alive && w.now-m.restarted > 10*time.Second {
		m.restarted = w.now // two restarts in a row are one long one
		m.crash()
		w.after(w.between(100*time.Millisecond, shortRestart), m.start)
	}
	if which < 2 {
		w.root.crash()
		w.after(w.between(100*time.Millisecond, shortRestart), w.root.start)
	}
}

// checkKept checks that short restarts alone end no lease.
func (w *World) checkKept(m *NodeMachine, r wire.NodeReport) {
	if w.opts.Only != OnlyRestarts {
		return
	}
	for _, o := range r.Observed {
		if o.State == api.Failed && o.Reason == api.ReasonLeaseExpired && m.keeps(wire.Key{Instance: o.Instance, Epoch: o.Epoch}) {
			w.violate("lease-kept", string(o.Instance), "%s ends %s, although its cluster was down for less than %s", m.name, o.Epoch, shortRestart)
		}
	}
}

// keeps reports whether the placement is in the desired set of the node: a placement that
// leaves may lose its lease.
func (m *NodeMachine) keeps(k wire.Key) bool {
	in, ok := m.cluster.core.Instance(k.Instance)
	return ok && in.Node == m.id && in.Epoch == k.Epoch && !in.Leaving
}
