package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// What follows judges places by brute force, without the code that it judges.

// wouldFit looks for a node on which the instance could run, other than the one
// where it may be. Of latencies it cannot say, and of geo links neither: nothing
// that asks for them is known to fit.
func (w *World) wouldFit(in api.Instance, but *NodeMachine) string {
	s, ok := w.root.core.Service(in.Service)
	if !ok || relative(s.Spec) {
		return ""
	}
	for _, o := range w.root.core.Services(in.ID.Tenant()) {
		if o.App == s.App && relative(o.Spec) && leadsTo(o.Spec, s.ID.NameInApp()) {
			return "" // links bind both ends
		}
	}
	for _, c := range w.living() {
		if but != nil && s.Spec.Exclusive && c != but.cluster {
			continue // the root does not move what must never be twice
		}
		if c.offer.Round > 0 || c.offer.Share > 0 {
			continue // what the operator keeps, or does not tell, is not the root's
		}
		for _, n := range c.core.Nodes() {
			m := c.node(n.ID)
			if m != nil && m != but && !m.gone && n.Status == api.NodeReady && keeps(s.Spec, m) && w.hasRoom(m, in, s.Spec) {
				return m.name
			}
		}
	}
	return ""
}

// relative: a constraint of it depends on where others are in the latency space or
// on the earth.
func relative(m api.Microservice) bool {
	return slices.ContainsFunc(m.Constraints, func(k api.Constraint) bool { return k.Type == api.ConstrainLatency }) ||
		slices.ContainsFunc(m.Connectivity, func(l api.Connectivity) bool {
			return slices.ContainsFunc(l.Constraints, func(k api.LinkConstraint) bool { return k.Type != api.LinkBandwidth })
		})
}

func leadsTo(m api.Microservice, name string) bool {
	return slices.ContainsFunc(m.Constraints, func(k api.Constraint) bool { return k.Service == name }) ||
		slices.ContainsFunc(m.Connectivity, func(l api.Connectivity) bool { return l.Target == name })
}

// keeps reports whether a machine is one that the SLA allows, whoever else is there.
func keeps(m api.Microservice, n *NodeMachine) bool {
	if m.NeedsNetwork() && n.net == nil {
		return false
	}
	if !slices.Contains(n.info.Runtimes, m.Virtualization) || len(m.Arch) > 0 && !slices.Contains(m.Arch, n.info.Arch) {
		return false
	}
	in := func(list string, name string) bool {
		return list == "" || slices.Contains(strings.Split(list, ";"), name)
	}
	for _, k := range m.Constraints {
		ok := true
		switch k.Type {
		case api.ConstrainClusters:
			ok = slices.Contains(k.Allowed, string(n.cluster.id))
		case api.ConstrainDirect:
			ok = in(k.Cluster, string(n.cluster.id)) && in(k.Node, string(n.id))
		case api.ConstrainAddons:
			ok = !slices.ContainsFunc(k.Needs, func(a string) bool { return !slices.Contains(n.info.Addons, a) })
		case api.ConstrainLabels:
			ok = !slices.ContainsFunc(k.Labels, func(l string) bool { return !labelled(n.info.Labels, l) })
		case api.ConstrainGeo:
			ok = within(k, n.info)
		}
		if !ok {
			return false
		}
	}
	return true
}

func labelled(labels map[string]string, want string) bool {
	if key, ok := strings.CutPrefix(want, "!"); ok {
		_, has := labels[key]
		return !has
	}
	if key, value, ok := strings.Cut(want, "!="); ok {
		return labels[key] != value
	}
	key, value, valued := strings.Cut(want, "=")
	has, ok := labels[key]
	return ok && (!valued || has == value)
}

func within(k api.Constraint, n api.NodeInfo) bool {
	switch at := n.Location; {
	case k.Area != "":
		return slices.Contains(n.Areas, k.Area)
	case at == nil:
		return false
	case len(k.Polygon) > 0: // a box, and nothing is near its edges
		lo, _ := api.ParseGeo(k.Polygon[0])
		hi, _ := api.ParseGeo(k.Polygon[2])
		return at.Lat > lo.Lat && at.Lat < hi.Lat && at.Lon > lo.Lon && at.Lon < hi.Lon
	default:
		middle, _ := api.ParseGeo(k.Location)
		return at.Kilometres(middle) <= k.Threshold
	}
}

