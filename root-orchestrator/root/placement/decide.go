package placement

import (
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Decide chooses a cluster for the instance, or queues it.
func (m *Machine) Decide(in Instance) (d Decision) {
	if in.Spec.Exclusive && in.Cluster == "" && in.Vacating == "" && !in.Leaving && len(in.Stopping) > 0 {
		in.Vacating, d.Await = in.Stopping[0], in.Stopping[0]
	}
	it := m.instances[in.ID]
	switch {
	case in.Leaving || in.ended():
		m.StopWaiting(in.ID)
		return d
	case in.Trial != "" || m.exchange.Open(in.ID):
		return d // a decision is under way
	case in.Vacating != "" || it.pausedUntil.After(m.now):
		m.waitInQueue(in)
		return d
	}
	if at := m.mayMove(in); at.After(m.now) {
		m.Wait(in)
		m.timers.Set(Due{Kind: DueRetry, Instance: in.ID}, at)
		return d
	}
	switch {
	case m.knownNoFit(in):
		m.search(in, m.noFit.search)
		return m.wait(in, m.explainSearch(in, m.noFit.why))
	case m.cfg.Asks != "":
		return m.ask(in)
	}
	return m.choose(in)
}

func (m *Machine) choose(in Instance) Decision {
	req, best, ok := m.find(in)
	if !ok {
		return m.preempt(in, &req)
	}
	return m.placeOn(in, best, false)
}

// placeOn returns the decision to place an instance on a chosen cluster.
func (m *Machine) placeOn(in Instance, c sched.Choice, displaces bool) Decision {
	id := api.ClusterID(c.ID)
	if g := m.Candidate(id).Grant; g != nil && !g.Admits(g.Owner, in.ID.Tenant()) {
		// The filters already exclude such a cluster. This is a second check.
		return m.wait(in, fmt.Sprintf("cluster %s is not open to tenant %s", id, in.ID.Tenant()))
	}
	return Decision{Cluster: id, Score: c.Score, Preempts: displaces}
}

// baseRequest returns the instance's request without regard to refusals.
func (m *Machine) baseRequest(in Instance) sched.Request {
	s := m.of(in.ID)
	req := sched.RequestFor(in.ID, in.Spec)
	req.Peers = s.peers
	if in.VolumeAt != "" {
		req.VolumeAt = string(in.VolumeAt)
		req.Needs.StorageMB = max(0, req.Needs.StorageMB-in.VolumesMB) // already taken there
	}
	if in.Spec.Together() || in.Spec.SharesVolumes() && in.VolumeAt == "" {
		for _, cl := range step.Keys(s.peers) {
			if s.peers[cl] > 1 || string(in.Cluster) != cl {
				req.TogetherAt = cl
				break
			}
		}
	}
	m.bind(&req, in, s)
	return req
}

// strictRequest returns the instance's request with all its links binding.
func (m *Machine) strictRequest(in Instance) sched.Request {
	req := m.baseRequest(in)
	req.Avoid = m.avoided(in, false)
	if in.Reason == api.ReasonViolated {
		// Ask for a tenth less than the SLA allows: an instance that moves because it was too far
		// away must not be at the limit again.
		for i := range req.Bounds {
			req.Bounds[i].RTT -= req.Bounds[i].RTT / 10
			req.Bounds[i].Km -= req.Bounds[i].Km / 10
		}
	}
	return req
}

// request returns the instance's request. Once its search is over, links may be violated.
func (m *Machine) request(in Instance) sched.Request {
	if !m.Late(in) {
		return m.strictRequest(in)
	}
	req := m.baseRequest(in)
	req.Avoid = m.avoided(in, true)
	return req.Loosest(true)
}

// avoided returns the clusters that the instance is not offered to: those that refused it, and the
// one that has it. If late is set, links may be violated, and refusals from the time when they were
// binding do not count.
func (m *Machine) avoided(in Instance, late bool) (out []string) {
	for _, id := range m.refusingOrProbed(in) {
		if m.refusalHolds(in, id, late) {
			out = append(out, string(id))
		}
	}
	for _, d := range m.doubts[in.ID] {
		if d.Searched || !late {
			out = append(out, string(d.Cluster))
		}
	}
	if in.Cluster != "" && (!late || in.Searched) {
		out = append(out, string(in.Cluster))
	}
	return out
}

// find returns the best cluster for the instance and the request that it meets. If no cluster meets
// the whole request and the search is over, it violates links as little as possible (see
// sched.Request.Relax). If ok is false, no cluster fits, and req is the result of request.
func (m *Machine) find(in Instance) (req sched.Request, best sched.Choice, ok bool) {
	try := func(r *sched.Request) bool {
		best, ok = m.table.Best(r, m.plugin(in), in.seed())
		return ok
	}
	req = m.strictRequest(in)
	m.search(in, req.SearchTime())
	if try(&req) || !m.Late(in) {
		return req, best, ok
	}
	req = m.baseRequest(in)
	req.Avoid = m.avoided(in, true)
	req, _ = req.Relax(true, try)
	return req, best, ok
}

// fits reports whether the instance could be offered to the cluster in its present state.
func (m *Machine) fits(in Instance, cl api.ClusterID) bool {
	req := m.request(in)
	cand := []sched.Candidate{*m.Candidate(cl)}
	_, fits := sched.PlaceBest(&req, cand, m.cfg.Plugin, 0)
	if !fits && !m.KeepsRunning(in) {
		_, fits = m.bestWithPreemption(in, &req, cand)
	}
	return fits
}

// If no cluster meets an instance's links, the instance waits for as long as the links allow
// (convergence time). This is the search. After it, the instance goes to the cluster that violates
// its links least, with Assignment.Searched set, so that the cluster does not search again.

// search begins the search for a place that meets the instance's links. If d is 0, no link is
// binding.
func (m *Machine) search(in Instance, d time.Duration) {
	if it := m.instances[in.ID]; d > 0 && it.until.IsZero() && in.State == api.Requested {
		it.until = m.now.Add(d)
		m.timers.Set(Due{Kind: DueSearch, Instance: in.ID}, it.until)
	}
}

// EndSearch ends the search, because the instance has a place or a new SLA.
func (m *Machine) EndSearch(id api.InstanceID) {
	if it := m.instances[id]; !it.until.IsZero() {
		it.until = time.Time{}
		m.timers.Clear(Due{Kind: DueSearch, Instance: id})
	}
}

// Late reports whether the search for a place of an instance is over without success.
func (m *Machine) Late(in Instance) bool {
	until := m.instances[in.ID].until
	return in.State == api.Requested && !until.IsZero() && !m.now.Before(until)
}

func (m *Machine) searching(in Instance) bool {
	return in.State == api.Requested && m.instances[in.ID].until.After(m.now)
}

// explainSearch adds to why, the reason for waiting, the end of a search that is under way.
func (m *Machine) explainSearch(in Instance, why string) string {
	if !m.searching(in) {
		return why
	}
	return sched.SearchText(m.clock.Real(m.instances[in.ID].until)) + "; " + why
}

// mayMove returns when an instance whose place violates its SLA may move: the zero time if now,
// otherwise when its moves within the last hour are below MovesPerHour again.
func (m *Machine) mayMove(in Instance) time.Time {
	if in.Cluster == "" || in.Reason != api.ReasonViolated {
		return time.Time{}
	}
	if m.cfg.MovesPerHour < 0 {
		return m.now.Add(time.Hour)
	}
	moves := wire.MergeMoves(in.Moves, nil, m.wall)
	over := len(moves) - m.cfg.MovesPerHour
	if over < 0 {
		return time.Time{}
	}
	return m.now.Add(moves[over].Add(wire.MovesWindow).Sub(m.wall))
}

// waitInQueue keeps the instance in the queue until a cluster can take more or its next pause is
// over. Refusals that apply to its service have their own timer (DueProbe).
func (m *Machine) waitInQueue(in Instance) {
	it := m.instances[in.ID]
	m.Wait(in)
	next := it.pausedUntil
	for _, r := range it.refusals {
		if r.until.After(m.now) && (next.IsZero() || !next.After(m.now) || r.until.Before(next)) {
			next = r.until
		}
	}
	if next.After(m.now) {
		m.timers.Set(Due{Kind: DueRetry, Instance: in.ID}, next)
	}
}

// wait queues the instance. The reason is reported only if it has no place.
func (m *Machine) wait(in Instance, why string) Decision {
	m.waitInQueue(in)
	if in.Cluster != "" {
		why = ""
	}
	return Decision{Why: why}
}

// waitExplained queues the instance because no cluster fits.
func (m *Machine) waitExplained(in Instance, req *sched.Request) Decision {
	why := noCluster(sched.Explain(m.table.Place(req, m.plugin(in), in.seed())))
	m.noteNoFit(in, why, req.SearchTime())
	return m.wait(in, m.explainSearch(in, why))
}

// noFit records, for one step, that no cluster takes instances of a service, so that the step need
// not examine each of them.
type noFit struct {
	service api.ServiceID
	rev     api.Revision
	late    bool // the search is over
	search  time.Duration
	why     string
}

// noteNoFit records that no cluster takes the instance, if that also holds for its siblings.
func (m *Machine) noteNoFit(in Instance, why string, search time.Duration) {
	own := in.Cluster != "" && !slices.ContainsFunc(m.refusedBy(in, in.Cluster), func(r refusal) bool { return r.holds(m.facts[in.Cluster], m.now) })
	if m.sharedRefusals(in) != nil && len(m.instances[in.ID].refusals) == 0 && !own && in.Reason != api.ReasonViolated && !m.dryRun {
		m.noFit = noFit{in.ID.Service(), in.SpecRev, m.Late(in), search, why}
	}
}

func (m *Machine) knownNoFit(in Instance) bool {
	return m.noFit.service == in.ID.Service() && m.noFit.rev == in.SpecRev && m.noFit.late == m.Late(in)
}

// Preemption: an instance that no cluster can take is offered to a cluster that can evict less
// urgent instances, if its operator allows that. The cluster's aggregate contains what would be
// free then; the cluster chooses the instances.

// preemptibleFor returns what preemption would free for an instance of an urgency, nil if nothing.
func preemptibleFor(yields []api.Preemptible, urgency int) *api.Preemptible {
	i := slices.IndexFunc(yields, func(y api.Preemptible) bool { return y.Urgency == urgency })
	if i < 0 {
		return nil
	}
	return &yields[i]
}

// withPreemption returns the candidate as it would be after preemption, and whether preemption frees
// anything. Reservations of the root remain.
func (m *Machine) withPreemption(cand sched.Candidate, urgency int) (sched.Candidate, bool) {
	f := m.facts[api.ClusterID(cand.ID)]
	y := preemptibleFor(f.Preemptible, urgency)
	if y == nil {
		return cand, false
	}
	more := y.Free.Minus(f.Free)
	cand.Free = cand.Free.Plus(more)
	cand.Slots = slices.Clone(cand.Slots)
	for i := range cand.Slots {
		// The report does not say which kind of node preemption frees: it may be this one.
		r := &cand.Slots[i]
		r.Free = r.Free.Plus(more)
		r.Largest = y.Largest.Min(r.Free)
	}
	return cand, true
}

// preempt offers an instance that no cluster can take to the best cluster with preemption, or
// queues it. A running instance is not moved by preemption.
func (m *Machine) preempt(in Instance, req *sched.Request) Decision {
	if !m.KeepsRunning(in) {
		if best, ok := m.bestWithPreemption(in, req, m.table.All()); ok {
			return m.placeOn(in, best, true)
		}
	}
	return m.waitExplained(in, req)
}

// bestWithPreemption returns the best cluster with preemption. It excludes a cluster that refused until its
// pause is over, even if the cluster has more free resources since: the cluster has already tried
// which instances it can evict.
func (m *Machine) bestWithPreemption(in Instance, req *sched.Request, among []sched.Candidate) (sched.Choice, bool) {
	var yielding []sched.Candidate
	for i := range among {
		id := api.ClusterID(among[i].ID)
		if m.probedByOther(in, id) || slices.ContainsFunc(m.refusedBy(in, id), func(r refusal) bool { return r.earliest.After(m.now) }) {
			continue
		}
		if cand, ok := m.withPreemption(among[i], req.Urgency); ok {
			yielding = append(yielding, cand)
		}
	}
	if len(yielding) == 0 {
		return sched.Choice{}, false
	}
	return sched.PlaceBest(req, yielding, m.plugin(in), in.seed())
}
