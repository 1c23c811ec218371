// Package plugintest is the test suite of scheduler plugins. A plugin's test is one line:
//
//	plugintest.Run(t, rom.Plugin{})
package plugintest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Run checks that placement with p is safe, repeatable and complete.
func Run(t *testing.T, p sched.Plugin) {
	if p.Name() == "" {
		t.Fatal("a plugin has a name, by which it is chosen")
	}
	check := func(name string, property func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64)) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				req := Requests().Draw(t, "request")
				cs := Candidates().Draw(t, "candidates")
				property(t, &req, cs, rapid.Uint64().Draw(t, "seed"))
			})
		})
	}
	check("NeverPicksWhatDoesNotFit", func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64) {
		for _, choice := range sched.Place(req, cs, p, seed).Ranked {
			if c := byID(cs, choice.ID); !Fits(req, c) {
				t.Fatalf("%+v does not fit %+v", *req, c)
			}
		}
	})
	check("EveryCandidateIsRankedOrRejectedOnce", func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64) {
		res := sched.Place(req, cs, p, seed)
		seen := map[string]int{}
		for _, c := range res.Ranked {
			seen[c.ID]++
		}
		for _, r := range res.Rejected {
			seen[r.Candidate]++
			if Fits(req, byID(cs, r.Candidate)) {
				t.Fatalf("%s fits and was rejected for %s", r.Candidate, r.Constraint)
			}
			if r.Constraint == "" || r.Shortfall <= 0 || math.IsNaN(r.Shortfall) {
				t.Fatalf("a rejection says why and by how much: %+v", r)
			}
		}
		for _, c := range cs {
			if seen[c.ID] != 1 {
				t.Fatalf("%s appears %d times", c.ID, seen[c.ID])
			}
		}
		if len(seen) != len(cs) {
			t.Fatalf("%d answers for %d candidates", len(seen), len(cs))
		}
	})
	check("SameSeedSameAnswerInAnyOrder", func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64) {
		turned := slices.Clone(cs)
		slices.Reverse(turned)
		a, b := sched.Place(req, cs, p, seed).Ranked, sched.Place(req, turned, p, seed).Ranked
		if !slices.Equal(a, b) {
			t.Fatalf("%v and %v", a, b)
		}
	})
	check("RankingIsByScore", func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64) {
		ranked := sched.Place(req, cs, p, seed).Ranked
		for i := range ranked {
			if math.IsNaN(ranked[i].Score) || i > 0 && ranked[i].Score > ranked[i-1].Score {
				t.Fatalf("%v", ranked)
			}
		}
	})
	check("AnotherCandidateNeverHarms", func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64) {
		before := sched.Place(req, cs, p, seed)
		more := Candidate("one-more").Draw(t, "one more")
		after := sched.Place(req, append(slices.Clone(cs), more), p, seed)
		if len(after.Ranked) < len(before.Ranked) {
			t.Fatalf("%d fitted, with %+v only %d do", len(before.Ranked), more, len(after.Ranked))
		}
	})
	check("BestIsTheFirst", func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64) {
		ranked := sched.Place(req, cs, p, seed).Ranked
		best, ok := sched.PlaceBest(req, cs, p, seed)
		if ok != (len(ranked) > 0) || ok && best != ranked[0] {
			t.Fatalf("best is %v %v, ranked %v", best, ok, ranked)
		}
	})
	check("TheTableAnswersAlike", func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64) {
		var table sched.Table
		now := map[string]sched.Candidate{}
		for _, c := range cs {
			table.Put(c)
			now[c.ID] = c
		}
		for range rapid.IntRange(0, 8).Draw(t, "changes") {
			id := rapid.SampledFrom(ids).Draw(t, "id")
			switch rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				table.Drop(id)
				delete(now, id)
			case 1:
				now[id] = Candidate(id).Draw(t, id)
				table.Put(now[id])
			case 2: // what changes most often
				if c, ok := now[id]; ok {
					c.Free, c.Load = resources(t, "free", -500), c.Load+1
					now[id] = c
					table.Put(c)
				}
			}
			all := slices.Collect(maps.Values(now))
			want, ok := sched.PlaceBest(req, all, p, seed)
			if got, found := table.Best(req, p, seed); found != ok || got != want {
				t.Fatalf("best is %v %v, in the table %v %v", want, ok, got, found)
			}
			if got, want := table.Place(req, p, seed), sched.Place(req, all, p, seed); !slices.Equal(got.Ranked, want.Ranked) || len(got.Rejected) != len(want.Rejected) {
				t.Fatalf("ranked %v, in the table %v", want, got)
			} else if most := rapid.IntRange(1, 3).Draw(t, "most"); !slices.Equal(table.Top(req, p, seed, most), want.Ranked[:min(most, len(want.Ranked))]) {
				t.Fatalf("ranked %v, the first %d in the table %v", want.Ranked, most, table.Top(req, p, seed, most))
			}
			if c := table.Get(id); (c != nil) != (now[id].ID != "") || len(table.All()) != len(now) {
				t.Fatalf("the table has %v of %s, and %d of %d", c, id, len(table.All()), len(now))
			}
		}
	})
	check("ExplanationsSum", func(t *rapid.T, req *sched.Request, cs []sched.Candidate, seed uint64) {
		res := sched.Place(req, cs, p, seed)
		ex := sched.Explain(res)
		sum := 0
		for _, cause := range ex.Causes {
			sum += cause.Count
			if cause.Count <= 0 || cause.Constraint == "" {
				t.Fatalf("%+v", cause)
			}
		}
		if sum != len(cs) || ex.Considered != len(cs) || (ex.Nearest != nil) != (len(res.Rejected) > 0) {
			t.Fatalf("%d of %d, %+v", sum, len(cs), ex)
		}
	})
	t.Run("AsRanker", func(t *testing.T) { RunRanker(t, Builtin(p)) })
	t.Run("EqualCandidatesShareABurst", func(t *testing.T) {
		var cs []sched.Candidate
		for i := range 8 {
			cs = append(cs, Node(fmt.Sprintf("n%d", i), api.Resources{MilliCPU: 4000, MemoryMB: 4096}))
		}
		got := map[string]int{}
		req := sched.Request{Virtualization: "container"}
		for i := range 800 {
			best, _ := sched.PlaceBest(&req, cs, p, sched.SeedOf("burst", i))
			got[best.ID]++
		}
		for _, c := range cs {
			if got[c.ID] < 50 || got[c.ID] > 200 {
				t.Fatalf("equal candidates are to share evenly: %v", got)
			}
		}
	})
}

func byID(cs []sched.Candidate, id string) sched.Candidate {
	return cs[slices.IndexFunc(cs, func(c sched.Candidate) bool { return c.ID == id })]
}
