package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// smallDisk is a directory on a filesystem of 4 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
			t.Fatal("a small filesystem can be mounted only as root, and TREELINE_TEST_REQUIRE=1 asks for this test")
		}
		t.Skip("a small filesystem can be mounted only as root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatalf("mount a tmpfs of 4 MiB on %s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "store.db")
	s := mustOpen(t, path)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}

	next := func(i int) store.Doc {
		return store.Doc{Kind: "app", Key: fmt.Sprintf("%04d", i), Version: 1, Data: bytes.Repeat([]byte{byte(i)}, 20_000)}
	}
	n := 0
	var err error
	for ; err == nil; n++ {
		err = s.Save(t.Context(), []store.Doc{next(n)})
	}
	n--
	if !errors.Is(err, store.ErrFull) || !errors.Is(err, api.ErrFull) {
		t.Fatalf("after %d documents: %v, want ErrFull", n, err)
	}
	if n == 0 {
		t.Fatal("not one document fits")
	}
	// The disk stays full, and no saved document is lost.
	for range 3 {
		if err := s.Save(t.Context(), []store.Doc{next(n)}); !errors.Is(err, store.ErrFull) {
			t.Fatalf("got %v, want ErrFull", err)
		}
	}
	holds(t, s, n)

	// With free space the store works again and is not damaged.
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := s.Save(t.Context(), []store.Doc{next(n)}); err != nil {
			t.Fatal(err)
		}
		n++
	}
	holds(t, s, n)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path)
	holds(t, s, n)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestNoNewStoreOnAFullDisk(t *testing.T) {
	dir := smallDisk(t)
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 4<<20-8192), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "store.db")
	if _, err := Open(path); !errors.Is(err, store.ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a half-made store was left: %v, want ErrNotExist", err)
	}
}

func holds(t *testing.T, s *Store, n int) {
	t.Helper()
	docs, err := store.Load(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) != n {
		t.Fatalf("%d documents, want %d", len(docs), n)
	}
	for i, d := range docs {
		if len(d.Data) != 20_000 || d.Data[0] != byte(i) {
			t.Fatalf("document %s holds something else", d.Key)
		}
	}
}