// hasRoom reports whether a machine has free what an instance reserves, and none
// on it or in its domains with which the instance may not be.
func (w *World) hasRoom(m *NodeMachine, in api.Instance, spec api.Microservice) bool {
	used, devices, addresses := api.Resources{}, map[string]int{}, 0
	for _, d := range m.info.Devices {
		devices[d.Kinds[0]]++
	}
	for _, o := range m.cluster.core.Instances() {
		if o.ID == in.ID || o.Node == "" {
			continue
		}
		if o.Node == m.id {
			addresses++ // that of what is completed, too
		}
		if api.Ended(o.State, o.Reason) {
			continue
		}
		if o.Node == m.id {
			used = used.Plus(w.needsOf(o))
			for _, d := range w.devicesOf(o) {
				devices[d.Name] -= d.Count
			}
		}
	}
	if !spec.Needs().Fits(m.info.Capacity.Minus(used)) ||
		slices.ContainsFunc(spec.NeedsDevices(), func(d api.Device) bool { return d.Count > devices[d.Name] }) ||
		w.Network && w.Scarce && addresses >= 5 {
		return false
	}
	return !w.crowded(m, in, spec)
}

// crowded reports whether a domain of the machine's is full or shunned. One that is
// to be apart from others keeps them apart from itself, too.
func (w *World) crowded(m *NodeMachine, in api.Instance, spec api.Microservice) bool {
	for _, k := range spec.Constraints {
		switch k.Type {
		case api.ConstrainSpread:
			if w.inDomain(m, k.By, in, func(o api.ServiceID) bool { return o == in.Service }) >= max(1, k.Limit) {
				return true
			}
		case api.ConstrainAntiAffinity:
			if w.inDomain(m, k.By, in, func(o api.ServiceID) bool {
				return o.App() == in.Service.App() && slices.Contains(k.Services, o.NameInApp())
			}) > 0 {
				return true
			}
		}
	}
	shuns := func(o api.ServiceID) []string {
		var by []string
		if s, ok := w.root.core.Service(o); ok && o.App() == in.Service.App() && o != in.Service {
			for _, k := range s.Spec.Constraints {
				if k.Type == api.ConstrainAntiAffinity && slices.Contains(k.Services, in.Service.NameInApp()) {
					by = append(by, k.By)
				}
			}
		}
		return by
	}
	for _, s := range w.root.core.Services(in.ID.Tenant()) {
		for _, by := range shuns(s.ID) {
			if w.inDomain(m, by, in, func(o api.ServiceID) bool { return o == s.ID }) > 0 {
				return true
			}
		}
	}
	return false
}

// inDomain counts instances in the machine's domain, but the one that is asked about.
func (w *World) inDomain(m *NodeMachine, by string, but api.Instance, of func(api.ServiceID) bool) (n int) {
	domain := func(o *NodeMachine) string {
		switch by {
		case "", "node":
			return string(o.id)
		case "cluster":
			return "all"
		}
		return o.info.Labels[by]
	}
	if domain(m) == "" {
		return 0
	}
	for _, o := range m.cluster.core.Instances() {
		at := m.cluster.node(o.Node)
		if at != nil && o.ID != but.ID && of(o.Service) && domain(at) == domain(m) {
			n++
		}
	}
	return n
}

// needsOf is what the instance takes: by the service's newest spec, or by the one
// that still runs.
func (w *World) needsOf(in api.Instance) api.Resources {
	var needs api.Resources
	if s, ok := w.root.core.Service(in.Service); ok {
		needs = s.Spec.Needs()
	}
	for _, r := range w.running[in.ID] {
		needs = needs.Max(r.spec.Needs())
	}
	return needs
}

