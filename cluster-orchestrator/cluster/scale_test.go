package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/autoscale"
	"github.com/treeline-edge/treeline/internal/wire"
)

const sleepy = api.ServiceID("acme/app.ns.sleepy.ns")

// sleeping returns an instance of a service that sleeps until it is needed.
func sleeping(n int) wire.Assignment {
	zero := 0
	a := addressedAt(n, rr.Next())
	a.Instance = sleepy.Instance(n)
	a.Spec.Scale = &api.Scale{Min: &zero, Max: 3, Connections: 10, IdleTime: 60}
	return a
}

// demandWorld has a client on n0 that is subscribed to a sleeping service with three instances.
func demandWorld(t *testing.T) *world {
	w := netWorld(t, 2)
	w.want[web.Instance(0)] = addressedAt(0, rr)
	for n := range 3 {
		w.want[sleepy.Instance(n)] = sleeping(n)
	}
	w.desire()
	for _, id := range []api.NodeID{"n0", "n1"} {
		w.run(id)
	}
	for n := range 3 {
		if i, _ := w.c.Instance(sleepy.Instance(n)); i.State != api.Dormant || i.Node != "" {
			t.Fatalf("instance %d is %s on %q, want dormant", n, i.State, i.Node)
		}
	}
	return w
}

func (w *world) client() api.NodeID {
	i, _ := w.c.Instance(web.Instance(0))
	return i.Node
}

func (w *world) demand(id api.NodeID, of ...wire.Subscription) {
	n := w.nodes[id]
	n.said++
	w.step(NetUp{id, wire.NetUp{Boot: 1, Seq: n.said, Subscribe: of, Held: w.c.netbook.Held(id), Demand: of}})
}

func awakeIn(w *world) (n int) {
	for i := range 3 {
		if in, _ := w.c.Instance(sleepy.Instance(i)); in.State != api.Dormant {
			n++
		}
	}
	return n
}

func TestAPacketWakesOneInstance(t *testing.T) {
	w := demandWorld(t)
	on := w.client()
	of := wire.Subscription{Address: rr.Next(), For: web}
	if r, ok := w.c.netbook.Route(sleepy); !ok || !r.Asleep {
		t.Fatalf("the route is %+v, want one that is asleep", r)
	}
	w.demand(on, of)
	for range 3 {
		w.demand(on, of)
	}
	if n := awakeIn(w); n != 1 {
		t.Fatalf("%d instances are awake after repeated demands, want 1", n)
	}
	in, _ := w.c.Instance(sleepy.Instance(0))
	if in.Node == "" {
		t.Fatalf("the instance is %s without a node", in.State)
	}
	if r, _ := w.c.netbook.Route(sleepy); len(r.Backends) > 0 || !r.Asleep {
		t.Errorf("while the instance starts the route is %+v, want packets to wait", r)
	}
	w.run(in.Node)
	if r, _ := w.c.netbook.Route(sleepy); len(r.Backends) != 1 || !r.Asleep {
		t.Errorf("the route is %+v, want a backend, and others that sleep", r)
	}
}

// A node may only demand what a service on it may call.
func TestANodeCannotWakeWhatItMayNotReach(t *testing.T) {
	w := demandWorld(t)
	other := api.NodeID("n0")
	if w.client() == other {
		other = "n1"
	}
	for _, of := range []wire.Subscription{
		{Address: rr.Next(), For: web}, {Address: rr.Next(), For: "rival/x.y.z.w"}, {Address: rr.Next()}, {Service: sleepy, For: web},
	} {
		w.demand(other, of)
	}
	if n := awakeIn(w); n > 0 {
		t.Errorf("a node woke %d instances of a service that nothing on it may call", n)
	}
}

func (w *world) load(on api.NodeID, u wire.InstanceUsage) {
	n := w.nodes[on]
	r := n.whole()
	r.Whole, r.Info, r.Observed, r.Usage = false, nil, nil, []wire.InstanceUsage{u}
	w.step(r)
}

func TestAnIdleInstanceSleepsAndOnlyItsNodeMaySay(t *testing.T) {
	w := demandWorld(t)
	w.demand(w.client(), wire.Subscription{Address: rr.Next(), For: web})
	in, _ := w.c.Instance(sleepy.Instance(0))
	w.run(in.Node)
	in, _ = w.c.Instance(sleepy.Instance(0))
	if in.State != api.Running {
		t.Fatalf("the instance is %s", in.State)
	}
	liar := api.NodeID("n0")
	if in.Node == liar {
		liar = "n1"
	}
	key := wire.Key{Instance: in.ID, Epoch: in.Epoch}
	say := func(on api.NodeID, u wire.InstanceUsage, d time.Duration) {
		for end := w.now.Add(d); w.now.Before(end); {
			w.pass(5 * time.Second)
			w.load(on, u)
		}
	}
	say(liar, wire.InstanceUsage{Key: key, Idle: time.Hour}, 3*time.Minute)
	say(in.Node, wire.InstanceUsage{Key: key, Idle: -1}, 2*time.Minute)
	say(in.Node, wire.InstanceUsage{Key: wire.Key{Instance: in.ID, Epoch: in.Epoch - 1}, Idle: time.Hour}, 2*time.Minute)
	if n := awakeIn(w); n != 1 {
		t.Fatalf("%d instances are awake, want 1 that is not known to be idle", n)
	}
	say(in.Node, wire.InstanceUsage{Key: key, Idle: time.Hour}, time.Minute)
	if got, _ := w.c.Instance(in.ID); got.State != api.Dormant || got.Reason != api.ReasonIdle || got.Detail != "idle for 1m0s" {
		t.Errorf("the idle instance is %s, %s, %q", got.State, got.Reason, got.Detail)
	}
	w.run(in.Node)
	w.demand(w.client(), wire.Subscription{Address: rr.Next(), For: web})
	if n := awakeIn(w); n != 1 {
		t.Errorf("the next packet woke %d instances, want 1", n)
	}
}

