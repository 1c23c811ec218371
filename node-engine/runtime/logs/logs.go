// Package logs keeps what workloads write, one file per workload in one folder.
// Whoever runs the workload (a shim, never the node engine) appends to the file,
// so that nothing is lost while the engine is away; the engine bounds it and
// reads it. Names come from hashes, and every access goes through an os.Root, so
// that no name leads out of the folder.
//
//	dir, err := logs.Open("/var/lib/treeline/logs", 16<<20)
//	path, err := dir.Create(id)               // for the shim to append to
//	r, err := dir.Read(ctx, id, 100, ended)   // the last 100 lines and all that follow
package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

const (
	suffix     = ".log"
	oldSuffix  = ".log.old"
	markSuffix = ".started"
	pollEvery  = 100 * time.Millisecond // while somebody follows
)

// Dir is the folder of logs.
type Dir struct {
	path  string
	root  *os.Root
	limit int64
}

// Open opens the folder, making it if needed. A workload's log is cut to limit
// bytes whenever Trim runs.
func Open(path string, limit int64) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open logs in %s: %w", path, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("open logs: %w", err)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("open logs: %w", err)
	}
	return &Dir{path: abs, root: root, limit: limit}, nil
}

// Close closes the folder; readers that are open go on.
func (d *Dir) Close() error { return d.root.Close() }

// Create makes the log of a workload, or keeps the one that exists, and returns
// the path to append to.
func (d *Dir) Create(id string) (string, error) {
	f, err := d.root.OpenFile(id+suffix, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return "", fmt.Errorf("create log of %s: %w", id, err)
	}
	return filepath.Join(d.path, id+suffix), f.Close()
}

// Remove removes the log of a workload; one that does not exist is no error.
func (d *Dir) Remove(id string) error {
	var errs []error
	for _, s := range []string{suffix, oldSuffix} {
		if err := d.root.Remove(id + s); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove log of %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// Mark notes beside the log that the workload has been started.
func (d *Dir) Mark(id string) error {
	f, err := d.root.OpenFile(id+markSuffix, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("mark %s as started: %w", id, err)
	}
	return f.Close()
}

// Marked reports whether Mark was called since Unmark.
func (d *Dir) Marked(id string) bool {
	_, err := d.root.Stat(id + markSuffix)
	return err == nil
}

// Unmark undoes Mark.
func (d *Dir) Unmark(id string) error {
	if err := d.root.Remove(id + markSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmark %s: %w", id, err)
	}
	return nil
}

// Trim bounds every log: one that has outgrown half of the limit becomes the old
// part, and the workload goes on with an empty file. Lines that are written
// between the copy and the cut are lost; the writer cannot be stopped, so the
// bound is the limit plus what is written between two calls.
func (d *Dir) Trim() error {
	dir, err := d.root.Open(".")
	if err != nil {
		return fmt.Errorf("trim logs: %w", err)
	}
	entries, err := dir.ReadDir(-1)
	dir.Close()
	errs := []error{err}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		if info, err := e.Info(); err == nil && info.Size() > d.limit/2 {
			errs = append(errs, d.rotate(id))
		}
	}
	return errors.Join(errs...)
}

func (d *Dir) rotate(id string) error {
	from, err := d.root.OpenFile(id+suffix, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("trim log of %s: %w", id, err)
	}
	defer from.Close()
	to, err := d.root.OpenFile(id+oldSuffix, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("trim log of %s: %w", id, err)
	}
	defer to.Close()
	if _, err := from.Seek(-d.limit/2, io.SeekEnd); err != nil {
		return fmt.Errorf("trim log of %s: %w", id, err)
	}
	// A full disk keeps the old part from being written; cutting frees space.
	_, err = io.CopyN(to, from, d.limit/2)
	if terr := from.Truncate(0); terr != nil || err != nil {
		return fmt.Errorf("trim log of %s: %w", id, errors.Join(err, terr))
	}
	return nil
}

// Read yields the last tail lines of a workload's log (-1: all). With a nil
// ended that is all; else it goes on with what is written until ended is closed
// and the rest is read, or ctx ends, or the reader is closed. A workload without
// a log is api.ErrNotFound.
func (d *Dir) Read(ctx context.Context, id string, tail int, ended <-chan struct{}) (io.ReadCloser, error) {
	cur, err := d.root.Open(id + suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read log of %s: %w", id, api.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read log of %s: %w", id, err)
	}
	r := &reader{cur: cur, ended: ended}
	r.ctx, r.cancel = context.WithCancel(ctx)
	if old, err := d.root.Open(id + oldSuffix); err == nil {
		r.old = old
	}
	if tail >= 0 {
		if err := r.seekTail(tail); err != nil {
			r.Close()
			return nil, fmt.Errorf("read log of %s: %w", id, err)
		}
	}
	return r, nil
}