// devicesOf is the same of devices.
func (w *World) devicesOf(in api.Instance) (out []api.Device) {
	for _, kind := range deviceKinds {
		most := 0
		count := func(m api.Microservice) {
			for _, d := range m.NeedsDevices() {
				if d.Name == kind {
					most = max(most, d.Count)
				}
			}
		}
		if s, ok := w.root.core.Service(in.Service); ok {
			count(s.Spec)
		}
		for _, r := range w.running[in.ID] {
			count(r.spec)
		}
		out = append(out, api.Device{Name: kind, Count: most})
	}
	return out
}

// comparePlace holds that nothing stays on a node that breaks its SLA while another
// would do. Rigidness and the cluster's rounds are shorter than the world has to settle.
func (w *World) comparePlace(in api.Instance, r *running, say sayFunc) {
	s, ok := w.root.core.Service(in.Service)
	if !ok || w.rollingOut(s) || keeps(s.Spec, r.machine) || w.moves.spent(in.ID, r.machine.cluster.id, w.now) {
		return
	}
	if node := w.wouldFit(in, r.machine); node != "" {
		say(string(in.ID), "breaks its SLA on %s (%q) and would fit on %s", r.machine.name, in.Violated, node)
	}
}

// moves are those that a cluster made because a place broke its SLA.
type moves map[moved][]moment

// moved is an instance under one word of the root's: a cluster counts anew when it
// gets one anew.
type moved struct {
	instance api.InstanceID
	cluster  api.ClusterID
}

const movesPerHour = 4

func (m moves) inHour(k moved, now moment) (n int) {
	for _, at := range m[k] {
		if now-at < time.Hour {
			n++
		}
	}
	return n
}

func (m moves) spent(id api.InstanceID, c api.ClusterID, now moment) bool {
	return m.inHour(moved{id, c}, now) >= movesPerHour
}

// checkMoves looks at what a cluster tells of its instances for the first time.
func (w *World) checkMoves(m *ClusterMachine, msg wire.Report) {
	for _, o := range msg.Observed {
		w.strained = w.strained || o.Violated != "" || o.Reason == api.ReasonViolated
		switch {
		case o.HandedBack || o.Stopped:
			delete(w.moves, moved{o.Instance, m.id}) // it leaves, and may come back as another
		case o.Reason == api.ReasonViolated && o.State == api.NodeScheduled && o.Epoch > m.moved[o.Instance]:
			m.moved[o.Instance] = o.Epoch
			k := moved{o.Instance, m.id}
			w.moves[k] = append(w.moves[k], w.now)
			if n := w.moves.inHour(k, w.now); n > movesPerHour {
				w.violate("moves", string(o.Instance), "%s moved it %d times within an hour", m.name, n)
			}
		}
	}
}

// checkPreempted holds that whoever makes way does so for somebody more urgent, in
// a cluster that allows it: that one was there within the last minute, and may be
// gone when the reason shows.
func (w *World) checkPreempted(m *ClusterMachine) {
	if w.chaos == nil {
		return
	}
	evicted := false
	all := m.core.Instances()
	for _, in := range all {
		if m.everPreempts {
			m.lastUrgent[w.urgency(in.ID)] = w.now
		}
		evicted = evicted || in.Reason == api.ReasonPreempted
	}
	if !evicted && len(m.preempted) == 0 {
		return
	}
	most := -1
	for u, at := range m.lastUrgent {
		if w.now-at < time.Minute {
			most = max(most, u)
		}
	}
	now := map[api.InstanceID]bool{}
	for _, in := range all {
		if in.Reason != api.ReasonPreempted {
			continue
		}
		now[in.ID] = true
		switch {
		case m.preempted[in.ID]:
		case !m.everPreempts:
			w.violate("preempt", string(in.ID), "makes way in %s, whose operator does not allow it", m.name)
		case w.urgency(in.ID) >= most:
			w.violate("preempt", string(in.ID), "makes way in %s, which has nobody more urgent", m.name)
		}
	}
	m.preempted = now
}

// urgency is by the service's name alone, see person.priority.
func (w *World) urgency(id api.InstanceID) int {
	for _, p := range w.chaos.people {
		if p.app() == id.Service().App() {
			name, _, _ := strings.Cut(id.Service().NameInApp(), ".")
			return p.urgency(name)
		}
	}
	return 0
}
