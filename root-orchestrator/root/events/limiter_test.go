package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
)

// root uses a log and a limiter like the root's core.
type root struct {
	log     *eventlog.Log
	limiter *Limiter
	now     time.Time
	seq     api.Revision
	written int
}

func newRoot(capacity int, clusters ...api.ClusterID) *root {
	r := &root{log: eventlog.NewLog(capacity), limiter: NewLimiter(capacity), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for _, id := range clusters {
		r.limiter.AddCluster(id)
	}
	return r
}

func (r *root) write(e api.Event) {
	r.seq++
	r.written++
	e.Seq = r.seq
	r.log.Add(e)
}

// pass advances the clock and writes the events that are due.
func (r *root) pass(d time.Duration) {
	for end := r.now.Add(d); ; {
		at := r.limiter.Next()
		if at.IsZero() || at.After(end) {
			r.now = end
			return
		}
		r.now = at
		for _, e := range r.limiter.Due(r.now) {
			r.write(e)
		}
	}
}

// host assigns n instances of a tenant's service to a cluster.
func (r *root) host(id api.ClusterID, tenant api.Tenant, n int) (out []api.InstanceID) {
	for i := range n {
		r.limiter.Assigned(r.now, id, tenant, 1)
		out = append(out, tenant.App("shop", "prod").Service("web", "prod").Instance(i))
		r.limiter.AddInstance(out[i])
	}
	r.limiter.Hosted(r.now, id, n)
	return out
}

// report makes a cluster report a state of instances.
func (r *root) report(id api.ClusterID, s api.State, which ...api.InstanceID) {
	for _, in := range which {
		e := api.Event{Tenant: in.Tenant(), Kind: "instance", Object: in.Name(), Instance: in, Cluster: id, State: s}
		if r.limiter.Allow(r.now, id, e) {
			r.write(e)
		}
	}
}

// flood makes instances alternate between two states, ten times a second.
func (r *root) flood(id api.ClusterID, d time.Duration, which ...api.InstanceID) {
	for i := range int(d / (100 * time.Millisecond)) {
		r.pass(100 * time.Millisecond)
		r.report(id, []api.State{api.Failed, api.Running}[i%2], which...)
	}
}

// left returns how many events a summary says were omitted.
func left(e api.Event) (n int) {
	if _, more, ok := strings.Cut(e.Detail, " … and "); ok {
		fmt.Sscan(more, &n)
	}
	if strings.Contains(e.Detail, "events were left out") {
		fmt.Sscan(e.Detail, &n)
	}
	return n
}

func TestEventsOfAFlappingInstanceAreSummedUp(t *testing.T) {
	r := newRoot(4096, "a")
	one := r.host("a", "acme", 1)[0]
	const minutes = 5
	flips := 0
	for ; flips < minutes*60*20+1; flips++ {
		r.pass(50 * time.Millisecond)
		r.report("a", []api.State{api.Failed, api.Running}[flips%2], one)
	}
	if most := perInstance * (minutes + 2); r.written > most || r.written < most/2 {
		t.Errorf("%d changes wrote %d events, want %d to %d", flips, r.written, most/2, most)
	}
	r.pass(period)
	all := r.log.List(eventlog.Filter{Instance: one})
	counted := 0
	for _, e := range all {
		counted += 1 + left(e)
	}
	if last := all[len(all)-1]; counted != flips || last.State != api.Failed {
		t.Errorf("events stand for %d changes and end with %+v, want %d changes that end with a failure", counted, last, flips)
	}
}

func TestAllEventsAboveAClustersLimitAreCounted(t *testing.T) {
	r := newRoot(1<<20, "a")
	const events = 50_000
	for i := range events { // each about another instance
		r.pass(10 * time.Millisecond)
		r.report("a", api.Failed, api.ServiceID("acme/shop.prod.web.prod").Instance(i))
	}
	if most := perCluster * (events/6000 + 2); r.written > most {
		t.Errorf("%d events were written, want at most %d", r.written, most)
	}
	r.pass(2 * period)
	counted, summaries := 0, 0
	for _, e := range r.log.List(eventlog.Filter{}) {
		counted += max(1, left(e))
		if e.Kind == "cluster" {
			summaries++
		} else if left(e) > 0 {
			counted++
		}
	}
	if counted != events || summaries == 0 {
		t.Errorf("events stand for %d, of which %d sum up what cluster a caused, want %d and at least one", counted, summaries, events)
	}
}

func TestABurstOfDistinctChangesIsWrittenWhole(t *testing.T) {
	const instances = 200
	r := newRoot(4096, "a")
	mine := r.host("a", "acme", instances)
	for _, s := range []api.State{api.Failed, api.NodeScheduled, api.Created, api.Running} {
		r.pass(time.Second)
		r.report("a", s, mine...)
	}
	// Events about the end of removed instances are still written.
	r.pass(period)
	for range mine {
		r.limiter.Assigned(r.now, "a", "acme", -1)
	}
	r.limiter.Hosted(r.now, "a", 0)
	r.report("a", api.Terminated, mine...)
	if want := 5 * instances; r.written != want {
		t.Errorf("%d events were written, want %d", r.written, want)
	}
}

func TestEventsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	r := newRoot(300, "a")
	loud, quiet := r.host("a", "loud", 20), r.host("a", "quiet", 2)
	r.limiter.Hosted(r.now, "a", 22)
	r.report("a", api.Running, quiet...)
	before := r.ofTenant("quiet")
	r.flood("a", 3*time.Minute, loud...)
	if most := 4 * (perCluster + perHosted*22); r.written > most || r.written < 300 {
		t.Errorf("a flood wrote %d events, want 300 to %d", r.written, most)
	}
	if got := r.ofTenant("quiet"); fmt.Sprint(got) != fmt.Sprint(before) {
		t.Fatalf("the other tenant has the events\n%v, want\n%v", got, before)
	}
	for _, s := range []api.State{api.Failed, api.NodeScheduled, api.Created, api.Running} {
		r.flood("a", 2*time.Second, loud...)
		r.report("a", s, quiet...)
	}
	if got := r.ofTenant("quiet")[len(before):]; len(got) != 8 {
		t.Errorf("the other tenant has %d new events, want 8: %v", len(got), got)
	}
	r.pass(period)
	summed := 0
	for _, e := range r.ofTenant("loud") {
		if strings.Contains(e.Detail, "more events of instances of tenant loud on cluster a") {
			summed++
		}
	}
	if summed == 0 {
		t.Error("no event says that events of the tenant were left out")
	}
}

func TestEventsOfRemovedObjectsAreNotLimited(t *testing.T) {
	r := newRoot(4096, "a")
	one := r.host("a", "acme", 1)[0]
	for range 2 * perInstance {
		r.report("a", api.Failed, one)
	}
	if r.written != perInstance {
		t.Errorf("%d events were written at once, want %d", r.written, perInstance)
	}
	r.limiter.RemoveInstance(one)
	r.report("a", api.Terminated, one)
	if r.written != perInstance+1 {
		t.Errorf("the end of a removed instance is not written")
	}
	r.limiter.AddInstance(one)
	for range 2 * perInstance {
		r.report("a", api.Failed, one)
	}
	r.written = 0
	r.limiter.RemoveCluster("a")
	r.pass(period)
	if r.written != 1 {
		t.Errorf("%d events were written after the cluster was removed, want one that sums up the rest", r.written)
	}
}

func (r *root) ofTenant(t api.Tenant) []api.Event {
	return slices.DeleteFunc(r.log.List(eventlog.Filter{}), func(e api.Event) bool { return e.Tenant != t })
}
