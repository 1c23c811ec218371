package watch

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

// The changes of large custom resources are kept up to a size, also if they come when the oldest half is cut because of its number.
func TestLargeChangesLeaveTheFeed(t *testing.T) {
	large := api.CustomResource{Spec: make([]byte, api.MaxCustomBytes)}
	for name, c := range map[string]struct{ size, light, heavy, again int }{
		"large ones only":                 {10_000, 0, 3000, 0},
		"large ones before small ones":    {2000, 0, 1023, 2977},
		"large ones among many":           {100, 90, 3000, 90},
		"the size is reached at the edge": {512, 0, 1024, 0},
	} {
		f := NewFeed(c.size, 0)
		rev := api.Revision(0)
		add := func(n int, object any) {
			for range n {
				rev++
				f.Add(api.Change{Kind: "resource", Revision: rev, Object: object})
			}
		}
		add(c.light, nil)
		add(c.heavy, large)
		add(c.again, nil)
		add(2, large) // exceeds the size at the same time as the number
		bytes := 0
		for _, e := range f.ring {
			bytes += weight(e.change)
		}
		if bytes != f.bytes || bytes > maxFeedBytes || len(f.ring) > 2*c.size {
			t.Errorf("%s: %d changes with %d bytes, counted %d, want at most %d and %d", name, len(f.ring), bytes, f.bytes, 2*c.size, maxFeedBytes)
		}
		if last := f.ring[len(f.ring)-1].at.Revision; last != rev {
			t.Errorf("%s: the newest change is of revision %d, want %d", name, last, rev)
		}
		if _, err := f.open(Position{Revision: rev - 1}); err != nil {
			t.Errorf("%s: resume before the newest change: %v", name, err)
		}
		if _, err := f.open(f.floor); err != nil {
			t.Errorf("%s: resume at the oldest change: %v", name, err)
		}
		if _, err := f.open(Position{}); !errors.Is(err, api.ErrGone) {
			t.Errorf("%s: from the start: %v, want ErrGone", name, err)
		}
	}
}
