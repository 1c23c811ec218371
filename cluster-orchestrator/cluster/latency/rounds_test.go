package latency

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/internal/step"
)

func TestWaitingHoldersGetRoundsInTurn(t *testing.T) {
	l := newRoundQueue(8, 4)
	begun := 0
	for i := range 100 {
		if l.begin("loud", fmt.Sprint("l", i)) {
			begun++
		}
	}
	if begun != 4 {
		t.Errorf("%d rounds of one holder began, want its share of 4", begun)
	}
	for i := range 4 {
		if !l.begin("other", fmt.Sprint("o", i)) {
			t.Errorf("round %d of another holder waits", i)
		}
	}
	if l.begin("late", "late") {
		t.Error("a ninth round began")
	}
	l.end("loud")
	if target, ok := l.next(); !ok || target != "late" {
		t.Errorf("next is %q, want the target of the holder with nothing under way", target)
	}
}

// For any sequence of calls: the bounds hold, a holder without a round does not wait while one
// is free, and no entry is left at the end.
func TestRoundsAreSharedBetweenHolders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 8).Draw(t, "total")
		share := rapid.IntRange(1, total).Draw(t, "share")
		l := newRoundQueue(total, share)
		of := map[string]string{} // holder by target, of rounds under way
		all := map[string]string{}
		next := func() {
			for {
				target, ok := l.next()
				if !ok {
					return
				}
				if !l.begin(all[target], target) {
					t.Fatalf("%s is next and waits", target)
				}
				of[target] = all[target]
			}
		}
		for i := range rapid.IntRange(1, 100).Draw(t, "steps") {
			if len(of) > 0 && rapid.Bool().Draw(t, "end") {
				for target, name := range of {
					delete(of, target)
					l.end(name)
					break
				}
			} else {
				name, target := fmt.Sprint("h", rapid.IntRange(0, 4).Draw(t, "holder")), fmt.Sprint("t", i)
				if waiting := step.Keys(l.waiting); len(waiting) > 0 && rapid.Bool().Draw(t, "again") {
					target = rapid.SampledFrom(waiting).Draw(t, "target") // now of another holder
				} else {
					all[target] = name
				}
				if l.begin(name, target) {
					of[target] = name
				}
			}
			next()
			for name, h := range l.holders {
				if h.underWay == 0 && h.waiting == 0 {
					t.Fatalf("%s is remembered and has nothing", name)
				}
			}
			count := map[string]int{}
			for _, name := range of {
				count[name]++
			}
			for name, n := range count {
				if n > share || n != l.underWayOf(name) {
					t.Fatalf("%s has %d rounds under way, counted as %d, want at most %d", name, n, l.underWayOf(name), share)
				}
			}
			if len(of) > total {
				t.Fatalf("%d rounds are under way, want at most %d", len(of), total)
			}
			for target, name := range l.waiting {
				if len(of) < total && count[name] < share {
					t.Fatalf("%s of %s waits while a place is free", target, name)
				}
			}
		}
		for target, name := range of {
			delete(of, target)
			l.end(name)
		}
		for target := range all {
			l.remove(target)
		}
		if l.size() != 0 || len(l.holders) != 0 {
			t.Fatalf("%d rounds and %d holders are left", l.size(), len(l.holders))
		}
	})
}
