package root

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// mostRanked bounds the clusters that an explanation ranks.
const mostRanked = 16

// Why answers why an instance is where it is, or why it is nowhere, and what
// would change that. now is for the age of what is told.
func (c *Core) Why(id api.InstanceID, now time.Time) (api.Why, bool) {
	in := c.instances[id]
	if in == nil {
		return api.Why{}, false
	}
	res, yields := c.rank(in)
	w := api.Why{
		Instance: c.view(in), Placements: append([]api.Placement(nil), in.Placements...), Root: sched.Explain(res),
	}
	for _, r := range res.Ranked[:min(len(res.Ranked), mostRanked)] {
		w.Ranked = append(w.Ranked, api.RankedCluster{Cluster: api.ClusterID(r.ID), Score: r.Score})
	}
	var next time.Time
	for _, cid := range c.askedOf(in) {
		for _, r := range c.refusedBy(in, cid) {
			if cl := c.clusters[cid]; !r.eased(cl) {
				w.Clusters = append(w.Clusters, r.why)
				if at := r.end(cl); at.After(c.now) && (next.IsZero() || at.Before(next)) {
					next = at
				}
			}
		}
	}
	if at := in.notUntil; at.After(c.now) && (next.IsZero() || at.Before(next)) {
		next = at
	}
	if c.searching(in) {
		w.SearchingUntil = c.clock.Real(in.until)
	}
	if !next.IsZero() {
		w.NextTry = c.clock.Real(next)
	}
	w.Summary = c.summary(in, &w, now.Sub(in.Since).Round(time.Second))
	if yields && in.State == api.Requested {
		w.Summary += "; it fits where less urgent instances make way"
	}
	if in.State == api.Requested || in.Violated != "" {
		w.WouldHelp = WouldHelp(w)
	}
	return w, true
}

// rank is how the clusters stand now. That of an instance which has a place is
// judged as if the instance were to come: with the room that it has there. Where
// none fits but one in which others would make way, it ranks those, and says so.
func (c *Core) rank(in *instance) (res sched.Result, yields bool) {
	req := c.wish(in)
	if c.late(in) {
		req = req.Loosest(true)
	}
	for _, id := range c.askedOf(in) {
		if c.barred(in, c.clusters[id], c.late(in)) && (id != in.Cluster || in.State == api.Requested) {
			req.Avoid = append(req.Avoid, string(id))
		}
	}
	all := c.table.All()
	if own := c.table.Get(string(in.Cluster)); own != nil && in.State != api.Requested {
		all = slices.Clone(all)
		i := slices.IndexFunc(all, func(o sched.Candidate) bool { return o.ID == own.ID })
		all[i] = without(*own, in)
		req.Domains = slices.DeleteFunc(req.Domains, func(d sched.Domain) bool {
			return d.Apart == "" && d.Name == own.ID && d.Have <= d.Limit
		})
	}
	res = sched.Place(&req, all, c.plugin(in), in.seed())
	if len(res.Ranked) == 0 {
		if other := c.rankYielding(in, &req, all); len(other.Ranked) > 0 {
			return other, true
		}
	}
	if c.searching(in) {
		loosest := req.Loosest(true)
		res = sched.SaySearching(res, sched.Place(&loosest, all, c.plugin(in), in.seed()), c.clock.Real(in.until))
	}
	return res, false
}

// without is the candidate as if the instance did not have its room there yet.
func without(cand sched.Candidate, in *instance) sched.Candidate {
	needs := in.Spec.Needs()
	cand.Free, cand.Load = cand.Free.Plus(needs), max(0, cand.Load-1)
	cand.Rooms = slices.Clone(cand.Rooms)
	for i := range cand.Rooms {
		r := &cand.Rooms[i]
		r.Free, r.Largest = r.Free.Plus(needs), r.Largest.Plus(needs)
		devices := make(map[string]int, len(r.Devices))
		for kind, n := range r.Devices {
			devices[kind] = n
		}
		for _, d := range in.Spec.NeedsDevices() {
			devices[d.Name] += d.Count
		}
		r.Devices = devices
	}
	return cand
}

