package root

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// asking returns a world whose root asks an external scheduler.
func asking(t *testing.T, clusters ...api.ClusterID) *world {
	w := newWorld(t)
	w.cfg.Asks = "http://brain"
	w.restart()
	for _, id := range clusters {
		w.join(id, 200)
	}
	return w
}

func (w *world) asked() (out []sched.Ask) {
	for _, e := range w.last.Send {
		if e.To == wire.ToScheduler {
			out = append(out, e.Msg.(sched.Ask))
		}
	}
	return out
}

func TestTheExternalSchedulersChoiceIsUsed(t *testing.T) {
	w := asking(t, "a", "b", "c")
	w.apply(1)
	asks := w.asked()
	if len(asks) != 1 || len(asks[0].Candidates) != 3 || asks[0].Level != sched.Clusters || asks[0].Deadline != 5*time.Second || asks[0].Request.ID != string(web.Instance(0)) {
		t.Fatalf("it is asked %+v", asks)
	}
	for _, choice := range []string{"a", "b", "c"} {
		w := asking(t, "a", "b", "c")
		w.apply(1)
		w.must(Ranked{sched.Answer{Key: w.asked()[0].Key, Ranked: []sched.Choice{{ID: choice, Score: 7}}}})
		if w.on(api.ClusterID(choice)) != 1 || w.instance(0).Placements[0].Score != 7 {
			t.Errorf("it said %s", choice)
		}
		w.checkBooks()
	}
}

func TestTheBuiltInPluginDecidesIfTheExternalSchedulerFails(t *testing.T) {
	for name, c := range map[string]struct {
		answer *sched.Answer
		says   string
	}{
		"says nothing":          {nil, "no answer within 5s"},
		"names nobody":          {&sched.Answer{}, "it names no candidate"},
		"crashed":               {&sched.Answer{Error: "exit status 2"}, "exit status 2"},
		"names what is unknown": {&sched.Answer{Ranked: []sched.Choice{{ID: "a"}, {ID: "zz"}}}, `the answer names "zz", which is no candidate`},
		"babbles":               {&sched.Answer{Error: strings.Repeat("no", 4000)}, "nono"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := c.answer
			w := asking(t, "a", "b")
			w.apply(1)
			key := w.asked()[0].Key
			if answer == nil {
				w.now = w.now.Add(6 * time.Second)
				w.must(Tick{})
			} else {
				answer.Key = key
				w.must(Ranked{*answer})
			}
			if w.instance(0).Cluster == "" {
				t.Error("it is nowhere")
			}
			var told []api.Event
			for _, e := range w.c.Events(eventlog.Filter{Instance: web.Instance(0)}) {
				if e.Reason == api.ReasonNoScheduler {
					told = append(told, e)
				}
			}
			if len(told) != 1 || told[0].Kind != "instance" || told[0].Object != web.Instance(0).Name() || len(told[0].Detail) > 1100 ||
				!strings.HasPrefix(told[0].Detail, "scheduler http://brain: "+c.says) || !strings.HasSuffix(told[0].Detail, "; rom decides") {
				t.Errorf("told %+v", told)
			}
			at := w.instance(0).Cluster
			w.must(Ranked{sched.Answer{Key: key, Ranked: []sched.Choice{{ID: "b"}, {ID: "a"}}}})
			if w.instance(0).Cluster != at {
				t.Error("a late answer counts")
			}
		})
	}
}

// The resources may be taken between the question and the answer.
func TestAnswerIsCheckedAgain(t *testing.T) {
	w := asking(t, "a", "b")
	w.twins["a"].room = 1
	w.settle()
	w.apply(2)
	asks := w.asked()
	for _, a := range asks {
		w.must(Ranked{sched.Answer{Key: a.Key, Ranked: []sched.Choice{{ID: "a"}, {ID: "b"}}}})
	}
	if w.on("a") != 1 || w.on("b") != 1 {
		t.Errorf("%d on a, %d on b", w.on("a"), w.on("b"))
	}
	w.checkBooks()
}

