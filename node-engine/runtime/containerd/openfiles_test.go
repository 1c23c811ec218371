package containerd

import (
	"bytes"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

func TestFewerOpenFilesThanConfiguredAreLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	r := &Runtime{
		cfg: Config{Options: Options{Address: filepath.Join(t.TempDir(), "missing.sock"), OpenFiles: math.MaxInt64}},
		log: slog.New(slog.NewTextHandler(&out, nil)),
	}
	limit, reason := maxOpenFiles(r.cfg.Address)
	if limit == math.MaxInt64 {
		t.Skip("/proc/sys/fs/nr_open cannot be read")
	}
	for range 3 {
		if n := r.limitOpenFiles(); n != limit {
			t.Errorf("open files: got %d, want the kernel's limit %d", n, limit)
		}
	}
	if n := strings.Count(out.String(), "fewer open files than configured"); n != 1 || !strings.Contains(out.String(), reason) {
		t.Errorf("log: got %d lines, want one with the reason %q:\n%s", n, reason, out.String())
	}
	out.Reset()
	r.cfg.OpenFiles = 1024
	if n := r.limitOpenFiles(); n != 1024 || out.Len() > 0 {
		t.Errorf("open files: got %d, want 1024 and no log: %s", n, out.String())
	}
}

func TestOpenFilesAreLimitedByContainerdsHardLimit(t *testing.T) {
	const all, none = "Name:\tcontainerd\nCapEff:\t000001ffffffffff\n", "Name:\tcontainerd\nCapEff:\t00000000a80425fb\n"
	for name, c := range map[string]struct {
		status string
		hard   uint64
		want   int64
		why    string
	}{
		"may raise":         {all, 1024, 1 << 20, "kernel"},
		"may not, has less": {none, 524288, 524288, "CAP_SYS_RESOURCE"},
		"may not, has more": {none, 1 << 30, 1 << 20, "kernel"},
	} {
		n, why := lowerByHardLimit(1<<20, "kernel", c.status, c.hard)
		if n != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s: got limit %d for reason %q, want %d for %s", name, n, why, c.want, c.why)
		}
	}
}
