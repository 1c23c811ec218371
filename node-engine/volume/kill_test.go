package volume

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The environment of the process that TestNothingIsLeftAfterAKill9InACopy kills.
const (
	copyEnv = "TREELINE_TEST_COPY" // what it does
	dirEnv  = "TREELINE_TEST_DIR"
	fromEnv = "TREELINE_TEST_FROM" // a snapshot
)

// reached says that the process is in the middle of a copy, and waits for its end.
type reached struct{ from io.Reader }

func (r reached) Write([]byte) (int, error) {
	_, _ = os.Stdout.WriteString("reached\n")
	select {}
}

// Read reads a part of a snapshot.
func (r reached) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil {
		return r.Write(nil)
	}
	return n, err
}

// TestCopyToKill is the process that is killed.
func TestCopyToKill(t *testing.T) {
	what := os.Getenv(copyEnv)
	if what == "" {
		return // it is for TestNothingIsLeftAfterAKill9InACopy
	}
	m, err := Open(t.Context(), os.Getenv(dirEnv), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	switch what {
	case "frozen":
		if _, err = freeze(filepath.Dir(dataOf(t, m, 1))); err == nil {
			_, err = reached{}.Write(nil)
		}
	case "snapshot":
		err = m.Snapshot(t.Context(), dataID, reached{})
	case "restore":
		text, rerr := os.ReadFile(os.Getenv(fromEnv))
		if rerr != nil {
			t.Fatal(rerr)
		}
		err = m.Restore(t.Context(), dataID, reached{bytes.NewReader(text[:len(text)/2])})
	}
	t.Fatal(err)
}

// TestNothingIsLeftAfterAKill9InACopy: the engine is killed while it has frozen a volume, sends a snapshot,
// or restores one. The next one leaves nothing frozen, mounted or on the disk, and the volume has its files.
func TestNothingIsLeftAfterAKill9InACopy(t *testing.T) {
	root := newDir(t)
	m := open(t, root)
	put(t, dataOf(t, m, 1), "a", "one")
	var kept bytes.Buffer
	if err := m.Snapshot(t.Context(), dataID, &kept); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(t.TempDir(), "snapshot")
	if err := os.WriteFile(from, kept.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, dataOf(t, m, 1), "a", "two")
	for _, what := range []string{"snapshot", "frozen", "restore"} {
		if what == "restore" {
			release(t, m, at(1))
		}
		kill9(t, exec.Command(os.Args[0], "-test.run=^TestCopyToKill$"), copyEnv+"="+what, dirEnv+"="+root, fromEnv+"="+from)
		m = open(t, root)
		if left := entries(t, root); len(left) != 1 {
			t.Errorf("left on disk after %s: %v, want the volume", what, left)
		}
		mounted(t, root, map[bool]int{true: 1}[what != "restore"])
		dir := dataOf(t, m, 1)
		want(t, dir, "a", "two")
		put(t, dir, what, "written") // would block while it is frozen
	}
	release(t, m, at(1))
	mounted(t, root, 0)
	if err := m.Restore(t.Context(), dataID, bytes.NewReader(kept.Bytes())); err != nil {
		t.Errorf("restore after all that: %v", err)
	}
	want(t, dataOf(t, m, 2), "a", "one")
	release(t, m, at(2))
}

// kill9 starts a process, and kills it when it has printed a line.
func kill9(t *testing.T, cmd *exec.Cmd, env ...string) {
	t.Helper()
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "reached" {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return
		}
		t.Logf("%s: %s", cmd.Path, lines.Text())
	}
	t.Fatalf("the process ended before it was killed: %v", cmd.Wait())
}
