package node

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// After a restart of the cluster, a lease may arrive before the desired set of its generation. It
// takes effect when that set has arrived.
func TestLeaseCountsOnceItsGenerationIsHeld(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, exclusive))
	w.pass(0)
	l := w.newestLease()
	l.Gen++
	w.step(Lease{l})
	w.is(api.NodeScheduled)
	w.wants(assignment(1, exclusive))
	w.is(api.Running)
}

func TestNodeWithALeaseAtStakeBeatsTwiceAsOften(t *testing.T) {
	beats := func(change ...func(*api.Microservice)) int {
		w := newWorld(t)
		w.wants(assignment(1, change...))
		w.pass(0)
		w.lease()
		w.all = nil
		w.pass(10 * time.Second)
		return count[wire.Alive](w)
	}
	if plain, leased := beats(), beats(exclusive); plain != 4 || leased < 8 || leased > 9 {
		t.Errorf("%d beats in 10 s, and %d with a lease at stake; want 4 and 8 or 9", plain, leased)
	}
}

// An instance that needs a lease causes a heartbeat at once.
func TestExclusiveInstanceAsksForItsLeaseAtOnce(t *testing.T) {
	w := newWorld(t)
	w.pass(time.Second)
	w.all = nil
	w.wants(assignment(1, exclusive))
	w.pass(0)
	if count[wire.Alive](w) != 1 {
		t.Fatalf("%d signs of life were sent, want 1", count[wire.Alive](w))
	}
	w.lease()
	w.is(api.Running)
}

// An instance is not created under a lease that is about to end. Without exclusive instances the
// cluster did not renew the lease.
func TestExclusiveInstanceDoesNotBeginUnderAnOldLease(t *testing.T) {
	w := newWorld(t)
	w.pass(0)
	w.lease()
	w.pass(4 * time.Second)
	w.wants(assignment(1, exclusive))
	w.is(api.NodeScheduled)
	w.pass(0)
	w.lease()
	w.is(api.Running)
}

func TestRollCallIsAnsweredAtOnce(t *testing.T) {
	w := newWorld(t)
	w.pass(time.Second)
	w.all = nil
	w.step(Lease{wire.Lease{RequestAlive: true}}) // Boot is not checked
	w.pass(0)
	if got := count[wire.Alive](w); got != 1 {
		t.Errorf("%d signs of life, want 1", got)
	}
	if r := last[wire.NodeReport](w); count[wire.NodeReport](w) > 0 && !r.AnswersLease {
		t.Error("the node does not say that it answers")
	}
	w.step(Link{Up: true})
	if !last[wire.NodeReport](w).AnswersLease {
		t.Error("the node does not say that it answers")
	}
}

// The dialer gets each change of the brokers or of Hurry once.
func TestDialerIsToldWhatChanged(t *testing.T) {
	w := newWorld(t)
	w.pass(0)
	told := func() (out []Dial) {
		for _, m := range w.all {
			if d, ok := m.(Dial); ok {
				out = append(out, d)
			}
		}
		return out
	}
	w.wants(assignment(1, exclusive))
	w.pass(10 * time.Second)
	w.wants()
	w.pass(10 * time.Second)
	var hurries []bool
	for _, d := range told() {
		hurries = append(hurries, d.Hurry)
	}
	if !slices.Equal(hurries, []bool{false, true, false}) {
		t.Errorf("told %v, want [false true false]", hurries)
	}
}

// The addresses of the broker are saved before the node reports them to the cluster.
func TestBrokersAreKeptAndAcknowledged(t *testing.T) {
	w := newWorld(t)
	brokers := []string{"mqtts://old:8883", wire.EmbeddedBroker}
	w.gen++
	w.step(Desired{wire.Desired{Gen: w.gen, Brokers: brokers}})
	if r := last[wire.NodeReport](w); r.Info == nil || !slices.Equal(r.Info.Brokers, brokers) {
		t.Fatalf("the node reports %+v, want brokers %v", r.Info, brokers)
	}
	w.all = nil
	w.restart()
	if d := last[Dial](w); !slices.Equal(d.Brokers, brokers) {
		t.Errorf("after a restart it dials %v, want %v", d.Brokers, brokers)
	}
	w.gen++
	w.step(Desired{wire.Desired{Gen: w.gen}}) // a desired set without brokers
	if d := last[Dial](w); !slices.Equal(d.Brokers, brokers) {
		t.Errorf("a set without brokers changed them to %v", d.Brokers)
	}
	w.gen++
	w.step(Desired{wire.Desired{Gen: w.gen, Brokers: make([]string, 1000)}})
	if d := last[Dial](w); len(d.Brokers) != wire.MaxBrokers {
		t.Errorf("it keeps %d brokers, want at most %d", len(d.Brokers), wire.MaxBrokers)
	}
}
