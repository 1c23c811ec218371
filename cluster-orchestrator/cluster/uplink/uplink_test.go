package uplink

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	web  = api.InstanceID("acme/shop.prod.web.prod#0")
	idle = 5 * time.Second
)

// rig drives a machine as the core does.
type rig struct {
	t       *testing.T
	fx      *effects.Sink
	m       *Machine
	now     time.Time
	seen    map[api.InstanceID]api.Observed
	room    Totals
	net     *wire.ClusterNet
	hellos  []wire.Hello  // of the last call
	reports []wire.Report // of the last call
	said    []wire.Notice // of the last call
}

func newRig(t *testing.T, o Offer) *rig {
	r := &rig{t: t, fx: &effects.Sink{Boot: 3}, now: epoch, seen: map[api.InstanceID]api.Observed{}}
	r.m = New(r.fx, Config{Cluster: "munich", Idle: idle, Retry: 3 * time.Second, Offer: o})
	r.do(r.m.Start)
	return r
}

// do makes a call in its own step, which may end with a report.
func (r *rig) do(call func()) {
	r.fx.Begin(r.now)
	if call != nil {
		call()
	}
	for {
		if _, ok := r.fx.Timers.Pop(r.fx.Now); !ok {
			break
		}
		r.m.Due()
	}
	if _, whole, ok := r.m.Begin(false); ok {
		f := Facts{Totals: r.room, Net: r.net, Observe: func(id api.InstanceID) (api.Observed, bool) { o, ok := r.seen[id]; return o, ok }}
		for id := range r.seen {
			if whole {
				f.All = append(f.All, id)
			}
		}
		r.m.Send(f)
	}
	r.hellos, r.reports, r.said = nil, nil, nil
	for _, e := range r.fx.End().Send {
		switch msg := e.Msg.(type) {
		case wire.Hello:
			r.hellos = append(r.hellos, msg)
		case wire.Report:
			r.reports = append(r.reports, msg)
		case wire.Notice:
			r.said = append(r.said, msg)
		}
	}
}

// pass advances the time in short steps, because a long step would count as a pause of the
// process.
func (r *rig) pass(d time.Duration) {
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(500 * time.Millisecond)
		r.do(nil)
	}
}

// next advances the time until the next report, and returns the report and its time.
func (r *rig) next(within time.Duration) (wire.Report, time.Duration) {
	r.t.Helper()
	for start := r.now; r.now.Sub(start) < within; {
		r.now = r.now.Add(50 * time.Millisecond)
		if r.do(nil); len(r.reports) > 0 {
			return r.reports[0], r.now.Sub(start)
		}
	}
	r.t.Fatalf("no report within %s", within)
	return wire.Report{}, 0
}

func (r *rig) ack(seq uint64) {
	r.do(func() {
		r.m.Ack(wire.ReportAck{Boot: 3, Seq: seq, Dead: time.Minute}, func(api.InstanceID) bool { return false })
	})
}

// quiet acknowledges reports until nothing is left to report.
func (r *rig) quiet() {
	for range 3 {
		r.ack(r.m.seq)
		r.next(maxIdle + time.Second)
	}
	r.ack(r.m.seq)
}

