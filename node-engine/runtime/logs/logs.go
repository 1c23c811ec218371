// Package logs stores the output of workloads, one file per workload in one directory. The
// process that runs the workload, never the node engine, appends to the file, so that nothing
// is lost while the engine does not run. The engine trims and reads the files.
//
// The engine notes when a file grew, to the second, so that lines have times. A file of its own keeps
// the output of the attempt before.
//
//	dir, err := logs.Open("/var/lib/treeline/logs", 16<<20)
//	path, err := dir.Create(id)               // for the workload's stdout and stderr
//	err = dir.Next(id)                        // the output so far is the previous attempt's
//	q := logs.Query{Tail: 100}
//	r, err := dir.Read(ctx, id, q)            // the last 100 lines
//	r, err = dir.Follow(ctx, id, q, wait)     // and what follows, until wait returns
package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

const (
	suffix       = ".log"
	oldSuffix    = ".log.old"
	prevSuffix   = ".log.prev" // the previous attempt's log; its old part has oldPart too
	oldPart      = ".old"
	markSuffix   = ".started"
	pollInterval = 100 * time.Millisecond // of followers
)

// Dir is the directory of logs. It is safe for concurrent use.
type Dir struct {
	path  string
	root  *os.Root // confines ids to the directory
	limit int64
	ctx   context.Context // ends with Close
	end   context.CancelFunc
	waits sync.WaitGroup
}

// Open opens the directory, which it creates if necessary. Trim cuts logs to limit bytes.
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
	d := &Dir{path: abs, root: root, limit: limit}
	d.ctx, d.end = context.WithCancel(context.Background())
	if err := d.watch(); err != nil {
		return nil, errors.Join(fmt.Errorf("open logs: %w", err), root.Close())
	}
	return d, nil
}

// Close closes the directory. Open readers read to the present end of their log.
func (d *Dir) Close() error {
	d.end()
	d.waits.Wait()
	return d.root.Close()
}

// Create creates the log of a workload, if it does not exist, and returns its path.
func (d *Dir) Create(id string) (string, error) {
	f, err := d.root.OpenFile(id+suffix, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return "", fmt.Errorf("create log of %s: %w", id, err)
	}
	return filepath.Join(d.path, id+suffix), f.Close()
}

// Remove removes the logs and the mark of a workload. It succeeds if there are none.
func (d *Dir) Remove(id string) error {
	errs := []error{d.Unmark(id)}
	for _, s := range []string{suffix, oldSuffix, prevSuffix, prevSuffix + oldPart} {
		errs = append(errs, d.remove(id+s), d.remove(timesOf(id+s)))
	}
	return errors.Join(errs...)
}

func (d *Dir) remove(name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove log: %w", err)
	}
	return nil
}

