package embedded

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/internal/store"
)

// writerPath is the environment variable with the file for TestMain when the test binary runs as the
// process that is killed.
const writerPath = "TREELINE_STORE_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerPath); path != "" {
		if err := write(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1) // write ends only with an error; the parent kills this process
	}
	os.Exit(m.Run())
}

const writers = 8

// write saves until it is killed, from several goroutines, and prints each acknowledged document as
// "key version".
func write(path string) error {
	s, err := Open(path)
	if err != nil {
		return err
	}
	docs, err := store.Load(context.Background(), s)
	if err != nil {
		return err
	}
	versions := map[string]uint64{}
	for _, d := range docs {
		versions[d.Key] = d.Version
	}
	failed := make(chan error)
	for w := range writers {
		key := fmt.Sprint("w", w)
		go func(version uint64) {
			for {
				version++
				if err := s.Save(context.Background(), []store.Doc{{Kind: "app", Key: key, Version: version, Data: body(key, version)}}); err != nil {
					failed <- err
					return
				}
				fmt.Printf("%s %d\n", key, version)
			}
		}(versions[key])
	}
	return <-failed
}

// body returns the data of a version of key. Its size changes, so that the tree of pages does too.
func body(key string, version uint64) []byte {
	return []byte(strings.Repeat(fmt.Sprint(key, version, " "), int(version*version%997)))
}

func TestWhatWasAcknowledgedSurvivesKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	random := rand.New(rand.NewPCG(7, 7))
	acked := map[string]uint64{}
	for round := range 12 {
		// A random number of answers, so that the kill hits any point of a commit.
		killAfter(t, path, 1+random.IntN(300), acked)

		s := mustOpen(t, path)
		docs, err := store.Load(t.Context(), s)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		have := map[string]uint64{}
		for _, d := range docs {
			have[d.Key] = d.Version
			if string(d.Data) != string(body(d.Key, d.Version)) {
				t.Errorf("round %d: %s version %d holds something else", round, d.Key, d.Version)
			}
		}
		for key, version := range acked {
			// At most one change per writer was not acknowledged.
			if have[key] != version && have[key] != version+1 {
				t.Errorf("round %d: %s was acknowledged at version %d and is there at %d", round, key, version, have[key])
			}
			acked[key] = have[key]
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killAfter runs the writer, kills it after n answers, and adds all answers to acked.
func killAfter(t *testing.T, path string, n int, acked map[string]uint64) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), writerPath+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	seen := 0
	for lines.Scan() {
		var key string
		var version uint64
		// The kill may have truncated the last line.
		if _, err := fmt.Sscanf(lines.Text()+"\n", "%s %d\n", &key, &version); err == nil {
			acked[key] = max(acked[key], version)
		}
		if seen++; seen == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if seen < n {
		t.Fatalf("the writer ended by itself after %d answers", seen)
	}
}

func TestConcurrentSavesShareACommit(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "store.db"))
	s.turn <- struct{}{} // as if a save were being written
	var group sync.WaitGroup
	for i := range 32 {
		group.Go(func() {
			if err := s.Save(t.Context(), []store.Doc{{Kind: "app", Key: fmt.Sprint(i), Version: 1, Data: []byte("x")}}); err != nil {
				t.Error(err)
			}
		})
	}
	for queued := 0; queued < 32; runtime.Gosched() {
		s.mu.Lock()
		queued = len(s.queue)
		s.mu.Unlock()
	}
	before := txid(t, s)
	<-s.turn
	group.Wait()
	if n := txid(t, s) - before; n != 1 {
		t.Errorf("32 saves took %d commits, want 1", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func txid(t *testing.T, s *Store) int {
	t.Helper()
	tx, err := s.db.Begin(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	return tx.ID()
}