func TestChangeIsReportedUntilAcknowledged(t *testing.T) {
	r := newRig(t, Offer{})
	r.quiet()
	r.seen[web] = api.Observed{Instance: web, State: api.Running}
	r.do(func() { r.m.MarkChanged(web) })
	if len(r.reports) != 1 || len(r.reports[0].Observed) != 1 {
		t.Fatalf("a change is reported as %+v, want it at once", r.reports)
	}
	first := r.reports[0].Seq
	r.do(func() { r.m.MarkChanged(web) })
	if len(r.reports) != 0 {
		t.Errorf("a second report is sent before the answer to the first: %+v", r.reports)
	}
	if rep, _ := r.next(4 * time.Second); len(rep.Observed) != 1 {
		t.Errorf("without an answer %+v is sent, want the change again", rep)
	}
	r.ack(first) // a late acknowledgement: the second report may be lost
	if rep, _ := r.next(idle + time.Second); len(rep.Observed) != 1 {
		t.Errorf("after an older answer %+v is sent, want the change again", rep)
	}
	delete(r.seen, web)
	r.ack(r.m.seq)
	r.do(func() { r.m.Removed(api.Observed{Instance: web, State: api.Terminated, Stopped: true}) })
	if len(r.reports) != 1 || len(r.reports[0].Observed) != 1 || !r.reports[0].Observed[0].Stopped {
		t.Errorf("a removal is reported as %+v, want the instance's end", r.reports)
	}
	if n := r.m.Unreported(); n != 1 {
		t.Errorf("%d removed instances are unreported, want 1", n)
	}
	r.ack(r.m.seq)
	if n := r.m.Unreported(); n != 0 {
		t.Errorf("%d removed instances are unreported after the answer, want none", n)
	}
	if rep, _ := r.next(idle + time.Second); len(rep.Observed) > 0 {
		t.Errorf("what the root has is reported again: %+v", rep.Observed)
	}
}

func TestRootMayAskForAll(t *testing.T) {
	r := newRig(t, Offer{})
	r.quiet()
	r.seen[web] = api.Observed{Instance: web}
	r.do(func() {
		r.m.Ack(wire.ReportAck{Boot: 3, Seq: r.m.seq, RequestWhole: true}, func(api.InstanceID) bool { return false })
	})
	if len(r.reports) != 1 || !r.reports[0].Whole || len(r.reports[0].Observed) != 1 {
		t.Errorf("the answer is %+v, want a whole report of one instance", r.reports)
	}
	for name, a := range map[string]wire.ReportAck{"an earlier start": {Boot: 2, RequestWhole: true}, "a future report": {Boot: 3, Seq: 999, RequestWhole: true}} {
		if r.m.Ack(a, func(api.InstanceID) bool { return false }) {
			t.Errorf("an answer to %s is taken", name)
		}
	}
}

func TestTheStreamResumesFromTheAppliedGeneration(t *testing.T) {
	r := newRig(t, Offer{})
	if len(r.hellos) != 1 || r.hellos[0].Since != 0 {
		t.Fatalf("at the start %+v is sent, want a request for all", r.hellos)
	}
	take := func(d wire.Desired, digest api.Digest) (ok bool) {
		r.now = r.now.Add(helloEvery)
		r.do(func() {
			if ok = r.m.Accept(d); ok {
				wanted, _ := r.m.Digests()
				r.m.Toggle(wanted^digest, 0)
				r.m.Applied(d)
			}
		})
		return ok
	}
	if !take(wire.Desired{Gen: 5, Digest: 7}, 7) || r.m.Gen() != 5 || len(r.hellos) != 0 {
		t.Errorf("a whole set is not taken: generation %d, then %+v", r.m.Gen(), r.hellos)
	}
	if take(wire.Desired{Gen: 5, Digest: 7}, 7) {
		t.Error("the same set is taken twice")
	}
	if take(wire.Desired{Gen: 4, Digest: 1}, 1) {
		t.Error("an older set is taken")
	}
	if take(wire.Desired{Gen: 9, From: 8}, 0) || len(r.hellos) != 1 || r.hellos[0].Since != 5 {
		t.Errorf("a change of a set that the cluster does not have is answered with %+v, want a request since 5", r.hellos)
	}
	if !take(wire.Desired{Gen: 6, From: 5, Digest: 3}, 2) || len(r.hellos) != 1 || r.hellos[0].Since != 0 {
		t.Errorf("after a change with another digest %+v is sent, want a request for all", r.hellos)
	}
}