// Next makes the log of a workload that has ended that of its previous attempt. It replaces an earlier
// one, and succeeds if there is no log.
func (d *Dir) Next(id string) error {
	if _, err := d.root.Stat(id + suffix); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for from, to := range map[string]string{suffix: prevSuffix, oldSuffix: prevSuffix + oldPart} {
		for _, name := range []func(string) string{func(n string) string { return n }, timesOf} {
			err := d.root.Rename(name(id+from), name(id+to))
			if errors.Is(err, fs.ErrNotExist) {
				err = d.remove(name(id + to)) // of an earlier attempt
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("keep the previous log of %s: %w", id, err)
	}
	return nil
}

// Mark records that the workload was started.
func (d *Dir) Mark(id string) error {
	f, err := d.root.OpenFile(id+markSuffix, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("mark %s as started: %w", id, err)
	}
	return f.Close()
}

// Marked reports whether Mark was called since the last Unmark.
func (d *Dir) Marked(id string) bool {
	_, err := d.root.Stat(id + markSuffix)
	return err == nil
}

// Unmark removes the record of Mark.
func (d *Dir) Unmark(id string) error { return d.remove(id + markSuffix) }

// Trim limits the size of every log: one that exceeds half of the limit becomes the old part,
// and the workload continues with an empty file. What the workload writes between the copy and
// the truncation is lost. Between two calls a log can exceed its limit.
func (d *Dir) Trim() error {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	errs := []error{err}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		if info, err := e.Info(); err == nil && info.Size() > d.limit/2 {
			if err := d.rotate(id); err != nil {
				errs = append(errs, fmt.Errorf("trim log of %s: %w", id, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (d *Dir) rotate(id string) error {
	from, err := d.root.OpenFile(id+suffix, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := d.root.OpenFile(id+oldSuffix, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := from.Seek(-d.limit/2, io.SeekEnd); err != nil {
		return err
	}
	info, err := from.Stat()
	if err != nil {
		return err
	}
	// On a full disk the copy fails; the truncation frees space nevertheless.
	_, err = io.CopyN(to, from, d.limit/2)
	return errors.Join(err, from.Truncate(0), d.moveTimes(id, info.Size()-d.limit/2))
}

// Query selects what to read of a log.
type Query struct {
	Tail       int           // number of lines from the end; -1: all
	Since      time.Duration // only lines of the last Since, to the second; 0: all
	Timestamps bool          // begin each line with its time, to the second, in UTC
	Previous   bool          // of the attempt before; it is not followed
}

// Read returns a part of a workload's log. It fails with ErrNotFound if there is no log.
func (d *Dir) Read(ctx context.Context, id string, q Query) (io.ReadCloser, error) {
	r, err := d.open(ctx, id, q)
	if err != nil {
		return nil, fmt.Errorf("read log of %s: %w", id, err)
	}
	return d.shown(r, q), nil
}

// Follow is Read, continued with what the workload writes until it ends. wait must return when the
// workload has ended. Its context ends with ctx, the reader or the directory.
func (d *Dir) Follow(ctx context.Context, id string, q Query, wait func(context.Context)) (io.ReadCloser, error) {
	r, err := d.open(ctx, id, q)
	if err != nil {
		return nil, fmt.Errorf("read log of %s: %w", id, err)
	}
	if q.Previous {
		return d.shown(r, q), nil
	}
	ended := make(chan struct{})
	r.ended = ended
	d.waits.Go(func() {
		defer close(ended)
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		defer context.AfterFunc(d.ctx, cancel)()
		wait(ctx)
	})
	return d.shown(r, q), nil
}

// shown returns the reader, with times if the query wants them.
func (d *Dir) shown(r *reader, q Query) io.ReadCloser {
	if q.Timestamps {
		return &stamped{reader: r, start: true}
	}
	return r
}

func (d *Dir) open(ctx context.Context, id string, q Query) (*reader, error) {
	name := id + suffix
	if q.Previous {
		name = id + prevSuffix
	}
	cur, err := d.root.Open(name)
	if errors.Is(err, fs.ErrNotExist) && q.Previous {
		return nil, fmt.Errorf("there is no output of an attempt before: %w", api.ErrNotFound)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, api.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	r := &reader{cur: cur}
	r.ctx, r.cancel = context.WithCancel(ctx)
	if old, err := d.root.Open(name + oldPart); err == nil {
		r.old = old
		r.oldTimes = d.times(name + oldPart)
	}
	r.times = d.times(name)
	if q.Tail >= 0 {
		err = r.seekTail(q.Tail)
	}
	if err == nil && q.Since > 0 {
		err = r.seekSince(time.Now().Add(-q.Since))
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// A workload's end is observed before its last output is copied. A log is complete when no process
// has it open for writing. If that cannot be determined, or a process keeps it open, the log is
// complete after a number of polls without new output.
const (
	maxIdlePolls       = 5   // if the file system has no leases
	maxIdlePollsWriter = 100 // 10 s, if a writer does not close the file
)

// reader reads the old part, then the current one, and then waits for more.
type reader struct {
	ctx       context.Context
	cancel    context.CancelFunc
	old       *os.File // nil if there is none or it was read
	cur       *os.File
	pos       int64
	ended     <-chan struct{} // closed when the workload has ended; nil: do not follow
	over      bool            // the workload has ended
	complete  bool            // no more output will follow
	idlePolls int             // without output, since the workload ended

	oldTimes, times times
	oldPos          int64                        // in the old part
	line            func(offset int64) time.Time // of a byte that the last Read returned
}

func (r *reader) Read(p []byte) (int, error) {
	for {
		if r.old != nil {
			n, err := r.old.Read(p)
			if n > 0 {
				begin := r.oldPos
				r.oldPos += int64(n)
				r.line = func(at int64) time.Time { return r.oldTimes.of(begin+at, time.Time{}) }
				return n, nil
			}
			r.closeOld()
			if err != nil && err != io.EOF {
				return 0, err
			}
		}
		if info, err := r.cur.Stat(); err == nil && info.Size() < r.pos {
			r.pos, r.times = 0, nil // truncated by Trim
		}
		n, err := r.cur.ReadAt(p, r.pos)
		if n > 0 {
			begin := r.pos
			r.line = func(at int64) time.Time { return r.times.of(begin+at, r.modified()) }
			r.pos += int64(n)
			r.idlePolls = 0
			return n, nil
		}
		if err != nil && err != io.EOF {
			return 0, err
		}
		if r.ended == nil || r.complete || !r.wait() {
			return 0, io.EOF
		}
	}
}

// wait waits for the next poll. It returns false when the reader's context ends.
func (r *reader) wait() bool {
	ended := r.ended
	if r.over {
		ended = nil
		writers, known := hasWriters(r.cur)
		r.idlePolls++
		r.complete = known && !writers || !known && r.idlePolls >= maxIdlePolls || r.idlePolls >= maxIdlePollsWriter
		if r.complete {
			return true // for output since the last poll
		}
	}
	select {
	case <-ended:
		r.over = true
	case <-r.ctx.Done():
		return false
	case <-time.After(pollInterval):
	}
	return true
}

// hasWriters reports whether a process has the file open for writing, and whether that is
// known: the kernel grants a read lease only on a file without writers (fcntl(2)).
func hasWriters(f *os.File) (writers, known bool) {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		return false, err == nil
	}
	return true, errors.Is(err, unix.EAGAIN)
}

func (r *reader) closeOld() {
	if r.old != nil {
		_ = r.old.Close()
		r.old = nil
	}
}

func (r *reader) Close() error {
	r.cancel()
	r.closeOld()
	return r.cur.Close()
}

// seekTail moves to the beginning of the last n lines of both parts.
func (r *reader) seekTail(n int) error {
	pos, left, err := tailOf(r.cur, n)
	if err != nil {
		return err
	}
	r.pos = pos
	if left == 0 {
		r.closeOld()
	}
	if r.old == nil {
		return nil
	}
	if pos, _, err = tailOf(r.old, left); err != nil {
		return err
	}
	r.oldPos = pos
	_, err = r.old.Seek(pos, io.SeekStart)
	return err
}

// seekSince moves to the first line that may have been written at t or later, unless the reader is
// beyond it.
func (r *reader) seekSince(t time.Time) error {
	if r.old != nil {
		if pos := r.oldTimes.before(t); !r.oldTimes.ends(t) {
			pos, err := lineAfter(r.old, max(pos, r.oldPos))
			if err != nil {
				return err
			}
			r.oldPos = pos
			_, err = r.old.Seek(pos, io.SeekStart)
			return err
		}
		r.closeOld()
	}
	pos := r.times.before(t)
	if info, err := r.cur.Stat(); err == nil && info.ModTime().Before(t) {
		pos = info.Size()
	}
	if pos <= r.pos {
		return nil
	}
	pos, err := lineAfter(r.cur, pos)
	r.pos = pos
	return err
}

// modified returns when the workload wrote last.
func (r *reader) modified() time.Time {
	info, err := r.cur.Stat()
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// lineAfter returns pos, or the begin of the next line if pos is within a line.
func lineAfter(f *os.File, pos int64) (int64, error) {
	if pos == 0 {
		return 0, nil
	}
	buf := make([]byte, 4096)
	for at := pos - 1; ; {
		n, err := f.ReadAt(buf, at)
		if i := bytes.IndexByte(buf[:n], '\n'); i >= 0 {
			return at + int64(i) + 1, nil
		}
		if at += int64(n); err == io.EOF {
			return at, nil
		} else if err != nil {
			return 0, err
		}
	}
}

// tailOf returns where the last n lines of f begin, and how many lines f lacks to have n.
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
				continue // a newline at the end belongs to the last line
			}
			if n--; n == 0 {
				return at + 1, 0, nil
			}
		}
		end = start
	}
	return 0, n - 1, nil
}
