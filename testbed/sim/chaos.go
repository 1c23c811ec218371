package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// chaos drives a world at random: people change applications, operators change nodes and
// clusters, and faults occur.
type chaos struct {
	w      *World
	people []*person
	asked  int // requests of operators that are still unanswered
	ended  bool

	peopleEvery, operatorEvery, faultEvery time.Duration
	stepCrashes                            bool
	staysSick                              bool // faulty images stay faulty
	recovers                               bool // from a power cut; faulty images take longer
	cutOff                                 bool // nodes are cut off, and their instances checked
	goOnUntil                              moment
}

// newChaos builds the world of a seed.
func newChaos(seed uint64, opts Options) *World {
	set := Settings{Restless: true, ExternalBroker: seed%3 == 0, Network: seed%4 > 0, Scarce: seed%10 == 0 && opts.Only == ""}
	w := NewWorld(seed, set, opts)
	r := w.chance
	q := Quality{Delay: time.Duration(1+r.IntN(40)) * time.Millisecond, Silence: time.Duration(3+r.IntN(10)) * time.Second}
	q.Jitter = q.Delay * time.Duration(1+r.IntN(4))
	if q.Hostile = r.IntN(3) == 0; q.Hostile {
		q.Loss, q.Double = r.Float64()*0.25, r.Float64()*0.15
		q.Jitter += time.Duration(r.IntN(1500)) * time.Millisecond
	}
	if opts.Only != "" {
		q = opts.Only.quality(q)
	}
	w.quality = q
	c := &chaos{w: w, stepCrashes: r.IntN(3) > 0, staysSick: r.IntN(4) == 0}
	if opts.Only != "" {
		c.stepCrashes, c.staysSick = false, false
	}
	c.peopleEvery = time.Duration(2+r.IntN(10)) * time.Second
	c.operatorEvery = time.Duration(10+r.IntN(30)) * time.Second
	c.faultEvery = time.Duration(2+r.IntN(12)) * time.Second
	w.chaos = c

	w.addRoot()
	clusters := 1 + r.IntN(3)
	if r.IntN(6) == 0 {
		clusters = 4
	}
	most := 6
	if opts.Only == OnlySilence {
		clusters, most = 1, 4
	}
	for i := range clusters {
		m := w.addCluster(api.ClusterID(fmt.Sprintf("c%d", i+1)))
		c.habits(m)
		nodes := 1 + r.IntN(most)
		if opts.Only == OnlySilence {
			nodes += silenceLeast
			m.offer, m.preempt = uplink.Offer{}, false
		}
		for k := range nodes {
			n := m.addNode(api.NodeID(fmt.Sprintf("n%d", k+1)), opts.Only.roomy(c.newInfo(i)))
			n.gone = k > 0 && r.IntN(8) == 0 && opts.Only == "" // joins later
			if n.gone {
				w.after(w.between(20*time.Second, 90*time.Second), func() {
					if !c.ended && !m.gone {
						n.gone = false
						n.join()
					}
				})
			}
		}
		w.after(w.between(0, 3*time.Second), m.join)
	}
	apps := 1 + r.IntN(4)
	for i := range apps {
		for _, t := range []api.Tenant{"acme", "bolt"} {
			if t == "bolt" && r.IntN(2) == 0 {
				continue // the other tenant uses some of the same names
			}
			c.people = append(c.people, &person{w: w, tenant: t, name: fmt.Sprintf("app%d", i+1), loose: map[api.ServiceID]bool{}, urgencies: map[string]int{}})
		}
	}
	w.note("world", "seed %d: %d clusters, hostile %v, external broker %v, loss %.2f, delay %s+%s, silence %s, step crashes %v",
		seed, clusters, q.Hostile, set.ExternalBroker, q.Loss, q.Delay, q.Jitter, q.Silence, c.stepCrashes)
	for _, p := range c.people {
		c.every(c.peopleEvery, p.act)
	}
	if opts.Only == "" {
		c.every(c.operatorEvery, c.operate)
		c.every(c.faultEvery, c.fault)
	} else {
		c.only(opts.Only)
	}
	if w.Network {
		c.every(2*time.Second, c.call)
	}
	return w
}

// every calls do repeatedly, at irregular times, until the end.
func (c *chaos) every(mean time.Duration, do func()) {
	c.w.after(c.w.between(0, 2*mean), func() {
		if !c.ended {
			do()
			c.every(mean, do)
		}
	})
}

func (c *chaos) unkept(say sayFunc) {
	if c.asked > 0 {
		say("operators", "%d requests are still unanswered", c.asked)
	}
	for _, p := range c.people {
		p.unkept(say)
	}
}

func pickOf[T any](c *chaos, s []T) (T, bool) {
	if len(s) == 0 {
		var none T
		return none, false
	}
	return s[c.w.chance.IntN(len(s))], true
}

