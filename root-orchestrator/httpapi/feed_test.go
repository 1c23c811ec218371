package httpapi

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
)

func TestPositions(t *testing.T) {
	for text, want := range map[string]Position{"17": {Revision: 17}, "17.2": {17, 2}, "0": {}} {
		if got, err := ParsePosition(text); err != nil || got != want || got.String() != text {
			t.Errorf("ParsePosition(%s) = %v, %v, want the same position", text, got, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1.x", "1.-2", "1.2.3"} {
		if _, err := ParsePosition(text); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("ParsePosition(%q): %v, want ErrInvalid", text, err)
		}
	}
}

// A watcher that stops after any change and resumes by its position gets exactly the later changes,
// or ErrGone, even if changes share revisions or are out of order within a step.
func TestResumingMissesNothingAndRepeatsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := NewFeed(rapid.IntRange(1, 8).Draw(t, "size"), 0)
		rev := api.Revision(1)
		var all []string
		for step := range rapid.IntRange(0, 20).Draw(t, "steps") {
			rev += api.Revision(rapid.IntRange(1, 3).Draw(t, "ahead"))
			for n := range rapid.IntRange(1, 3).Draw(t, "changes") {
				back := api.Revision(rapid.IntRange(0, 1).Draw(t, "back"))
				c := api.Change{ID: fmt.Sprintf("%d.%d", step, n), Revision: rev - back}
				f.Add(c)
				all = append(all, c.ID)
			}
		}
		read := func(seq uint64) (ids []string, last []Position) {
			entries, _, err := f.from(seq)
			if err != nil {
				t.Fatalf("from %d: %v", seq, err)
			}
			for _, e := range entries {
				ids, last = append(ids, e.change.ID), append(last, e.at)
			}
			return ids, last
		}
		kept, places := read(f.first)
		if len(kept) > len(all) || fmt.Sprint(kept) != fmt.Sprint(all[len(all)-len(kept):]) {
			t.Fatalf("kept %v of %v", kept, all)
		}
		for i, at := range places {
			seq, err := f.open(at)
			if err != nil {
				t.Fatalf("resume at %s: %v", at, err)
			}
			if ids, _ := read(seq); fmt.Sprint(ids) != fmt.Sprint(kept[i+1:]) {
				t.Fatalf("resumed at %s with %v, want %v", at, ids, kept[i+1:])
			}
		}
		if f.first > 0 {
			if _, err := f.open(Position{}); !errors.Is(err, api.ErrGone) {
				t.Fatalf("from the start, of which %d are not kept: %v", f.first, err)
			}
		}
	})
}

func TestASlowWatcherGetsGone(t *testing.T) {
	f := NewFeed(2, 0)
	for i := range 10 {
		f.Add(api.Change{Revision: api.Revision(i + 1)})
	}
	if _, _, err := f.from(0); !errors.Is(err, api.ErrGone) {
		t.Errorf("from what is cut: %v", err)
	}
}