func TestFewQuestionsAreOpenAtOnceTheMostUrgentFirst(t *testing.T) {
	w := asking(t, "a", "b")
	w.apply(100)
	open := w.asked()
	if len(open) != 64 {
		t.Fatalf("%d are open, want 64 of open", len(open))
	}
	urgent := application(1, func(m *api.Microservice) { m.Priority = "urgent" })
	urgent.Name = "now"
	w.must(Apply{Tenant: "acme", Spec: urgent})
	w.must(Ranked{sched.Answer{Key: open[0].Key, Ranked: []sched.Choice{{ID: "a"}}}})
	next := w.asked()
	if len(next) != 1 || !strings.Contains(next[0].Request.ID, "now.") {
		t.Fatalf("then it is asked %+v, want 1 of next, a text with 'now.'", next)
	}
	open = append(open[1:], next...)
	var keys []string
	for len(open) > 0 {
		keys = append(keys, open[0].Key)
		w.must(Ranked{sched.Answer{Key: open[0].Key, Ranked: []sched.Choice{{ID: "a"}, {ID: "b"}}}})
		open = append(open[1:], w.asked()...)
	}
	for _, in := range w.c.Instances("") {
		if in.Cluster == "" {
			t.Errorf("%s is nowhere", in.ID)
		}
	}
	for _, key := range keys {
		if id, open := w.c.placement.Question(key); open {
			t.Errorf("the question about %s is left", id)
		}
	}
	if left, waits := w.c.placement.NextUnasked(); waits {
		t.Errorf("%s is still to be asked about", left)
	}
	w.checkBooks()
}

func TestQuestionEndsWithItsInstance(t *testing.T) {
	w := asking(t, "a")
	w.apply(100)
	key := w.asked()[0].Key
	w.must(DeleteApp{App: shop})
	if id, open := w.c.placement.Question(key); open {
		t.Errorf("the question about %s is left", id)
	}
	if left, waits := w.c.placement.NextUnasked(); waits {
		t.Errorf("%s is still to be asked about", left)
	}
	w.must(Ranked{sched.Answer{Key: key, Ranked: []sched.Choice{{ID: "a"}}}})
	w.checkBooks()
}

func TestQuestionsAreAskedAnewAfterARestart(t *testing.T) {
	w := asking(t, "a")
	w.apply(1)
	old := w.asked()[0].Key
	w.restart()
	w.must(Ranked{sched.Answer{Key: old, Ranked: []sched.Choice{{ID: "a"}}}})
	tw := w.twins["a"]
	tw.run()
	w.do(tw.report())
	asks := w.asked()
	if len(asks) != 1 || asks[0].Key == old {
		t.Fatalf("the requests to the scheduler are %+v, want one with a new key", asks)
	}
	w.must(Ranked{sched.Answer{Key: asks[0].Key, Ranked: []sched.Choice{{ID: "a"}}}})
	if w.on("a") != 1 {
		t.Error("it is nowhere")
	}
}

// Waiting instances are placed by urgency, then in the order of arrival.
func TestUrgentInstanceOvertakesTheQueue(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].room = 0
	w.settle()
	var want []api.InstanceID
	for _, p := range []string{"low", "", "high", "urgent", "normal"} {
		app := application(1, func(m *api.Microservice) { m.Priority = p })
		app.Name = "p" + p
		w.must(Apply{Tenant: "acme", Spec: app})
		want = append(want, api.InstanceID("acme/p"+p+".prod.web.prod#0"))
	}
	for n, i := range []int{3, 2, 1, 4, 0} {
		w.twins["a"].room = n + 1
		w.settle()
		if w.where(want[i]) != "a" || w.on("a") != n+1 {
			t.Fatalf("of place %d: %s is on %q, %d are on a", n, want[i], w.where(want[i]), w.on("a"))
		}
	}
}

func TestUrgentServicesOfOneDocumentComeFirst(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].room = 1
	w.settle()
	app := application(1)
	second := app.Services[0]
	second.Name, second.Priority = "db", "urgent"
	app.Services = append(slices.Clip(app.Services), second)
	w.must(Apply{Tenant: "acme", Spec: app})
	if w.where("acme/shop.prod.db.prod#0") != "a" || w.where(web.Instance(0)) != "" {
		t.Error("the document's order counts")
	}
}

// A new SLA cancels an open question to the external scheduler.
func TestNewSLAVoidsTheOpenQuestion(t *testing.T) {
	w := newWorld(t)
	w.cfg.Asks = "http://brain"
	w.c = New(w.cfg)
	w.do(Start{})
	w.join("a", 10)
	w.apply(1)
	first := w.asked()
	w.apply(1, code("new"))
	second := w.asked()
	if len(first) != 1 || len(second) != 1 || first[0].Key == second[0].Key {
		t.Fatalf("asked %+v and then %+v", first, second)
	}
	if _, open := w.c.placement.Question(first[0].Key); open {
		t.Error("the question about the old SLA is open")
	}
	w.checkBooks()
}