func (c *chaos) anyNode() (*NodeMachine, bool) {
	var all []*NodeMachine
	for _, m := range c.w.living() {
		all = append(all, m.living()...)
	}
	return pickOf(c, all)
}

func (c *chaos) anyLink() *link {
	var all []*link
	for _, m := range c.w.living() {
		all = append(all, m.link)
		for _, n := range m.living() {
			all = append(all, n.link)
		}
	}
	l, _ := pickOf(c, all)
	return l
}

// order repeats an operator's request until the cluster answers it.
func (c *chaos) order(m *ClusterMachine, in cluster.Input, until func(err error) bool, then func()) {
	c.asked++
	early := !c.ended
	var try func()
	try = func() {
		if m.gone || early && c.ended {
			c.asked-- // given up
			return
		}
		a := m.proc.give(in)
		switch {
		case a.taken && until(a.err):
			c.asked--
			then()
		default:
			c.w.after(c.w.between(time.Second, 3*time.Second), try)
		}
	}
	try()
}

func answered(error) bool { return true }

func nothing() {}

// operate performs one random operation of an operator.
func (c *chaos) operate() {
	w := c.w
	n, ok := c.anyNode()
	if !ok {
		return
	}
	m := n.cluster
	switch r := w.chance.IntN(13); {
	case r >= 11:
		c.relabel(n)
	case r == 10:
		m.preempt = !m.preempt // from its next start on
	case r < 2:
		w.note("operators", "cordon %s", n.name)
		c.order(m, cluster.Cordon{Node: n.id, On: true}, answered, nothing)
	case r < 4:
		w.note("operators", "uncordon %s", n.name)
		c.order(m, cluster.Cordon{Node: n.id}, answered, nothing)
	case r < 6:
		w.note("operators", "drain %s", n.name)
		c.order(m, cluster.Drain{Node: n.id}, answered, nothing)
	case r < 8:
		c.scaleLocally(m)
	case w.root.away: // nobody can tell the root that a machine was removed
	case r == 8:
		c.retire(n)
	default:
		c.forget(m)
	}
}

// scaleLocally scales a service in a cluster whose root is unreachable.
func (c *chaos) scaleLocally(m *ClusterMachine) {
	if m.link.conn != 0 || !m.proc.running() {
		return
	}
	in, ok := pickOf(c, m.core.Instances())
	if !ok {
		return
	}
	n := c.w.chance.IntN(4)
	a := m.proc.give(cluster.LocalScale{Service: in.Service, Replicas: n})
	c.w.note("operators", "scale %s to %d in %s: %v", in.Service, n, m.name, a.err)
	for _, p := range c.people {
		p.loose[in.Service] = true
	}
}

// retire removes a node for good, sometimes without telling the cluster.
func (c *chaos) retire(n *NodeMachine) {
	if len(n.cluster.living()) < 2 {
		return
	}
	n.gone = true
	n.crashMachine(true)
	if c.w.chance.IntN(3) == 0 {
		return
	}
	c.w.note("operators", "remove %s", n.name)
	c.order(n.cluster, cluster.RemoveNode{Node: n.id}, func(err error) bool {
		return err == nil || errors.Is(err, api.ErrNotFound)
	}, nothing)
}

// forget removes a whole cluster for good, and removes it from the root when none of its
// instances can run any more.
func (c *chaos) forget(m *ClusterMachine) {
	if len(c.w.living()) < 2 || m.info.ID == "" {
		return
	}
	c.w.note("operators", "give up %s", m.name)
	m.gone = true
	m.crash()
	for _, n := range m.nodes {
		if !n.gone {
			n.gone = true
			n.crashMachine(true)
		}
	}
	c.asked++
	var tell func()
	tell = func() {
		a := c.w.root.proc.give(root.RemoveCluster{ID: m.id})
		if a.taken && (a.err == nil || errors.Is(a.err, api.ErrNotFound)) {
			c.asked--
			c.w.note("root", "forgets %s", m.name)
			return
		}
		c.w.after(2*time.Second, tell)
	}
	c.w.after(30*time.Second, tell)
}