func TestReportsBecomeRareWithoutNews(t *testing.T) {
	r := newRig(t, Offer{})
	r.quiet()
	var last time.Duration
	for range 6 {
		_, after := r.next(maxIdle + time.Second)
		if after < last {
			t.Errorf("a report comes after %s, the one before after %s; want them to become rarer", after, last)
		}
		last = after
		r.ack(r.m.seq)
	}
	if last != time.Minute/3 { // a third of the root's dead time
		t.Errorf("at last they come every %s, want 20s", last)
	}
	// A large change of Totals is reported soon, a small one later.
	r.room = Totals{Capacity: api.Resources{MilliCPU: 1000}, Free: api.Resources{MilliCPU: 1000}}
	r.do(func() { r.m.TotalsChanged(r.room, false) })
	if _, after := r.next(time.Minute); after != largeDelay {
		t.Errorf("a large change is reported after %s, want %s", after, largeDelay)
	}
	r.ack(r.m.seq)
	r.room.Free.MilliCPU -= 10
	r.do(func() { r.m.TotalsChanged(r.room, false) })
	if _, after := r.next(time.Minute); after != smallDelay {
		t.Errorf("a small change is reported after %s, want %s", after, smallDelay)
	}
}

func text(all []wire.Notice) (out []string) {
	for _, n := range all {
		out = append(out, fmt.Sprintf("%d %s %s ×%d", n.No, n.Reason, n.Text, n.Times))
	}
	return out
}

func TestNoticeIsReportedUntilTheRootHasIt(t *testing.T) {
	r := newRig(t, Offer{})
	r.quiet()
	first, second := "1 scheduler_failed gone ×1", "2 scheduler_failed still gone ×3"
	say := func(what string) { r.do(func() { r.m.Notice(api.ReasonNoScheduler, what) }) }
	say("gone")
	if !slices.Equal(text(r.said), []string{first}) || len(r.reports) != 1 || !slices.Equal(text(r.reports[0].Notices), []string{first}) {
		t.Fatalf("the operator is told %q and the root %+v, want %q at once", text(r.said), r.reports, first)
	}
	r.ack(r.m.seq - 1)
	if rep, _ := r.next(idle); !slices.Equal(text(rep.Notices), []string{first}) {
		t.Errorf("after an older answer %q is reported, want %q again", text(rep.Notices), first)
	}
	for range 2 {
		if say("and again"); len(r.said) > 0 {
			t.Errorf("soon after the operator is told %q, want it only counted", text(r.said))
		}
	}
	r.pass(noticeEvery)
	if say("still gone"); !slices.Equal(text(r.said), []string{second}) {
		t.Errorf("later the operator is told %q, want %q", text(r.said), second)
	}
	r.ack(r.m.seq) // acknowledges a report with the first notice only
	if got := text(r.m.Notices()); !slices.Equal(got, []string{second}) {
		t.Errorf("%q wait for the root, want %q", got, second)
	}
}

// A notice of one reason does not hide one of another.
func TestNoticesOfOneReasonAreCounted(t *testing.T) {
	r := newRig(t, Offer{})
	r.quiet()
	r.do(func() {
		r.m.Notice(api.ReasonAccess, "a token is made")
		r.m.Notice(api.ReasonCapped, "node n1 reports more")
		r.m.Notice(api.ReasonAccess, "another token is made")
	})
	if got, want := text(r.said), []string{"1 access a token is made ×1", "2 capped node n1 reports more ×1"}; !slices.Equal(got, want) {
		t.Errorf("notices: %q, want %q", got, want)
	}
}