func (c *Core) summary(in *instance, w *api.Why, age time.Duration) string {
	name := in.ID.Name()
	switch {
	case in.State == api.Requested && in.Cluster == "" && in.Reason == api.ReasonNoCluster:
		return fmt.Sprintf("%s waits for a cluster, since %s: %s", name, age, c.sayingSearch(in, noCluster(w.Root))) // as it is now
	case in.State == api.Requested:
		return fmt.Sprintf("%s waits for a cluster, since %s: %s", name, age, c.sayingSearch(in, in.Detail))
	case in.Next != nil:
		return fmt.Sprintf("%s runs on cluster %s until it runs on cluster %s: %s", name, in.Cluster, in.Next.Cluster, in.Detail)
	case in.State != api.Running:
		s := fmt.Sprintf("%s is %s on cluster %s, since %s", name, in.State, in.Cluster, age)
		if in.Detail != "" {
			s += ": " + in.Detail
		}
		return s
	}
	s := fmt.Sprintf("%s runs on cluster %s, since %s", name, in.Cluster, age)
	if in.Violated != "" {
		s += ", and violates its SLA: " + in.Violated
	}
	return s + standing(in.Cluster, w.Ranked)
}

// standing compares an instance's cluster with the best of the others.
func standing(own api.ClusterID, ranked []api.RankedCluster) string {
	i := slices.IndexFunc(ranked, func(r api.RankedCluster) bool { return r.Cluster == own })
	if i < 0 {
		return ""
	}
	s := fmt.Sprintf("; it scores %.3f now", ranked[i].Score)
	var others []string
	for _, r := range ranked {
		const most = 3
		if r.Cluster != own && len(others) < most {
			others = append(others, fmt.Sprintf("%.3f on %s", r.Score, r.Cluster))
		}
	}
	if len(others) == 0 {
		return s + ", and no other cluster fits"
	}
	return s + ", " + strings.Join(others, ", ")
}

// WouldHelp turns the nearest misses into what a person can do.
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
			return "have the operators of nodes state their bandwidth: the key bandwidth in the node's configuration"
		}
		return fmt.Sprintf("ask for %s less %s, or free it", r.Short, r.Constraint)
	case sched.ConstraintTrust:
		return "have an admin open a cluster to the tenant (treeline open cluster NAME), or let a cluster of the tenant join"
	case sched.ConstraintOut:
		return fmt.Sprintf("bring %s back: it is %s", cmpName(r.Candidate, "a cluster"), r.Have)
	case sched.ConstraintCluster, sched.ConstraintNode:
		return "name other places in the SLA's constraints"
	case sched.ConstraintNetwork:
		return "join a node whose containers are on the overlay network (a netmanager beside the node engine; plain processes and containerd.network host or none have none), or, if it needs neither an address nor other services' names, write network: any in its SLA"
	case sched.ConstraintAddress:
		return "join a node, or end an instance: the nodes' subnets have no address left (network.subnet_bits of the root says how many)"
	case sched.ConstraintPort:
		return "publish another port, or join a node: " + r.Have + " on all"
	case sched.ConstraintVirtualization, sched.ConstraintArch, sched.ConstraintPrivileged:
		return fmt.Sprintf("join a node that offers %s %s", r.Constraint, r.Need)
	case sched.ConstraintAddons:
		return fmt.Sprintf("join a node with the addon %s, or ask for fewer", r.Need)
	case sched.ConstraintLabels:
		return fmt.Sprintf("label a node so that %s holds, or ask for other labels", r.Need)
	case sched.ConstraintArea:
		return fmt.Sprintf("join a node in %s, or name a wider area", r.Need)
	case sched.ConstraintGeo, sched.ConstraintLatency:
		if r.Short == "" {
			return "have it known how far that is: " + r.Have
		}
	}
	switch r.Constraint {
	case sched.ConstraintGeo:
		return "join a node nearer by, or raise the threshold" + by(r.Short)
	case sched.ConstraintLatency:
		return "join a node nearer by, or raise the latency threshold" + by(r.Short)
	case sched.ConstraintSpread:
		return "raise the limit of spread, or join another place to spread to"
	case sched.ConstraintApart:
		return "join another place, or let both be together: " + r.Have
	case sched.ConstraintAvoid:
		return "wait: it is asked again after a pause"
	}
	return ""
}

func by(short string) string {
	if short == "" {
		return ""
	}
	return " by " + short
}

func cmpName(name, other string) string {
	if name == "" {
		return other
	}
	return "cluster " + name
}
