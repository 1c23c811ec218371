package follow_test

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/follow"
)

const web, job = api.ServiceID("acme/shop.prod.web.v1"), api.ServiceID("acme/shop.prod.job.v1")

func instance(s api.ServiceID, n int, state api.State, spec api.Revision) api.Instance {
	return api.Instance{ID: s.Instance(n), Service: s, Number: n, State: state, Spec: spec}
}

func TestProgress(t *testing.T) {
	p := follow.New([]api.Service{
		{ID: web, Replicas: 2, SpecRev: 7},
		{ID: job, Replicas: 1, SpecRev: 7, Spec: api.Microservice{OneShot: true}},
	})
	p.SetInstance(instance(web, 0, api.Running, 7))
	p.SetInstance(instance(web, 1, api.Running, 6)) // still the earlier SLA
	p.SetInstance(instance(job, 0, api.Completed, 7))
	p.SetInstance(instance("acme/other.prod.x.v1", 0, api.Running, 7))
	if n, wanted := p.Counts(); n != 2 || wanted != 3 || p.Done() {
		t.Fatalf("%d of %d", n, wanted)
	}
	if b := p.Unsettled(); len(b) != 1 && b[0].ID != web.Instance(1) {
		t.Fatalf("%v", b)
	}
	leaving := instance(web, 1, api.Running, 7)
	leaving.Leaving = true
	if p.SetInstance(leaving); p.Done() {
		t.Fatal("an instance that leaves counts")
	}
	p.DeleteInstance(leaving.ID)
	p.SetInstance(instance(web, 2, api.Running, 8))
	if !p.Done() {
		t.Fatal("not done")
	}
	for i := 3; i < 9; i++ {
		p.SetInstance(instance(web, i, api.Running, 7)) // instances above the wanted number do not count
	}
	if n, wanted := p.Counts(); n != wanted {
		t.Fatalf("%d of %d", n, wanted)
	}
}

func TestUnplacedIsNotMerelyUnfinished(t *testing.T) {
	p := follow.New([]api.Service{{ID: web, Replicas: 3}})
	waits := instance(web, 0, api.Requested, 0)
	waits.Reason = api.ReasonNoCluster
	p.SetInstance(waits)
	p.SetInstance(instance(web, 1, api.Requested, 0))
	failing := instance(web, 2, api.Failed, 0)
	failing.Reason = api.ReasonImageNotFound
	p.SetInstance(failing)
	if u := p.Unplaced(); len(u) != 1 || u[0].ID != waits.ID {
		t.Fatalf("%v", u)
	}
}

func TestAnInstanceThatIsNotReadyIsNotSettled(t *testing.T) {
	p := follow.New([]api.Service{{ID: web, Replicas: 2}})
	starts, fails := instance(web, 0, api.Running, 0), instance(web, 1, api.Running, 0)
	starts.Reason, fails.Reason = api.ReasonNotReady, api.ReasonUnhealthy
	p.SetInstances([]api.Instance{starts, fails})
	if n, _ := p.Counts(); n != 0 || p.Done() || len(p.Unready()) != 2 || len(p.Unsettled()) != 2 {
		t.Errorf("%d settled, unready %v, unsettled %v; want 0 and both", n, p.Unready(), p.Unsettled())
	}
	p.SetInstances([]api.Instance{instance(web, 0, api.Running, 0), instance(web, 1, api.Running, 0)})
	if !p.Done() || len(p.Unready()) != 0 {
		t.Errorf("ready instances: done %v, unready %v; want done and none", p.Done(), p.Unready())
	}
}