func TestWaitingNoticesAreTheNewestAndShort(t *testing.T) {
	r := newRig(t, Offer{})
	for range 3 * maxNotices {
		r.pass(noticeEvery + time.Second)
		r.do(func() { r.m.Notice(api.ReasonNoScheduler, strings.Repeat("no", 4000)) })
	}
	got := r.m.Notices()
	if len(got) != maxNotices || got[0].No != 2*maxNotices+1 {
		t.Errorf("%d notices from number %d wait, want %d from %d", len(got), got[0].No, maxNotices, 2*maxNotices+1)
	}
	dropped, times := 0, 0
	for _, n := range got {
		dropped, times = dropped+n.Dropped, times+n.Times
		if len(n.Text) > 1100 {
			t.Errorf("a notice has %d bytes, want about 1 KiB at most", len(n.Text))
		}
	}
	if dropped != 2*maxNotices || times != maxNotices {
		t.Errorf("they count %d dropped and %d others, want %d and %d", dropped, times, 2*maxNotices, maxNotices)
	}
}

// supply returns a Supply of nodes with 4 vCPUs and the given free vCPUs.
func supply(free ...int64) Supply {
	s := Supply{Nodes: len(free)}
	for i, f := range free {
		capacity, left := api.Resources{MilliCPU: 4000, MemoryMB: 4100}, api.Resources{MilliCPU: f, MemoryMB: 4100}
		s.Candidates = append(s.Candidates, sched.Candidate{
			ID: fmt.Sprintf("n%d", i), Level: sched.Nodes, Capacity: capacity, Free: left, Geo: &api.Geo{Lat: 48.1 + float64(i), Lon: 11.6},
			Slots: []sched.Slot{{Runtimes: []string{"container"}, Arch: "amd64", Network: i > 0, Areas: []string{"de"}, Free: left, Largest: left}},
		})
		s.Capacity = s.Capacity.Plus(capacity)
		s.Left = s.Left.Plus(left)
	}
	s.Share = s.Capacity
	return s
}

func TestTheOfferLimitsTheReportedDetail(t *testing.T) {
	s := supply(4000, 3000, 1000)
	full := Offer{}.aggregate(s)
	if full.Nodes != 3 || *full.Overlay != 2 || full.Free.MilliCPU != 8000 || full.Largest.MilliCPU != 4000 || len(full.Slots) != 2 || len(full.Hull) == 0 {
		t.Errorf("in full %+v", full)
	}
	if a := (Offer{Detail: DetailSlots}).aggregate(s); a.Hull != nil || a.Slots[0].Areas[0] != sched.Unreported || a.Unplaced != 3 {
		t.Errorf("by slots %+v, want no place of any node", a)
	}
	if a := (Offer{Detail: DetailSums}).aggregate(s); a.Hull != nil || len(a.Slots) > 0 || a.StdDev != (api.Resources{}) || a.Free.MilliCPU != 8000 {
		t.Errorf("by sums %+v, want sums only", a)
	}
	half := s
	half.Share, half.Left = api.Resources{MilliCPU: 6000, MemoryMB: 6150}, api.Resources{MilliCPU: 2000, MemoryMB: 6150}
	if a := (Offer{Share: 0.5}).aggregate(half); a.Capacity.MilliCPU != 6000 || a.Free.MilliCPU != 2000 || a.Largest.MilliCPU != 2000 || a.Slots[0].Largest.MilliCPU > 2000 {
		t.Errorf("by half %+v, want 6000 of which 2000 are left", a)
	}
	coarse := Offer{Round: 0.5}.aggregate(s)
	if coarse.Free.MilliCPU%2000 != 0 || coarse.Free.MilliCPU < full.Free.MilliCPU || coarse.Mean.MilliCPU%2000 != 0 || coarse.Mean.MilliCPU > full.Mean.MilliCPU {
		t.Errorf("coarsely %+v, want amounts in steps of 2000, free rounded up and the mean down", coarse)
	}
}

