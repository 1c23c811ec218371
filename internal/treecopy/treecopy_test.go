package treecopy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/frames"
)

// copyTree copies one directory to another through a Relay.
func copyTree(t *testing.T, from, to string, final bool) (Sum, error) {
	t.Helper()
	a, source := net.Pipe()
	b, target := net.Pipe()
	sent, got := make(chan error, 1), make(chan error, 1)
	go func() {
		defer a.Close()
		_, err := Send(t.Context(), from, a, Options{Final: final})
		sent <- err
	}()
	go func() {
		defer b.Close()
		_, err := Receive(t.Context(), b, Options{Prepare: func(context.Context) (string, error) { return to, nil }})
		got <- err
	}()
	sum, err := Relay(t.Context(), source, target, time.Minute, nil)
	return sum, errors.Join(err, <-sent, <-got)
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o640))
}

func random(n int) []byte {
	out := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(out)
	return out
}

// describeTree returns what a copy has to keep of a tree.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	links := map[uint64]string{}
	must(t, walk(root, ".", false, func(name string) (bool, error) {
		info, err := root.Lstat(name)
		if err != nil {
			return false, err
		}
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintf(&out, "%q %s %d:%d", name, info.Mode(), st.Uid, st.Gid)
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			to, _ := root.Readlink(name)
			fmt.Fprintf(&out, " -> %q\n", to)
			return false, nil
		case info.Mode().IsRegular():
			b, err := root.ReadFile(name)
			if err != nil {
				return false, err
			}
			if links[st.Ino] == "" {
				links[st.Ino] = name
			}
			fmt.Fprintf(&out, " %d %x link of %q", len(b), b[:min(len(b), 64)], links[st.Ino])
			if !bytes.Equal(b, bytes.TrimRight(b, "\x00")) && len(b) > 1<<20 && st.Blocks*512 > int64(len(b)) {
				return false, fmt.Errorf("%s takes %d bytes of disk", name, st.Blocks*512)
			}
		}
		f, err := root.Open(name)
		if err != nil {
			return false, err
		}
		defer f.Close()
		have, err := attrs(f)
		fmt.Fprintf(&out, " %d %q\n", info.ModTime().UnixNano(), have)
		return false, err
	}))
	return out.String()
}

func checkSame(t *testing.T, from, to string) {
	t.Helper()
	if a, b := describeTree(t, from), describeTree(t, to); a != b {
		t.Errorf("the source has\n%s\nand the target\n%s", a, b)
	}
}

// someTree makes a tree with everything that a copy keeps.
func someTree(t *testing.T) string {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	write(t, filepath.Join(dir, "empty"), nil)
	write(t, filepath.Join(dir, "small"), []byte("x"))
	write(t, filepath.Join(dir, "block"), random(blockSize))
	write(t, filepath.Join(dir, "base", "large"), random(5*groupBlocks*blockSize+77))
	write(t, filepath.Join(dir, "name \xff\n\"'"), []byte("no UTF-8"))
	must(t,
		os.Link(filepath.Join(dir, "base", "large"), filepath.Join(dir, "base", "other")),
		os.Symlink("../../etc/passwd", filepath.Join(dir, "base", "symlink")),
		os.Mkdir(filepath.Join(dir, "void"), 0o700),
		os.Chmod(filepath.Join(dir, "small"), 0o751),
		os.Chtimes(filepath.Join(dir, "small"), time.Unix(1, 5), time.Unix(1e9, 123456789)),
	)
	if os.Getuid() == 0 {
		must(t, os.Chown(filepath.Join(dir, "small"), 70, 71), os.Lchown(filepath.Join(dir, "base", "symlink"), 70, 70))
	}
	if err := unix.Setxattr(filepath.Join(dir, "small"), "user.colour", []byte("blue\x00"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err)
	_, err = f.WriteAt([]byte("end"), 64<<20)
	must(t, err, f.Close())
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	return dir
}

// TestCopyKeepsTheTree also checks that nothing is sent twice.
func TestCopyKeepsTheTree(t *testing.T) {
	from, to := someTree(t), t.TempDir()
	write(t, filepath.Join(to, "left over", "x"), []byte("x"))
	write(t, filepath.Join(to, "void"), []byte("a file where the source has a directory"))
	first, err := copyTree(t, from, to, false)
	must(t, err)
	must(t, err, os.Remove(filepath.Join(from, "pipe")))
	again, err := copyTree(t, from, to, true)
	must(t, err)
	checkSame(t, from, to)
	if size := int64(5*groupBlocks*blockSize + 77); first.Sent < size || first.Sent > size+10*blockSize || again.Sent != 0 {
		t.Errorf("sent %d and then %d bytes, want about %d and then 0", first.Sent, again.Sent, size)
	}
}

// TestChangesAreFoundByContent changes files without a trace in their sizes and times.
func TestChangesAreFoundByContent(t *testing.T) {
	from, to := someTree(t), t.TempDir()
	_, err := copyTree(t, from, to, false)
	must(t, err)
	path := filepath.Join(from, "base", "large")
	info, err := os.Stat(path)
	must(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("changed"), 200*blockSize-3) // two blocks
	must(t, err, f.Close(), os.Chtimes(path, info.ModTime(), info.ModTime()))
	must(t, os.Remove(filepath.Join(from, "pipe")), os.Remove(filepath.Join(from, "empty")), os.Remove(filepath.Join(from, "void")))
	write(t, filepath.Join(from, "void"), random(10))
	must(t, os.Truncate(filepath.Join(from, "block"), 7))
	// Another file under a name that was a link.
	must(t, os.Remove(filepath.Join(from, "base", "other")))
	write(t, filepath.Join(from, "base", "other"), random(99))
	sum, err := copyTree(t, from, to, true)
	must(t, err)
	checkSame(t, from, to)
	if sum.Sent > 6*groupBlocks*blockSize {
		t.Errorf("sent %d bytes", sum.Sent)
	}
}

func TestFilesThatDisappearAreLeftOut(t *testing.T) {
	from := t.TempDir()
	for i := range 20 {
		write(t, filepath.Join(from, fmt.Sprint("f", i)), random(4*blockSize))
	}
	a, b := net.Pipe()
	quit := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			default:
				p := filepath.Join(from, fmt.Sprint("f", i%20))
				_ = os.Remove(p)
				_ = os.WriteFile(p, random(i%5*blockSize+i%3), 0o600)
			}
		}
	})
	sent := make(chan error, 1)
	go func() {
		_, err := Send(t.Context(), from, a, Options{})
		sent <- err
	}()
	to := t.TempDir()
	_, err := Receive(t.Context(), b, Options{Prepare: func(context.Context) (string, error) { return to, nil }})
	close(quit)
	churn.Wait()
	must(t, err, <-sent)
}

