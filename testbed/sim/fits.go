package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// This file checks placements by brute force, without the code that it checks.

// wouldFit returns a node on which the instance could run, other than its present one. It
// cannot judge latencies and geographic links, and finds no node for instances with them or with local
// volumes.
func (w *World) wouldFit(in api.Instance, but *NodeMachine) string {
	s, ok := w.root.core.Service(in.Service)
	if !ok || relative(s.Spec) || s.Spec.KeepsData() {
		return ""
	}
	for _, o := range w.root.core.Services(in.ID.Tenant()) {
		if o.App == s.App && relative(o.Spec) && leadsTo(o.Spec, s.ID.NameInApp()) {
			return "" // links restrict both ends
		}
	}
	for _, c := range w.living() {
		if but != nil && s.Spec.Exclusive && c != but.cluster {
			continue // the root does not move exclusive instances
		}
		if c.offer.Round > 0 || c.offer.Share > 0 {
			continue // the root cannot use capacity that the operator reserves or does not report
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

// relative reports whether a constraint depends on the positions of other instances.
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

// keeps reports whether the SLA allows the machine, without regard to other instances.
func keeps(m api.Microservice, n *NodeMachine) bool {
	if m.NeedsNetwork() && n.net == nil {
		return false
	}
	if slices.ContainsFunc(m.Features(), func(f string) bool { return !slices.Contains(n.info.Features, f) }) {
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
	case len(k.Polygon) > 0: // polygons are boxes, and no node is near an edge
		lo, _ := api.ParseGeo(k.Polygon[0])
		hi, _ := api.ParseGeo(k.Polygon[2])
		return at.Lat > lo.Lat && at.Lat < hi.Lat && at.Lon > lo.Lon && at.Lon < hi.Lon
	default:
		middle, _ := api.ParseGeo(k.Location)
		return at.Kilometres(middle) <= k.Threshold
	}
}

// hasRoom reports whether a machine has the free capacity for an instance, and no instance
// on it or in its domains that the instance must be apart from.
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
			addresses++ // completed instances keep theirs
		}
		if !claims(o) {
			continue
		}
		if o.Node == m.id {
			used = used.Plus(w.needsOf(o))
			for _, d := range w.devicesOf(o) {
				devices[d.Name] -= d.Count
			}
		}
	}
	for id, v := range m.volumes {
		if o, ok := m.cluster.core.Instance(id.Instance()); !ok || o.Node != m.id || !claims(o) {
			used.StorageMB += v.SizeMB
		}
	}
	if !spec.Needs().Fits(m.info.Capacity.Minus(used)) ||
		slices.ContainsFunc(spec.NeedsDevices(), func(d api.Device) bool { return d.Count > devices[d.Name] }) ||
		w.Network && w.Scarce && addresses >= 5 {
		return false
	}
	return !w.crowded(m, in, spec)
}

// claims reports whether an instance claims the capacity of its node. The volumes of one that does not stay.
func claims(o api.Instance) bool { return !api.Ended(o.State, o.Reason) && o.State != api.Dormant }

// crowded reports whether a domain of the machine is full or excluded. Anti-affinity applies
// in both directions.
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

// inDomain counts instances in the machine's domain, without the given one.
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
		if o.ID == but.ID || !of(o.Service) {
			continue
		}
		at := m.cluster.node(o.Node)
		if at != nil && domain(at) == domain(m) || o.State == api.Dormant && by == "cluster" { // it may wake there
			n++
		}
	}
	return n
}

// needsOf returns the resources of the instance: by the service's newest specification, or
// by the one that still runs.
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

// devicesOf is needsOf for devices.
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

// comparePlace checks that no instance stays on a node that violates its SLA while another
// node meets it. The time to settle is longer than rigidness and the cluster's rounds.
func (w *World) comparePlace(in api.Instance, r *running, say sayFunc) {
	s, ok := w.root.core.Service(in.Service)
	if !ok || w.rollingOut(s) || keeps(s.Spec, r.machine) || w.moves.spent(in.ID, r.machine.cluster.id, w.now) {
		return
	}
	if node := w.wouldFit(in, r.machine); node != "" {
		say(string(in.ID), "violates its SLA on %s (%q), but would fit on %s", r.machine.name, in.Violated, node)
	}
}

// moves are the moves of an instance by a cluster because of violations.
type moves map[moved][]moment

// moved is an instance under one assignment of the root: with a new assignment, a cluster
// begins to count again.
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

// checkMoves checks the moves in a cluster's report.
func (w *World) checkMoves(m *ClusterMachine, msg wire.Report) {
	for _, o := range msg.Observed {
		w.strained = w.strained || o.Violated != "" || o.Reason == api.ReasonViolated
		switch {
		case o.HandedBack || o.Stopped:
			delete(w.moves, moved{o.Instance, m.id}) // it leaves, and may return under a new assignment
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

// checkPreempted checks that an instance is preempted only in a cluster that allows it, and
// for an instance of higher priority that was there within the last minute. That instance
// may be gone when the reason is reported.
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
			w.violate("preempt", string(in.ID), "is preempted in %s, whose operator does not allow it", m.name)
		case w.urgency(in.ID) >= most:
			w.violate("preempt", string(in.ID), "is preempted in %s, which has no instance of higher priority", m.name)
		}
	}
	m.preempted = now
}

// urgency depends only on the service's name, see person.priority.
func (w *World) urgency(id api.InstanceID) int {
	for _, p := range w.chaos.people {
		if p.app() == id.Service().App() {
			name, _, _ := strings.Cut(id.Service().NameInApp(), ".")
			return p.urgency(name)
		}
	}
	return 0
}