// A kind of node has the features that all of its nodes have; the aggregate those that any node has, for
// operators who do not report kinds.
func TestAggregateReportsFeatures(t *testing.T) {
	s := supply(1000, 1000, 1000)
	s.Candidates[1].Slots[0].Features = []string{"health", "health_command"}
	s.Candidates[2].Slots[0].Features = []string{"health"}
	a := Offer{}.aggregate(s)
	var slots []string
	for _, k := range a.Slots {
		slots = append(slots, strings.Join(k.Features, "+"))
	}
	if want := []string{"", "health", "health+health_command"}; !slices.Equal(slots, want) {
		t.Errorf("the features of kinds of nodes are %q, want %q", slots, want)
	}
	for _, detail := range []string{DetailFull, DetailSlots, DetailSums} {
		if a := (Offer{Detail: detail}).aggregate(s); !slices.Equal(a.Features, []string{"health", "health_command"}) {
			t.Errorf("in detail %s the features are %q, want those of any node", detail, a.Features)
		}
	}
}

func TestKindsOfNodesInAnAggregateAreBounded(t *testing.T) {
	s := supply(make([]int64, 2*maxSlots)...)
	for i := range s.Candidates {
		s.Candidates[i].Slots[0].Areas = []string{fmt.Sprint("area", i)}
	}
	a := Offer{}.aggregate(s)
	nodes := 0
	for _, slot := range a.Slots {
		nodes += slot.Nodes
	}
	if len(a.Slots) > maxSlots+2 || nodes != 2*maxSlots {
		t.Errorf("%d kinds of %d nodes are reported, want at most %d of all %d", len(a.Slots), nodes, maxSlots+2, 2*maxSlots)
	}
}

// TestAggregateAgreesWithASimpleTwin: the reference computes mean and deviation in two passes.
func TestAggregateAgreesWithASimpleTwin(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 11))
		var free []api.Resources
		var cands []sched.Candidate
		for range rng.IntN(20) {
			r := api.Resources{MilliCPU: int64(rng.IntN(64_000)) - 1000, MemoryMB: int64(rng.IntN(100_000))}
			cand := sched.Candidate{ID: fmt.Sprint(len(cands)), Free: r, Capacity: r, Slots: []sched.Slot{{Runtimes: []string{"container"}, Arch: "amd64", Free: r, Largest: r}}}
			if rng.IntN(4) == 0 {
				cand.Out = "cordoned"
			} else {
				free = append(free, r.Max(api.Resources{}))
			}
			cands = append(cands, cand)
		}
		part := func(of func(api.Resources) int64) (sum int64, mean, dev float64, most int64) {
			for _, r := range free {
				sum, most = sum+of(r), max(most, of(r))
			}
			if len(free) == 0 {
				return
			}
			mean = float64(sum) / float64(len(free))
			for _, r := range free {
				dev += (float64(of(r)) - mean) * (float64(of(r)) - mean)
			}
			return sum, mean, math.Sqrt(dev / float64(len(free))), most
		}
		a := Offer{}.aggregate(Supply{Candidates: cands, Nodes: len(cands)})
		if a.Nodes != len(free) || len(free) > 0 && (len(a.Slots) != 1 || a.Slots[0].Nodes != len(free)) {
			t.Fatalf("seed %d: %d nodes, slots %+v, want %d", seed, a.Nodes, a.Slots, len(free))
		}
		for name, p := range map[string]struct {
			of                   func(api.Resources) int64
			sum, mean, dev, most int64
		}{
			"cpu":    {func(r api.Resources) int64 { return r.MilliCPU }, a.Free.MilliCPU, a.Mean.MilliCPU, a.StdDev.MilliCPU, a.Largest.MilliCPU},
			"memory": {func(r api.Resources) int64 { return r.MemoryMB }, a.Free.MemoryMB, a.Mean.MemoryMB, a.StdDev.MemoryMB, a.Largest.MemoryMB},
		} {
			sum, mean, dev, most := part(p.of)
			if p.sum != sum || p.most != most || math.Abs(float64(p.mean)-mean) > 1 || math.Abs(float64(p.dev)-dev) > 1 {
				t.Errorf("seed %d, %s: Σ %d/%d μ %d/%g σ %d/%g most %d/%d", seed, name, p.sum, sum, p.mean, mean, p.dev, dev, p.most, most)
			}
		}
	}
}