// TestHostileSources: what a source sends cannot leave the directory, and is bounded.
func TestHostileSources(t *testing.T) {
	dir := func(name string) func(*frames.Writer) {
		return func(w *frames.Writer) { _ = writeJSON(w, entry, item{Path: []byte(name), Type: typeDir, Mode: 0o755}) }
	}
	put := func(e item) func(*frames.Writer) { return func(w *frames.Writer) { _ = writeJSON(w, entry, e) } }
	raw := func(k frames.Kind, b []byte) func(*frames.Writer) {
		return func(w *frames.Writer) { _ = w.Write(k, b) }
	}
	file := func(name string) func(*frames.Writer) {
		return put(item{Path: []byte(name), Type: typeFile, Mode: 0o600})
	}
	over := func(w *frames.Writer) { _ = writeJSON(w, end, Sum{Entries: 1, Digest: "x"}) }
	sums := make([]byte, groupBlocks*32)
	flood := func(w *frames.Writer) {
		for range 2 * maxWaits / groupBlocks {
			if w.Write(hashes, sums) != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name  string
		sends []func(*frames.Writer)
	}{
		{"a path above", []func(*frames.Writer){dir("."), file("../x")}},
		{"an absolute path", []func(*frames.Writer){dir("."), file("/tmp/x")}},
		{"a path through a link", []func(*frames.Writer){dir("."), put(item{Path: []byte("a"), Type: typeSymlink, Link: []byte("/tmp")}), file("a/x")}},
		{"a link to a file outside", []func(*frames.Writer){dir("."), put(item{Path: []byte("a"), Type: typeLink, Link: []byte("../../x")})}},
		{"a device", []func(*frames.Writer){dir("."), put(item{Path: []byte("a"), Type: "device"})}},
		{"a root that is a link", []func(*frames.Writer){put(item{Path: []byte("."), Type: typeSymlink, Link: []byte("/etc")})}},
		{"a path twice", []func(*frames.Writer){dir("."), dir("a"), dir("a")}},
		{"no entries", []func(*frames.Writer){over}},
		{"another sum", []func(*frames.Writer){dir("."), over}},
		{"hashes without a file", []func(*frames.Writer){dir("."), raw(hashes, sums)}},
		{"half a hash", []func(*frames.Writer){dir("."), file("a"), raw(hashes, sums[:33])}},
		{"blocks that nobody needs", []func(*frames.Writer){dir("."), file("a"), raw(block, sums)}},
		{"a block with another hash", []func(*frames.Writer){dir("."), file("a"), raw(hashes, sums), raw(block, sums)}},
		{"hashes without blocks", []func(*frames.Writer){dir("."), file("a"), flood}},
		{"a size without blocks", []func(*frames.Writer){dir("."), file("a"), raw(fileEnd, binary.BigEndian.AppendUint64(nil, 1<<60))}},
		{"a size below 0", []func(*frames.Writer){dir("."), file("a"), raw(fileEnd, binary.BigEndian.AppendUint64(nil, 1<<63))}},
		{"an attribute of the kernel", []func(*frames.Writer){dir("."), put(item{Path: []byte("a"), Type: typeDir, Attrs: []attr{{[]byte("security.capability"), []byte("x")}}})}},
		{"a file within a file", []func(*frames.Writer){dir("."), file("a"), file("b")}},
		{"no JSON", []func(*frames.Writer){raw(entry, []byte("{"))}},
		{"frames of the target", []func(*frames.Writer){raw(done, []byte("{}"))}},
		{"a stream that ends", []func(*frames.Writer){dir(".")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			above := t.TempDir()
			to := filepath.Join(above, "to")
			must(t, os.Mkdir(to, 0o755))
			a, b := net.Pipe()
			go func() {
				defer a.Close()
				go func() { _, _ = io.Copy(io.Discard, a) }()
				w := frames.NewWriter(a)
				_ = w.Write(namesEnd, nil)
				for _, send := range c.sends {
					send(w)
				}
			}()
			_, err := Receive(t.Context(), b, Options{Prepare: func(context.Context) (string, error) { return to, nil }})
			if err == nil {
				t.Error("received, want an error")
			}
			if left, _ := os.ReadDir(above); len(left) != 1 {
				t.Errorf("%v is beside the directory", left)
			}
		})
	}
}

// TestHostileTargets: a target gets only blocks that were offered, and cannot claim to have what it does not.
// A tenant decides how many files there are, and how long their paths.
func TestNamesInMemoryAreBounded(t *testing.T) {
	was := maxHeld
	maxHeld = 1 << 20
	defer func() { maxHeld = was }()
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 12)
	for what, make := range map[string]func(*os.Root, int) error{
		"a large directory":       func(r *os.Root, n int) error { return r.WriteFile(fmt.Sprintf("%0250d", n), nil, 0o600) },
		"directories, deep below": func(r *os.Root, n int) error { return r.Mkdir(fmt.Sprintf("%s%d", deep, n), 0o700) },
		"files with two names": func(r *os.Root, n int) error {
			name := fmt.Sprintf("%s%d", deep, n)
			return errors.Join(r.WriteFile(name, nil, 0o600), r.Link(name, fmt.Sprintf("z%d", n)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			from, to := t.TempDir(), t.TempDir()
			r, err := os.OpenRoot(from)
			must(t, err)
			defer r.Close()
			must(t, r.MkdirAll(deep, 0o700))
			few, many := 100, 400
			if what == "a large directory" {
				few, many = 4000, 4300
			}
			for n := range many {
				if n == few {
					if _, err := copyTree(t, from, to, true); err != nil {
						t.Errorf("%d are not copied: %v", few, err)
					}
				}
				must(t, make(r, n))
			}
			if _, err := copyTree(t, from, to, true); !errors.Is(err, api.ErrFull) {
				t.Errorf("%d: %v, want ErrFull", many, err)
			}
		})
	}
}

func TestHostileTargets(t *testing.T) {
	for _, c := range []struct {
		name string
		does func(w *frames.Writer)
	}{
		{"a block that was not offered", func(w *frames.Writer) { _ = w.Write(need, binary.BigEndian.AppendUint64(nil, 1<<63)) }},
		{"another sum", func(w *frames.Writer) { _ = writeJSON(w, done, Sum{Entries: 2, Digest: "x"}) }},
		{"frames of the source", func(w *frames.Writer) { _ = w.Write(entry, []byte("{}")) }},
		{"an answer of another length", func(w *frames.Writer) { _ = w.Write(need, []byte{1}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := t.TempDir()
			write(t, filepath.Join(from, "f"), random(3))
			a, b := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, b) }()
			go c.does(frames.NewWriter(b))
			if _, err := Send(t.Context(), from, a, Options{}); !errors.Is(err, api.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
}

// TestRelayComparesBothSides: neither side alone decides that a copy is complete.
func TestRelayComparesBothSides(t *testing.T) {
	for _, c := range []struct {
		name           string
		source, target func(w *frames.Writer)
		want           error
	}{
		{"the target has another tree", func(w *frames.Writer) { _ = writeJSON(w, end, Sum{1, "a", 0}) }, func(w *frames.Writer) { _ = writeJSON(w, done, Sum{1, "b", 0}) }, api.ErrInvalid},
		{"the target is done before the source", nil, func(w *frames.Writer) { _ = writeJSON(w, done, Sum{1, "b", 0}) }, api.ErrInvalid},
		{"the source claims to be the target", func(w *frames.Writer) { _ = writeJSON(w, done, Sum{1, "b", 0}) }, nil, api.ErrInvalid},
		{"nobody says anything", nil, nil, api.ErrTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, source := net.Pipe()
			b, target := net.Pipe()
			for _, s := range []struct {
				conn net.Conn
				does func(*frames.Writer)
			}{{a, c.source}, {b, c.target}} {
				go func() { _, _ = io.Copy(io.Discard, s.conn) }()
				if s.does != nil {
					go s.does(frames.NewWriter(s.conn))
				}
			}
			if _, err := Relay(t.Context(), source, target, 300*time.Millisecond, nil); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestFailuresReachTheRelay(t *testing.T) {
	from, to := someTree(t), filepath.Join(t.TempDir(), "missing")
	if _, err := copyTree(t, from, to, false); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v, want the error of the target", err)
	}
	if _, err := copyTree(t, filepath.Join(from, "missing"), t.TempDir(), false); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v, want the error of the source", err)
	}
}
