package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestTail(t *testing.T) {
	d, write := fixture(t, 1<<20)
	for i := range 5000 {
		write(fmt.Sprintf("line %d\n", i))
	}
	write("no newline")
	for _, c := range []struct {
		tail int
		want string
	}{
		{0, ""},
		{1, "no newline"},
		{2, "line 4999\nno newline"},
	} {
		if got := read(t, d, c.tail); got != c.want {
			t.Errorf("tail %d: got %q, want %q", c.tail, got, c.want)
		}
	}
	for _, n := range []int{100, 4000, 5001, 9000} {
		if got, want := strings.Count(read(t, d, n), "\n"), min(n-1, 5000); got != want {
			t.Errorf("tail %d: got %d newlines, want %d", n, got, want)
		}
	}
	if got := read(t, d, -1); !strings.HasPrefix(got, "line 0\n") {
		t.Errorf("whole log begins with %.20q, want the first line", got)
	}
}

func TestTrimBoundsAndKeepsTheNewest(t *testing.T) {
	const limit = 4096
	d, write := fixture(t, limit)
	for i := range 2000 {
		write(fmt.Sprintf("line %d\n", i))
		if i%100 == 99 {
			if err := d.Trim(); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := read(t, d, -1)
	if len(all) > limit || len(all) < limit/4 {
		t.Errorf("log has %d bytes, want at most %d and at least a quarter of that", len(all), limit)
	}
	if !strings.HasSuffix(all, "line 1999\n") {
		t.Errorf("log ends with %q, want the last line", all[len(all)-20:])
	}
	if got := strings.Count(read(t, d, 150), "\n"); got != 150 {
		t.Errorf("tail over both parts: got %d lines, want 150", got)
	}
}

func TestFollowContinuesAfterTrimUntilTheWorkloadEnds(t *testing.T) {
	d, write := fixture(t, 64)
	ended := make(chan struct{})
	r, err := d.Follow(t.Context(), "w", Query{Tail: -1}, func(context.Context) { <-ended })
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	write(strings.Repeat("x", 60) + "\n")
	buf := make([]byte, 61)
	if _, err := io.ReadFull(r, buf); err != nil {
		t.Fatal(err)
	}
	if err := d.Trim(); err != nil {
		t.Fatal(err)
	}
	write("after\n")
	if _, err := io.ReadFull(r, buf[:6]); err != nil || string(buf[:6]) != "after\n" {
		t.Fatalf("after Trim: got %q, %v, want the next line", buf[:6], err)
	}
	write("last\n")
	close(ended)
	rest, err := io.ReadAll(r)
	if err != nil || string(rest) != "last\n" {
		t.Fatalf("rest: got %q, %v, want the last line", rest, err)
	}
}

// A shim may copy the last output after the end of its workload is observed.
func TestFollowWaitsForWriters(t *testing.T) {
	d, write := fixture(t, 1<<20)
	path, err := d.Create("w")
	if err != nil {
		t.Fatal(err)
	}
	shim, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer shim.Close()
	ended := make(chan struct{})
	close(ended)
	r, err := d.Follow(t.Context(), "w", Query{Tail: -1}, func(context.Context) { <-ended })
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for rd := r.(*reader); rd.idlePolls <= maxIdlePolls; {
		if !rd.wait() || rd.complete {
			t.Fatalf("complete after %d polls, want it to wait for the writer", rd.idlePolls)
		}
	}
	write("last\n")
	shim.Close()
	if all, err := io.ReadAll(r); err != nil || string(all) != "last\n" {
		t.Errorf("read: got %q, %v, want the last line", all, err)
	}
}

func TestIDsCannotLeadOutOfTheDirectory(t *testing.T) {
	d, _ := fixture(t, 64)
	for _, id := range []string{"../x", "/etc/passwd", "a/../../x"} {
		if _, err := d.Create(id); err == nil {
			t.Errorf("Create(%q) succeeded, want an error", id)
		}
		if _, err := d.Read(t.Context(), id, Query{Tail: -1}); err == nil {
			t.Errorf("Read(%q) succeeded, want an error", id)
		}
	}
	if _, err := d.Read(t.Context(), "missing", Query{Tail: -1}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("Read of a missing log: got %v, want ErrNotFound", err)
	}
}

func fixture(t *testing.T, limit int64) (d *Dir, write func(string)) {
	t.Helper()
	d, err := Open(t.TempDir(), limit)
	if err != nil {
		t.Fatal(err)
	}
	path, err := d.Create("w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, func(s string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, d *Dir, tail int) string {
	t.Helper()
	r, err := d.Read(t.Context(), "w", Query{Tail: tail})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