// fault injects one random fault and schedules its end.
func (c *chaos) fault() {
	w := c.w
	n, ok := c.anyNode()
	if !ok {
		return
	}
	m, _ := pickOf(c, w.living())
	r := w.chance.IntN(33)
	if n.net != nil && w.chance.IntN(6) == 0 {
		c.netFault(n.net)
		return
	}
	if w.opts.Plant == PlantHiddenStop && r >= 16 {
		r = 31 // often, so that a quarter of the seeds find it
	}
	switch {
	case r < 6:
		l, both := c.anyLink(), w.chance.IntN(3) > 0
		upCut := both || w.chance.IntN(2) == 0
		c.cut(l, upCut, both || !upCut, w.between(500*time.Millisecond, 40*time.Second))
	case r < 8:
		l := c.anyLink()
		for i := range 5 {
			w.after(time.Duration(i)*5*time.Second, func() { c.cut(l, true, true, w.between(time.Second, 4*time.Second)) })
		}
	case r < 11:
		c.anyLink().reset(w.learns(), w.learns())
	case r < 14:
		n.crash()
		w.after(w.between(100*time.Millisecond, 20*time.Second), n.start)
	case r < 16:
		if !n.gone {
			n.crashMachine(w.chance.IntN(4) == 0)
			w.after(w.between(4*time.Second, 40*time.Second), n.start)
		}
	case r < 18:
		m.crash()
		w.after(w.between(100*time.Millisecond, 25*time.Second), m.start)
	case r < 20:
		w.root.crash()
		w.after(w.between(100*time.Millisecond, 25*time.Second), w.root.start)
	case r < 22:
		c.pause(n.name, n.proc.pause, n.proc.resume, n.link)
	case r == 22:
		c.pause(m.name, m.proc.pause, m.proc.resume, append(linksOf(m), m.link)...)
	case r == 23:
		c.pause("root", w.root.proc.pause, w.root.proc.resume, m.link)
	case r < 26:
		n.setRuntime(true)
		w.after(w.between(500*time.Millisecond, 15*time.Second), func() { n.setRuntime(false) })
	case r == 26:
		w.note("world", "the registry is down")
		w.registryDown = true
		w.after(w.between(time.Second, 20*time.Second), func() { w.registryDown = false })
	case r == 27:
		m.crash()
		w.after(w.between(10*time.Second, 40*time.Second), m.start)
		for _, n := range m.living() {
			n.crashMachine(false)
			w.after(w.between(time.Second, 60*time.Second), n.start)
		}
	case r == 30:
		c.powerCut()
	case r > 30:
		c.runtimeEnds(n)
	default:
		c.fuse(n, m)
	}
	if c.stepCrashes && w.chance.IntN(2) == 0 {
		c.fuse(n, m)
	}
}

// fuse makes a process crash within one of its next steps.
func (c *chaos) fuse(n *NodeMachine, m *ClusterMachine) {
	steps := 1 + c.w.chance.IntN(30)
	switch c.w.chance.IntN(3) {
	case 0:
		c.w.root.proc.fuse = steps
	case 1:
		m.proc.fuse = steps
	default:
		n.proc.fuse = steps
	}
}

func linksOf(m *ClusterMachine) []*link {
	var out []*link
	for _, n := range m.nodes {
		out = append(out, n.link)
	}
	return out
}

func (c *chaos) cut(l *link, upCut, downCut bool, d time.Duration) {
	if c.ended {
		return
	}
	c.w.note(l.name(), "cut (up %v, down %v) for %s", upCut, downCut, d.Round(time.Millisecond))
	l.sever(upCut, downCut)
	c.w.after(d, func() {
		c.w.note(l.name(), "mended")
		l.sever(false, false)
	})
}

func (c *chaos) pause(name string, pause, resume func(), links ...*link) {
	d := c.w.between(time.Second, 30*time.Second)
	c.w.note(name, "is paused for %s", d.Round(time.Millisecond))
	pause()
	for _, l := range links {
		l.changed()
	}
	c.w.after(d, func() {
		c.w.note(name, "goes on")
		resume()
		for _, l := range links {
			l.changed()
		}
	})
}

// end ends all faults for good.
func (c *chaos) end() {
	w := c.w
	w.note("world", "all faults end")
	c.ended = true
	c.goOnUntil = w.now + goOnTimes*goOnEvery
	for i := range goOnTimes {
		w.after(time.Duration(i+1)*goOnEvery, func() {
			for _, p := range c.people {
				p.goOn()
			}
		})
	}
	w.registryDown = false
	w.healthy = !c.staysSick
	w.quality.Loss, w.quality.Double = 0, 0
	w.root.proc.fuse = 0
	w.root.proc.resume()
	w.root.start()
	for _, m := range w.living() {
		m.proc.fuse = 0
		c.mend(m.link)
		m.proc.resume()
		m.start()
		for _, n := range m.living() {
			n.proc.fuse = 0
			c.mend(n.link)
			n.proc.resume()
			n.start()
			if n.net != nil {
				n.net.proc.fuse = 0
				n.net.proc.resume()
				n.net.start()
				n.net.reconcile()
			}
			n.setRuntime(false)
			c.order(m, cluster.Cordon{Node: n.id}, answered, nothing)
		}
	}
	for _, m := range w.living() {
		m.link.changed()
		for _, n := range m.living() {
			n.link.changed()
		}
	}
}

func (c *chaos) mend(l *link) {
	l.q.Loss, l.q.Double = 0, 0
	l.q.Jitter = min(l.q.Jitter, 200*time.Millisecond) // with a larger jitter, leases end rightly now and then
	l.sever(false, false)
}
