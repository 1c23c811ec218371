package node

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func withFile(m *api.Microservice) {
	m.Files = []api.File{{Path: "/etc/db", Secret: "db"}}
}

func values(version uint64) []wire.ValueRef {
	return []wire.ValueRef{{Kind: api.KindSecret, Name: "db", Version: version, Digest: "d"}}
}

func wanting(version uint64, change ...func(*api.Microservice)) wire.Assignment {
	a := assignment(1, append(change, withFile)...)
	a.Values = values(version)
	return a
}

func TestNewValuesUpdateARunningWorkload(t *testing.T) {
	w := newWorld(t)
	w.wants(wanting(1))
	w.is(api.Running)
	if o := last[wire.CreateWorkload](w); !slices.Equal(o.Values, values(1)) {
		t.Errorf("created with %v, want version 1", o.Values)
	}
	w.wants(wanting(2))
	if n := count[wire.UpdateFiles](w); n != 1 {
		t.Fatalf("%d orders to update files, want 1", n)
	}
	if o := last[wire.UpdateFiles](w); !slices.Equal(o.Values, values(2)) || len(o.Spec.Files) != 1 {
		t.Errorf("updated to %+v, want version 2 of one file", o)
	}
	if in := w.is(api.Running); in.Restarts > 0 || count[wire.StopWorkload](w) > 0 {
		t.Error("the workload was restarted, want it to run on")
	}
	// The engine may have ended before it carried the order out.
	w.restart()
	if n := count[wire.UpdateFiles](w); n != 2 {
		t.Errorf("%d orders to update files after a restart, want another one", n)
	}
	w.exit(web, 1)
	w.pass(2 * time.Second)
	w.is(api.Running)
	if o := last[wire.CreateWorkload](w); !slices.Equal(o.Values, values(2)) || o.Attempt != 1 {
		t.Errorf("created again as %+v, want version 2", o)
	}
}

func TestMissingFilesAreTriedAgainWithNewValues(t *testing.T) {
	w := newWorld(t)
	w.slow = true
	w.wants(wanting(1))
	fail := func() {
		o := last[wire.CreateWorkload](w)
		w.step(Workload{wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadFailed, Reason: api.ReasonNoFiles, Detail: "secret db does not exist"}})
	}
	for range 4 {
		fail()
		w.is(api.Failed)
		w.pass(time.Minute)
	}
	fail()
	before := count[wire.CreateWorkload](w)
	w.wants(wanting(2))
	w.pass(time.Millisecond)
	if n := count[wire.CreateWorkload](w); n != before+1 {
		t.Errorf("%d creations after the new version arrived, want one at once", n-before)
	}
}

func TestMissingFilesDoNotSpendAttempts(t *testing.T) {
	w := newWorld(t)
	w.slow = true
	w.wants(wanting(1, oneShot))
	for range 20 {
		o := last[wire.CreateWorkload](w)
		w.step(Workload{wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadFailed, Reason: api.ReasonNoFiles}})
		w.pass(2 * time.Minute)
	}
	if in := w.c.Instances()[0]; in.Failures > 0 || api.Ended(in.State, in.Reason) {
		t.Errorf("the one-shot is %s with %d failures, want it to wait for its files", in.Standing(), in.Failures)
	}
}

func TestFilesOfAnEndedOneShotAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.wants(wanting(1, oneShot))
	w.exit(web, 0)
	w.is(api.Completed)
	if o := last[wire.UpdateFiles](w); count[wire.UpdateFiles](w) != 1 || len(o.Spec.Files) > 0 {
		t.Errorf("the last order is %+v, want one to delete the files", o)
	}
}

func TestAnAccountOfARegistryIsTriedAtOnce(t *testing.T) {
	account := func(version uint64) wire.Assignment {
		a := assignment(1)
		a.Values = []wire.ValueRef{{Kind: api.KindSecret, Name: "pull", Version: version, Digest: "d", Registry: "registry.example"}}
		return a
	}
	w := newWorld(t)
	w.slow = true
	w.wants(account(1))
	o := last[wire.CreateWorkload](w)
	w.step(Workload{wire.WorkloadEvent{Key: o.Key, Phase: wire.WorkloadFailed, Reason: api.ReasonImageDenied}})
	w.wants(account(2))
	w.pass(time.Millisecond)
	if o := last[wire.CreateWorkload](w); o.Attempt != 1 || o.Values[0].Version != 2 {
		t.Errorf("the last creation is %+v, want another with version 2", o)
	}
	if n := count[wire.UpdateFiles](w); n > 0 {
		t.Errorf("%d orders to update files of a service without files", n)
	}
}
