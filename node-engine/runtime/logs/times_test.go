package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func readQuery(t *testing.T, d *Dir, q Query) string {
	t.Helper()
	r, err := d.Read(t.Context(), "w", q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestLinesHaveTheirTimes writes a line each minute for an hour, and trims in the middle.
func TestLinesHaveTheirTimes(t *testing.T) {
	d, write := fixture(t, 2*40*20) // the old part has the last 40 lines before the trim
	d.end()                         // no notes but those below
	d.waits.Wait()
	began := time.Now().Add(-time.Hour).Truncate(time.Second)
	var size int64
	line := func(i int) string { return fmt.Sprintf("%019d\n", i) }
	at := func(i int) time.Time { return began.Add(time.Duration(i) * time.Minute) }
	for i := range 60 {
		write(line(i))
		size += int64(len(line(i)))
		if err := d.append("w"+suffix, note{size, at(i).UnixMilli()}); err != nil {
			t.Fatal(err)
		}
		if i == 49 {
			if err := d.Trim(); err != nil {
				t.Fatal(err)
			}
			size = 0
		}
	}
	if err := os.Chtimes(filepath.Join(d.path, "w"+suffix), at(59), at(59)); err != nil {
		t.Fatal(err)
	}
	want := ""
	for i := 10; i < 60; i++ {
		want += at(i).UTC().Format(time.RFC3339) + " " + line(i)
	}
	if got := readQuery(t, d, Query{Tail: -1, Timestamps: true}); got != want {
		t.Errorf("with times: got\n%s\nwant\n%s", got, want)
	}
	for _, c := range []struct{ minutes, tail, first int }{
		{1, -1, 59}, {2, -1, 58}, {10, -1, 50}, {12, -1, 48}, {30, -1, 30}, {59, -1, 10}, {30, 2, 58}, {2, 40, 58},
	} {
		want := ""
		for i := c.first; i < 60; i++ {
			want += line(i)
		}
		q := Query{Tail: c.tail, Since: time.Duration(c.minutes)*time.Minute + 30*time.Second}
		if got := readQuery(t, d, q); got != want {
			t.Errorf("since %d minutes, tail %d: got\n%s\nwant\n%s", c.minutes, c.tail, got, want)
		}
	}
	if got := readQuery(t, d, Query{Tail: -1, Since: 20 * time.Second}); got != "" {
		t.Errorf("since the last line: got %q, want nothing", got)
	}
}

// TestGrowthIsNoted: the directory notes by itself when a workload writes.
func TestGrowthIsNoted(t *testing.T) {
	d, write := fixture(t, 1<<20)
	write("first\n")
	for end := time.Now().Add(time.Minute); len(d.times("w"+suffix)) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is noted about a log that has grown")
		}
	}
	got := readQuery(t, d, Query{Tail: -1, Timestamps: true})
	stamp, rest, _ := strings.Cut(got, " ")
	at, err := time.Parse(time.RFC3339, stamp)
	if err != nil || rest != "first\n" || time.Since(at) > time.Minute {
		t.Errorf("got %q, %v, want the line with its time", got, err)
	}
}

func TestNotesAreBounded(t *testing.T) {
	d, _ := fixture(t, 1<<20)
	d.end()
	d.waits.Wait()
	for i := range 3 * maxTimes {
		if err := d.append("w"+suffix, note{int64(i + 1), int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	all := d.times("w" + suffix)
	if len(all) > maxTimes || len(all) < maxTimes/2 || all[len(all)-1].size != 3*maxTimes {
		t.Errorf("%d notes up to size %d, want at most %d up to %d", len(all), all[len(all)-1].size, maxTimes, 3*maxTimes)
	}
	for _, offset := range []int64{0, 1000, maxTimes, 2 * maxTimes} {
		if got := all.of(offset, time.Time{}).UnixMilli(); got < offset || got > offset+64 {
			t.Errorf("time of byte %d: got %d, want about that", offset, got)
		}
	}
}

func TestThePreviousAttemptIsKept(t *testing.T) {
	d, write := fixture(t, 1<<20)
	if _, err := d.Read(t.Context(), "w", Query{Tail: -1, Previous: true}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("previous log before a restart: got %v, want ErrNotFound", err)
	}
	for _, attempt := range []string{"one\n", "two\n", "three\n"} {
		if err := d.Next("w"); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Create("w"); err != nil {
			t.Fatal(err)
		}
		write(attempt)
	}
	if now, was := readQuery(t, d, Query{Tail: -1}), readQuery(t, d, Query{Tail: -1, Previous: true}); now != "three\n" || was != "two\n" {
		t.Errorf("got %q and before that %q, want three and two", now, was)
	}
	if err := d.Remove("w"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{d.path, filepath.Join(d.path, timesDir)} {
		left, err := filepath.Glob(filepath.Join(dir, "w*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left after Remove: %v (%v), want nothing", left, err)
		}
	}
}