// A workload's end is known before the last of its output has been copied. A log
// is whole when nobody has it open for writing any more; where that cannot be
// told, or does not come about, when so many looks found nothing.
const (
	restsAtEnd     = 5   // where the file system has no leases
	restsOfWriters = 100 // 10 s, should a writer stay for good
)

// reader reads the old part, then the current one, then waits for more.
type reader struct {
	ctx    context.Context
	cancel context.CancelFunc
	old    *os.File // nil when there is none or it has been read
	cur    *os.File
	pos    int64
	ended  <-chan struct{}
	over   bool // the workload has ended
	whole  bool // nothing more will be written
	rests  int  // looks that found nothing since the workload ended
}

func (r *reader) Read(p []byte) (int, error) {
	for {
		if r.old != nil {
			n, err := r.old.Read(p)
			if n > 0 {
				return n, nil
			}
			r.old.Close()
			r.old = nil
			if err != nil && err != io.EOF {
				return 0, err
			}
		}
		if info, err := r.cur.Stat(); err == nil && info.Size() < r.pos {
			r.pos = 0 // it was cut
		}
		n, err := r.cur.ReadAt(p, r.pos)
		if n > 0 {
			r.pos += int64(n)
			r.rests = 0
			return n, nil
		}
		if err != nil && err != io.EOF {
			return 0, err
		}
		if r.ended == nil || r.whole {
			return 0, io.EOF
		}
		if !r.wait() {
			return 0, io.EOF
		}
	}
}

// wait waits until another look is due, and is false when the reader's context ends.
func (r *reader) wait() bool {
	if r.over {
		writers, known := hasWriters(r.cur)
		r.rests++
		r.whole = known && !writers || !known && r.rests >= restsAtEnd || r.rests >= restsOfWriters
		if r.whole {
			return true // what came since the last look
		}
	}
	ended := r.ended
	if r.over {
		ended = nil
	}
	select {
	case <-ended:
		r.over = true
	case <-r.ctx.Done():
		return false
	case <-time.After(pollEvery):
	}
	return true
}

// hasWriters reports whether anybody has the file open for writing, and whether
// that could be told: a read lease is to be had only if nobody has (fcntl(2)).
func hasWriters(f *os.File) (writers, known bool) {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		return false, err == nil
	}
	return true, errors.Is(err, unix.EAGAIN)
}

func (r *reader) Close() error {
	r.cancel()
	if r.old != nil {
		r.old.Close()
	}
	return r.cur.Close()
}

// seekTail puts both parts where the last n lines begin.
func (r *reader) seekTail(n int) error {
	pos, left, err := tailOf(r.cur, n)
	if err != nil {
		return err
	}
	r.pos = pos
	if r.old == nil {
		return nil
	}
	if left == 0 {
		r.old.Close()
		r.old = nil
		return nil
	}
	if pos, _, err = tailOf(r.old, left); err != nil {
		return err
	}
	_, err = r.old.Seek(pos, io.SeekStart)
	return err
}

// tailOf is where the last n lines of f begin, and how many lines f is short of n.
func tailOf(f *os.File, n int) (pos int64, short int, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	size := info.Size()
	if n == 0 || size == 0 {
		return size, n, nil
	}
	const block = 32 << 10
	buf := make([]byte, block)
	for end := size; end > 0; {
		start := max(0, end-block)
		b := buf[:end-start]
		if _, err := f.ReadAt(b, start); err != nil && err != io.EOF {
			return 0, 0, err
		}
		for i := len(b) - 1; i >= 0; i-- {
			at := start + int64(i)
			if b[i] != '\n' || at == size-1 {
				continue // the newline at the end closes the last line
			}
			if n--; n == 0 {
				return at + 1, 0, nil
			}
		}
		end = start
	}
	return 0, n - 1, nil
}