// Load that a node invents wakes at most what the root assigned.
func TestInventedLoadStaysWithinWhatTheRootAssigned(t *testing.T) {
	w := demandWorld(t)
	w.demand(w.client(), wire.Subscription{Address: rr.Next(), For: web})
	for range 60 {
		for n := range 3 {
			if in, _ := w.c.Instance(sleepy.Instance(n)); in.Node != "" {
				w.run(in.Node)
				w.load(in.Node, wire.InstanceUsage{Key: wire.Key{Instance: in.ID, Epoch: in.Epoch}, Connections: 1 << 30, MilliCPU: 1 << 19})
			}
		}
		w.pass(5 * time.Second)
	}
	if n := awakeIn(w); n != 3 {
		t.Errorf("%d instances are awake, want the 3 that were assigned", n)
	}
}

func TestDormantInstancesSurviveARestart(t *testing.T) {
	w := demandWorld(t)
	w.demand(w.client(), wire.Subscription{Address: rr.Next(), For: web})
	before := awakeIn(w)
	w.restart()
	if n := awakeIn(w); n != before {
		t.Errorf("%d instances are awake after a restart, want %d", n, before)
	}
	if r, ok := w.c.netbook.Route(sleepy); !ok || !r.Asleep {
		t.Errorf("the route is %+v after a restart, want one that is asleep", r)
	}
}

// expressions returns those that the core wants evaluated, if the last step changed them.
func (w *world) expressions() (all autoscale.Queries) {
	for _, e := range w.last.Send {
		if e.To == ToPrometheus {
			all = e.Msg.(autoscale.Queries)
		}
	}
	return all
}

func TestTheValueOfAnExpressionWakesInstances(t *testing.T) {
	w := newWorld(t, 2)
	w.cfg.Prometheus = true
	w.restart()
	w.beat()
	zero, no := 0, 0
	m := spec(1, 64)
	m.Scale = &api.Scale{Min: &zero, Max: 3, Prometheus: &api.QueryGoal{Query: "sum(jobs)", Target: 10}, StabilisationDown: &no}
	w.wants(assignment(0, 1, m), assignment(1, 1, m), assignment(2, 1, m))
	query := w.expressions()
	if len(query) != 1 || query[web] != "sum(jobs)" {
		t.Fatalf("it wants %v evaluated", query)
	}
	awake := func() (n int) {
		for _, in := range w.c.Instances() {
			if in.State == api.Running {
				n++
			}
		}
		return n
	}
	value := func(v float64, fault string) {
		for range 4 {
			w.step(Queried{Service: web, Query: "sum(jobs)", Value: v, Fault: fault})
			w.pass(15 * time.Second)
		}
	}
	value(25, "")
	if n := awake(); n != 3 {
		t.Errorf("%d instances run for a value of 25 at 10 each, want 3", n)
	}
	value(0, "the server\x1b[2J is away")
	in := w.at(0)
	why, _ := w.c.Why(in.ID)
	if n := awake(); n != 3 || why.Scale == nil || !strings.Contains(why.Scale.Fault, "is away") {
		t.Errorf("without a value %d instances run, want 3 as before; %+v", n, why.Scale)
	}
	if o, _ := w.c.place.Observed(web.Instance(0)); !strings.Contains(o.ScaleFault, "is away") {
		t.Errorf("the root is told %q", o.ScaleFault)
	}
	w.drops(web.Instance(0), web.Instance(1), web.Instance(2))
	for range 5 {
		w.beat()
	}
	if got, _ := w.c.scale.Queries(); len(got) > 0 {
		t.Errorf("a removed service leaves %v", got)
	}
}

// A cluster without a server takes no such service, whatever its nodes announce.
func TestAClusterWithoutPrometheusAnnouncesNoExpressions(t *testing.T) {
	w := newWorld(t, 1)
	w.describes("n0", func(info *api.NodeInfo) { info.Features = []string{api.FeatureScale, api.FeaturePrometheus} })
	m := spec(1, 64)
	m.Scale = &api.Scale{Max: 2, Prometheus: &api.QueryGoal{Query: "up", Target: 1}}
	w.wants(assignment(0, 1, m))
	w.beat()
	ex, _ := w.c.Why(web.Instance(0))
	if in := w.at(0); in.Node != "" || len(ex.Causes) != 1 || !strings.Contains(ex.Causes[0].Detail, "Prometheus") {
		t.Errorf("it is %s on %q: %+v", in.State, in.Node, ex)
	}
}
