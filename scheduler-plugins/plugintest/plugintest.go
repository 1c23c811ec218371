// Package plugintest is what every scheduler plugin must pass, whatever it
// prefers. A new plugin's test is one line:
//
//	plugintest.Run(t, rom.Plugin{})
package plugintest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Run checks that placing with p is safe, repeatable and complete.
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
		more := candidate("one-more").Draw(t, "one more")
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

// Fits is the plain twin of sched's filters: a room answers all that is asked.
func Fits(req *sched.Request, c sched.Candidate) bool {
	among := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	only := req.Nodes
	if c.Level == sched.Clusters {
		only = req.Clusters
	}
	if c.Out != "" || slices.Contains(req.Avoid, c.ID) || !among(only, c.ID) {
		return false
	}
	return slices.ContainsFunc(c.Rooms, func(r sched.Room) bool {
		enough := func(need, largest, free, all int64) bool {
			return need == 0 || need <= largest && need <= free && need <= all
		}
		return (r.Privileged || !req.Privileged) &&
			slices.Contains(r.Runtimes, req.Virtualization) && among(req.Arch, r.Arch) &&
			enough(req.Needs.MilliCPU, r.Largest.MilliCPU, r.Free.MilliCPU, c.Free.MilliCPU) &&
			enough(req.Needs.MemoryMB, r.Largest.MemoryMB, r.Free.MemoryMB, c.Free.MemoryMB)
	})
}

// Node is an idle amd64 node that runs containers.
func Node(id string, capacity api.Resources) sched.Candidate {
	return sched.Candidate{
		ID: id, Level: sched.Nodes, Capacity: capacity, Free: capacity,
		Rooms: []sched.Room{{
			Runtimes: []string{"container"}, Arch: "amd64", Free: capacity, Largest: capacity,
		}},
	}
}

var (
	runtimes = []string{"container", "process", "runsc"}
	arches   = []string{"amd64", "arm64"}
	ids      = []string{"c0", "c1", "c2", "c3", "c4", "c5"}
)

// Requests draws requests, some with every kind of constraint.
func Requests() *rapid.Generator[sched.Request] {
	return rapid.Custom(func(t *rapid.T) sched.Request {
		return sched.Request{
			ID:             "acme/a.b.c.d#0",
			Needs:          resources(t, "needs", 0),
			Virtualization: rapid.SampledFrom(runtimes).Draw(t, "virtualization"),
			Arch:           some(arches, 1).Draw(t, "arch"),
			Privileged:     rapid.IntRange(0, 4).Draw(t, "privileged") == 0,
			Clusters:       some(ids, 3).Draw(t, "clusters"),
			Nodes:          some(ids, 3).Draw(t, "nodes"),
			Avoid:          some(ids, 2).Draw(t, "avoid"),
			Peers:          rapid.MapOf(rapid.SampledFrom(ids), rapid.IntRange(0, 3)).Draw(t, "peers"),
		}
	})
}

// Candidates draws up to 6 candidates with distinct ids, good, bad, full and booked over.
func Candidates() *rapid.Generator[[]sched.Candidate] {
	return rapid.Custom(func(t *rapid.T) []sched.Candidate {
		cs := make([]sched.Candidate, rapid.IntRange(0, len(ids)).Draw(t, "n"))
		for i := range cs {
			cs[i] = candidate(ids[i]).Draw(t, ids[i])
		}
		return cs
	})
}

func candidate(id string) *rapid.Generator[sched.Candidate] {
	return rapid.Custom(func(t *rapid.T) sched.Candidate {
		return sched.Candidate{
			ID:       id,
			Level:    rapid.SampledFrom([]sched.Level{sched.Nodes, sched.Clusters}).Draw(t, "level"),
			Out:      rapid.SampledFrom([]string{"", "", "", "silent"}).Draw(t, "out"),
			Capacity: resources(t, "capacity", 0),
			Free:     resources(t, "free", -500),
			Rooms:    rapid.SliceOfN(rapid.Custom(room), 0, 3).Draw(t, "rooms"),
			Load:     rapid.IntRange(0, 9).Draw(t, "load"),
		}
	})
}

func room(t *rapid.T) sched.Room {
	return sched.Room{
		Runtimes:   some(runtimes, 3).Draw(t, "runtimes"),
		Arch:       rapid.SampledFrom(arches).Draw(t, "arch"),
		Privileged: rapid.Bool().Draw(t, "privileged"),
		Free:       resources(t, "free", -500),
		Largest:    resources(t, "largest", -500),
	}
}

func resources(t *rapid.T, name string, least int64) api.Resources {
	part := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(least, 4000))
	return api.Resources{MilliCPU: part.Draw(t, name+" cpu"), MemoryMB: part.Draw(t, name+" memory")}
}

func some(of []string, most int) *rapid.Generator[[]string] {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, most, rapid.ID[string])
}

func byID(cs []sched.Candidate, id string) sched.Candidate {
	return cs[slices.IndexFunc(cs, func(c sched.Candidate) bool { return c.ID == id })]
}
