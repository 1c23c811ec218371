package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// maxRanked limits the clusters that an explanation ranks.
const maxRanked = 16

// Explain completes w, whose Instance is set: why the instance is where it is or has no place, and
// what would change that. since is how long the instance has been in its state.
func (m *Machine) Explain(in Instance, w *api.Why, since time.Duration) {
	res, yields := m.rank(in)
	w.Root = sched.Explain(res)
	for _, r := range res.Ranked[:min(len(res.Ranked), maxRanked)] {
		w.Ranked = append(w.Ranked, api.RankedCluster{Cluster: api.ClusterID(r.ID), Score: r.Score})
	}
	var next time.Time
	tryAt := func(at time.Time) {
		if at.After(m.now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, id := range m.refusingOrProbed(in) {
		for _, r := range m.refusedBy(in, id) {
			if f := m.facts[id]; !r.mayAcceptNow(f) {
				w.Clusters = append(w.Clusters, r.why)
				tryAt(r.retryAt(f))
			}
		}
	}
	tryAt(m.instances[in.ID].pausedUntil)
	if m.searching(in) {
		w.SearchingUntil = m.clock.Real(m.instances[in.ID].until)
	}
	w.NextTry = m.clock.Real(next)
	w.Summary = m.summary(in, w, since)
	if yields && in.State == api.Requested {
		w.Summary += "; it fits if less urgent instances are evicted"
	}
	if in.State == api.Requested || w.Instance.Violated != "" {
		w.WouldHelp = WouldHelp(*w)
	}
}

// rank ranks the clusters for an instance. If the instance has a place, its own resources count as
// free. If no cluster fits, it ranks the clusters after preemption, and preempting is true.
func (m *Machine) rank(in Instance) (res sched.Result, preempting bool) {
	req := m.baseRequest(in)
	if m.Late(in) {
		req = req.Loosest(true)
	}
	for _, id := range m.refusingOrProbed(in) {
		if m.refusalHolds(in, id, m.Late(in)) && (id != in.Cluster || in.State == api.Requested) {
			req.Avoid = append(req.Avoid, string(id))
		}
	}
	all := m.table.All()
	if own := m.Candidate(in.Cluster); own != nil && in.State != api.Requested {
		all = slices.Clone(all)
		i := slices.IndexFunc(all, func(o sched.Candidate) bool { return o.ID == own.ID })
		all[i] = without(*own, in.Spec)
		req.Domains = slices.DeleteFunc(req.Domains, func(d sched.Domain) bool {
			return d.AntiAffinity == "" && d.Name == own.ID && d.Have <= d.Limit
		})
	}
	place := func(req *sched.Request) sched.Result { return sched.Place(req, all, m.plugin(in), in.seed()) }
	if res = place(&req); len(res.Ranked) == 0 {
		fits := all
		all = slices.Clone(all)
		for i := range all {
			all[i], _ = m.withPreemption(all[i], req.Urgency)
		}
		if other := place(&req); len(other.Ranked) > 0 {
			return other, true
		}
		all = fits
	}
	if m.searching(in) {
		loosest := req.Loosest(true)
		res = sched.AnnotateSearch(res, place(&loosest), m.clock.Real(m.instances[in.ID].until))
	}
	return res, false
}

// without returns the candidate as if an instance with the SLA v did not run there.
func without(cand sched.Candidate, v *api.Microservice) sched.Candidate {
	needs := v.Needs()
	cand.Free, cand.Load = cand.Free.Plus(needs), max(0, cand.Load-1)
	cand.Slots = slices.Clone(cand.Slots)
	for i := range cand.Slots {
		r := &cand.Slots[i]
		r.Free, r.Largest = r.Free.Plus(needs), r.Largest.Plus(needs)
		r.Devices = maps.Clone(r.Devices)
		if r.Devices == nil {
			r.Devices = map[string]int{}
		}
		for _, d := range v.NeedsDevices() {
			r.Devices[d.Name] += d.Count
		}
	}
	return cand
}

func noCluster(why api.Explanation) string {
	if why.Considered == 0 {
		return "no cluster has joined"
	}
	return fmt.Sprintf("no cluster can host it (0 of %d)", why.Considered) + sched.Causes(why)
}

func (m *Machine) summary(in Instance, w *api.Why, since time.Duration) string {
	name, detail := in.ID.Name(), w.Instance.Detail
	switch {
	case in.State == api.Requested:
		if in.Cluster == "" && in.Reason == api.ReasonNoCluster {
			detail = noCluster(w.Root) // the detail may be outdated
		}
		return fmt.Sprintf("%s waits for a cluster, since %s: %s", name, since, m.explainSearch(in, detail))
	case in.Trial != "":
		return fmt.Sprintf("%s runs on cluster %s until it runs on cluster %s: %s", name, in.Cluster, in.Trial, detail)
	case in.State != api.Running:
		s := fmt.Sprintf("%s is %s on cluster %s, since %s", name, in.State, in.Cluster, since)
		if detail != "" {
			s += ": " + detail
		}
		return s
	}
	s := fmt.Sprintf("%s runs on cluster %s, since %s", name, in.Cluster, since)
	switch in.Reason {
	case api.ReasonNotReady:
		s += ", and is not ready, so that it gets no flows: " + detail
	case api.ReasonUnhealthy:
		s += ", and is unhealthy: " + detail
	case api.ReasonMoved:
		s += ", and " + detail
	}
	if v := w.Instance.Violated; v != "" {
		s += ", and violates its SLA: " + v
	}
	return s + compare(in.Cluster, w.Ranked)
}

// compare describes the score of an instance's cluster and those of the best others.
func compare(own api.ClusterID, ranked []api.RankedCluster) string {
	i := slices.IndexFunc(ranked, func(r api.RankedCluster) bool { return r.Cluster == own })
	if i < 0 {
		return ""
	}
	s := fmt.Sprintf("; it scores %.3f now", ranked[i].Score)
	var others []string
	for _, r := range ranked {
		const limit = 3
		if r.Cluster != own && len(others) < limit {
			others = append(others, fmt.Sprintf("%.3f on %s", r.Score, r.Cluster))
		}
	}
	if len(others) == 0 {
		return s + ", and no other cluster fits"
	}
	return s + ", " + strings.Join(others, ", ")
}

// WouldHelp suggests how a person can meet the constraints that were missed by least.
func WouldHelp(w api.Why) []string {
	var out []string
	add := func(r *api.Rejection) {
		if r != nil {
			if s := wouldHelp(r); s != "" && !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	for i := range w.Clusters {
		add(w.Clusters[i].Answer.Nearest)
	}
	if len(out) == 0 {
		add(w.Root.Nearest)
	}
	if w.Root.Considered == 0 {
		out = append(out, "let a cluster join: treeline token create --cluster")
	}
	return out
}

func wouldHelp(r *api.Rejection) string {
	if kind, ok := strings.CutPrefix(r.Constraint, sched.ConstraintDevice); ok {
		return fmt.Sprintf("free a %s or join a node with one: %s needed, %s free", kind, r.Need, r.Have)
	}
	switch r.Constraint {
	case sched.ConstraintMemory, sched.ConstraintVCPUs, sched.ConstraintStorage,
		sched.ConstraintBandwidthIn, sched.ConstraintBandwidthOut:
		if r.Short == "" {
			return "set the key bandwidth in the configuration of nodes: their bandwidth is unknown"
		}
		return fmt.Sprintf("ask for %s less %s, or free it", r.Short, r.Constraint)
	case sched.ConstraintTrust:
		return "open a cluster to the tenant as an admin (treeline open cluster NAME), or join a cluster of the tenant"
	case sched.ConstraintOut:
		return fmt.Sprintf("repair %s: it is %s", clusterName(r.Candidate), r.Have)
	case sched.ConstraintCluster, sched.ConstraintNode:
		return "name other clusters or nodes in the SLA's constraints"
	case sched.ConstraintNetwork:
		return "join a node with a netmanager whose containers are on the overlay network (not plain processes or containerd.network host or none), or set network: any in the SLA if the service needs neither an address nor the names of other services"
	case sched.ConstraintAddress:
		return "join a node, or end an instance: the nodes' subnets have no free address (their size is network.subnet_bits of the root)"
	case sched.ConstraintPort:
		return "publish another port, or join a node: " + r.Have + " on all"
	case sched.ConstraintVirtualization, sched.ConstraintArch, sched.ConstraintPrivileged:
		return fmt.Sprintf("join a node that offers %s %s", r.Constraint, r.Need)
	case sched.ConstraintVolume:
		return "bring back the node that has its volumes, or make room where they are accessible. To give up their data, have the operator remove the node, or delete the application and then its volumes (treeline delete volume)"
	case sched.ConstraintTogether:
		return "make the cluster that has the service's other instances take work, or delete the application and apply it again: instances of a schedule with parallelism or overlap: allow take turns within one cluster, and instances that share a volume are in one"
	case sched.ConstraintFeatures:
		return "upgrade the cluster and its nodes to a release that supports " + r.Need + ", or join such a node"
	case sched.ConstraintAddons:
		return fmt.Sprintf("join a node with the addon %s, or request fewer addons", r.Need)
	case sched.ConstraintLabels:
		return fmt.Sprintf("label a node so that %s matches, or request other labels", r.Need)
	case sched.ConstraintArea:
		return fmt.Sprintf("join a node in %s, or name a wider area", r.Need)
	case sched.ConstraintGeo, sched.ConstraintLatency:
		if r.Short == "" {
			return "have the distance measured or configured: " + r.Have
		}
		return fmt.Sprintf("join a node that is nearer, or raise the threshold of %s by %s", r.Constraint, r.Short)
	case sched.ConstraintSpread:
		return "raise the limit of spread, or join another cluster or node"
	case sched.ConstraintAntiAffinity:
		return "join another cluster or node, or remove the anti-affinity: " + r.Have
	case sched.ConstraintAvoid:
		return "wait: the cluster is asked again after a pause"
	}
	return ""
}

func clusterName(name string) string {
	if name == "" {
		return "a cluster"
	}
	return "cluster " + name
}
