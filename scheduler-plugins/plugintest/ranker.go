package plugintest

import (
	"context"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Ranker is a scheduler that answers questions, in this process or elsewhere.
type Ranker interface {
	Rank(ctx context.Context, ask sched.Ask) sched.Answer
}

func Builtin(p sched.Plugin) Ranker { return builtin{p} }

type builtin struct{ sched.Plugin }

func (b builtin) Rank(_ context.Context, ask sched.Ask) sched.Answer {
	return sched.Answer{Key: ask.Key, Ranked: sched.Place(&ask.Request, ask.Candidates, b.Plugin, ask.Seed).Ranked}
}

// RunRanker checks that the answers of r are valid and repeatable. External schedulers must pass it
// too.
//
//	plugintest.RunRanker(t, scheduler)
func RunRanker(t *testing.T, r Ranker) {
	check := func(name string, property func(t *rapid.T, ask sched.Ask)) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { property(t, Asks().Draw(t, "ask")) })
		})
	}
	answer := func(t *rapid.T, ask sched.Ask) sched.Answer {
		ans := r.Rank(context.Background(), ask)
		if err := sched.Check(&ask, &ans); err != nil {
			t.Fatalf("%v in %+v", err, ans)
		}
		return ans
	}
	check("NamesWhatWasAskedOnceAndByScore", func(t *rapid.T, ask sched.Ask) {
		ranked := answer(t, ask).Ranked
		for i := range ranked {
			if i > 0 && ranked[i].Score > ranked[i-1].Score {
				t.Fatalf("best first: %v", ranked)
			}
		}
		if len(ask.Candidates) > 0 && len(ranked) == 0 {
			t.Fatal("all of the candidates fit, and none was chosen")
		}
	})
	check("TheSameQuestionHasTheSameAnswer", func(t *rapid.T, ask sched.Ask) {
		a, again := answer(t, ask), answer(t, ask)
		if !slices.Equal(a.Ranked, again.Ranked) {
			t.Fatalf("%v and %v", a.Ranked, again.Ranked)
		}
	})
	check("NothingToChooseFromIsNoFault", func(t *rapid.T, ask sched.Ask) {
		ask.Candidates = nil
		if ans := answer(t, ask); len(ans.Ranked) > 0 {
			t.Fatalf("chose %v of nobody", ans.Ranked)
		}
	})
	t.Run("AThousandCandidates", func(t *testing.T) {
		ask := sched.Ask{
			Key: "many", Level: sched.Nodes, Seed: 7, Deadline: time.Minute,
			Request: sched.Request{ID: "acme/a.b.c.d#0", Virtualization: "container", Needs: api.Resources{MilliCPU: 500, MemoryMB: 256}},
		}
		for i := range 1000 {
			c := Node("n"+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)), api.Resources{MilliCPU: 4000, MemoryMB: 8192})
			c.Free.MilliCPU -= int64(i % 3000)
			ask.Candidates = append(ask.Candidates, c)
		}
		ans := r.Rank(t.Context(), ask)
		if err := sched.Check(&ask, &ans); err != nil || len(ans.Ranked) == 0 {
			t.Fatalf("%d ranked, %v", len(ans.Ranked), err)
		}
	})
}

// Asks draws questions whose candidates all fit.
func Asks() *rapid.Generator[sched.Ask] {
	return rapid.Custom(func(t *rapid.T) sched.Ask {
		ask := sched.Ask{
			Key:      rapid.StringMatching(`[a-z]{1,8}#[0-9]`).Draw(t, "key"),
			Level:    rapid.SampledFrom([]sched.Level{sched.Nodes, sched.Clusters}).Draw(t, "level"),
			Request:  Requests().Draw(t, "request"),
			Seed:     rapid.Uint64().Draw(t, "seed"),
			Deadline: time.Minute,
		}
		for _, c := range Candidates().Draw(t, "candidates") {
			if c.Level == ask.Level && Fits(&ask.Request, c) {
				ask.Candidates = append(ask.Candidates, c)
			}
		}
		return ask
	})
}
