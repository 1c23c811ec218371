package treecopy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/frames"
)

// Receive makes a directory what the Send at the other end of conn sends. What it writes is on the disk when it returns
// without an error. After an error the directory has parts of both.
//
// The source is not trusted: it cannot write outside the directory, and what it sends is bounded. ErrInvalid: the source
// breaks the rules. ErrFull: the disk is full, or the tree has more files than MaxEntries.
func Receive(ctx context.Context, conn io.ReadWriter, o Options) (Sum, error) {
	w := frames.NewWriter(conn)
	sum, err := receive(ctx, w, frames.NewReader(conn), o)
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: %w", api.ErrFull, err)
	}
	if err != nil {
		return Sum{}, fail(w, err)
	}
	return sum, writeJSON(w, done, sum)
}

func receive(ctx context.Context, w *frames.Writer, r *frames.Reader, o Options) (Sum, error) {
	dir, err := prepare(ctx, w, o)
	if err != nil {
		return Sum{}, err
	}
	t := receiver{w: w, r: r, tally: newTally(), seen: map[[16]byte]bool{}, files: map[[16]byte]bool{}}
	if t.root, err = os.OpenRoot(dir); err != nil {
		return Sum{}, err
	}
	err = t.tree(ctx)
	stop := keepAlive(w)
	defer stop()
	if err == nil {
		err = t.complete()
	}
	if err = errors.Join(err, t.root.Close()); err == nil && o.Complete != nil {
		err = o.Complete()
	}
	return t.tally.sum(t.got), err
}

// complete deletes what the source does not have, and writes everything to the disk.
func (t *receiver) complete() error {
	if err := t.prune(func(k [16]byte) bool { return t.seen[k] }); err != nil {
		return err
	}
	for _, d := range slices.Backward(t.dirs) {
		at := time.Unix(0, d.MTime)
		if err := t.root.Chtimes(string(d.Path), at, at); err != nil {
			return err
		}
	}
	d, err := t.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return os.NewSyscallError("sync", unix.Syncfs(int(d.Fd())))
}

func prepare(ctx context.Context, w *frames.Writer, o Options) (string, error) {
	stop := keepAlive(w)
	defer stop()
	return o.Prepare(ctx)
}

// keepAlive sends frames until the returned function is called.
func keepAlive(w *frames.Writer) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(aliveEvery)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				if w.Write(alive, nil) != nil {
					return
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

type receiver struct {
	w     *frames.Writer
	r     *frames.Reader
	root  *os.Root
	tally *tally
	// seen are the paths of the source, by hash. false: listed, true: its entry was received.
	seen  map[[16]byte]bool
	files map[[16]byte]bool // entries of files
	dirs  []item            // whose times are set at the end
	held  held              // of dirs
	waits []wait
	total int64 // sizes of all files
	got   int64 // bytes of blocks
}

// wait is a block that the source has to send.
type wait struct {
	f   *file
	at  int64
	sum digest
}

// maxWaits is more than a source is ahead.
const maxWaits = (ahead + 4) * groupBlocks

// file is a file whose entry was received.
type file struct {
	*os.File
	item
	old    *os.File // where blocks may be already; usually the same
	at     int64    // of the next hash
	have   int64    // bytes that are known to be right
	waits  int
	ended  bool
	size   int64 // if ended
	closed bool
}

func key(name string) (k [16]byte) {
	sum := sha256.Sum256([]byte(name))
	copy(k[:], sum[:])
	return k
}

// tree receives until the source has sent everything.
func (t *receiver) tree(ctx context.Context) (err error) {
	var f *file // the one whose hashes follow
	var theirs *Sum
	defer func() {
		for _, w := range t.waits {
			w.f.close()
		}
		if f != nil {
			f.close()
		}
	}()
	if err := t.list(ctx); err != nil {
		return err
	}
	for theirs == nil || len(t.waits) > 0 {
		k, payload, err := t.r.Next()
		if err = errors.Join(cut(err), ctx.Err()); err != nil {
			return err
		}
		switch {
		case k == block && len(t.waits) > 0:
			err = t.block(payload)
		case theirs != nil:
			err = unexpected(k, payload)
		case k == entry && f == nil:
			t.tally.add(k, payload)
			f, err = t.entry(payload)
		case k == hashes && f != nil:
			t.tally.add(k, payload)
			err = t.hashes(f, payload)
		case k == fileEnd && f != nil && len(payload) == 8:
			t.tally.add(k, payload)
			f.ended, f.size = true, int64(binary.BigEndian.Uint64(payload))
			err = f.settle()
			f = nil
		case k == end && f == nil:
			theirs = new(Sum)
			err = readJSON(payload, theirs)
		default:
			err = unexpected(k, payload)
		}
		if err != nil {
			return err
		}
	}
	if own := t.tally.sum(0); !own.Same(*theirs) || own.Entries == 0 {
		return fmt.Errorf("the source has sent %d entries with the sum %s, and says %d with %s: %w", own.Entries, own.Digest, theirs.Entries, theirs.Digest, api.ErrInvalid)
	}
	return nil
}

// list receives the paths of the source, and deletes what it does not have, so that there is space for what it has.
func (t *receiver) list(ctx context.Context) error {
	for {
		k, payload, err := t.r.Next()
		if err = errors.Join(cut(err), ctx.Err()); err != nil {
			return err
		}
		switch k {
		case names:
			for name := range bytes.SplitSeq(payload, []byte{0}) {
				if t.seen[key(string(name))] = false; len(t.seen) > MaxEntries {
					return fmt.Errorf("the source has more than %d files: %w", MaxEntries, api.ErrFull)
				}
			}
		case namesEnd:
			return t.prune(func(k [16]byte) bool { _, listed := t.seen[k]; return listed })
		default:
			return unexpected(k, payload)
		}
	}
}

// prune deletes what is not kept.
func (t *receiver) prune(keep func([16]byte) bool) error {
	return walk(t.root, ".", false, func(name string) (skip bool, err error) {
		if name == "." || keep(key(name)) {
			return false, nil
		}
		return true, t.root.RemoveAll(name)
	})
}

// entry creates or changes what an entry describes. It returns a file whose hashes follow.
func (t *receiver) entry(payload []byte) (*file, error) {
	var e item
	if err := readJSON(payload, &e); err != nil {
		return nil, err
	}
	name := string(e.Path)
	k := key(name)
	switch {
	case !filepath.IsLocal(name) || path.Clean(name) != name || len(name) > maxPath:
		return nil, fmt.Errorf("path %.100q is not within the directory: %w", e.Path, api.ErrInvalid)
	case t.seen[k]:
		return nil, fmt.Errorf("path %.100q comes twice: %w", e.Path, api.ErrInvalid)
	case name == "." && e.Type != typeDir:
		return nil, fmt.Errorf("the root is a %.20q: %w", e.Type, api.ErrInvalid)
	}
	if t.seen[k] = true; len(t.seen) > MaxEntries {
		return nil, fmt.Errorf("the source has more than %d files: %w", MaxEntries, api.ErrFull)
	}
	e.Mode &= 0o7777
	old, err := t.root.Lstat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	switch e.Type {
	case typeDir:
		return nil, t.dir(e, old)
	case typeSymlink:
		if err := t.symlink(e, old); err != nil {
			return nil, err
		}
		return nil, t.root.Lchown(name, e.UID, e.GID)
	case typeLink:
		return nil, t.link(e, old)
	case typeFile:
		t.files[k] = true
		return t.open(e, old)
	}
	return nil, fmt.Errorf("entry %.100q has type %.20q: %w", e.Path, e.Type, api.ErrInvalid)
}

func (t *receiver) dir(e item, old fs.FileInfo) error {
	if old != nil && !old.IsDir() {
		if err := t.root.RemoveAll(string(e.Path)); err != nil {
			return err
		}
		old = nil
	}
	if old == nil {
		if err := t.root.Mkdir(string(e.Path), 0o700); err != nil {
			return err
		}
	}
	d, err := t.root.Open(string(e.Path))
	if err != nil {
		return err
	}
	t.dirs = append(t.dirs, item{Path: e.Path, MTime: e.MTime})
	return errors.Join(t.held.add(string(e.Path)), describe(d, e), d.Close())
}

// describe sets the owner, the mode and the attributes of a file or directory.
func describe(f *os.File, e item) error {
	if err := f.Chown(e.UID, e.GID); err != nil {
		return err
	}
	if err := setAttrs(f, e.Attrs); err != nil { // before the mode, which access control lists change
		return err
	}
	return os.NewSyscallError("chmod", unix.Fchmod(int(f.Fd()), e.Mode))
}

func (t *receiver) symlink(e item, old fs.FileInfo) error {
	if old != nil && old.Mode()&fs.ModeSymlink != 0 {
		if to, err := t.root.Readlink(string(e.Path)); err == nil && to == string(e.Link) {
			return nil
		}
	}
	if old != nil {
		if err := t.root.RemoveAll(string(e.Path)); err != nil {
			return err
		}
	}
	return t.root.Symlink(string(e.Link), string(e.Path))
}

func (t *receiver) link(e item, old fs.FileInfo) error {
	if !t.files[key(string(e.Link))] {
		return fmt.Errorf("%.100q is a link to %.100q, which is no file before it: %w", e.Path, e.Link, api.ErrInvalid)
	}
	if old != nil {
		if to, err := t.root.Lstat(string(e.Link)); err == nil && os.SameFile(old, to) {
			return nil
		}
		if err := t.root.RemoveAll(string(e.Path)); err != nil {
			return err
		}
	}
	return t.root.Link(string(e.Link), string(e.Path))
}

func (t *receiver) open(e item, old fs.FileInfo) (*file, error) {
	flag := os.O_RDWR | unix.O_NONBLOCK
	switch {
	case old == nil:
		flag |= os.O_CREATE | os.O_EXCL
	case !old.Mode().IsRegular():
		if err := t.root.RemoveAll(string(e.Path)); err != nil {
			return nil, err
		}
		flag |= os.O_CREATE | os.O_EXCL
	case old.Sys().(*syscall.Stat_t).Nlink > 1: // its other names may be other files now
		return t.unlink(e)
	}
	f, err := t.root.OpenFile(string(e.Path), flag, 0o600)
	if err != nil {
		return nil, err
	}
	return &file{File: f, old: f, item: e}, nil
}

// unlink replaces a file that has several names by a new one, which takes what is the same from the old one.
func (t *receiver) unlink(e item) (*file, error) {
	old, err := t.root.OpenFile(string(e.Path), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err = t.root.Remove(string(e.Path)); err == nil {
		var f *os.File
		if f, err = t.root.OpenFile(string(e.Path), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			return &file{File: f, old: old, item: e}, nil
		}
	}
	return nil, errors.Join(err, old.Close())
}

// hashes compares the next blocks of a file, and asks for those that differ.
func (t *receiver) hashes(f *file, payload []byte) error {
	n := len(payload) / sha256.Size
	if n == 0 || n > groupBlocks || len(payload)%sha256.Size != 0 || len(t.waits)+n > maxWaits {
		return fmt.Errorf("%d bytes of hashes are not expected here: %w", len(payload), api.ErrInvalid)
	}
	if t.total += int64(n) * blockSize; t.total > maxBytes {
		return fmt.Errorf("the source has more than %d bytes: %w", int64(maxBytes), api.ErrFull)
	}
	var wants uint64
	b := make([]byte, blockSize)
	for i := range n {
		at := f.at
		f.at += blockSize
		var sum digest
		copy(sum[:], payload[i*sha256.Size:])
		k, err := f.old.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		switch {
		case k > 0 && sha256.Sum256(b[:k]) == sum:
			if f.have += int64(k); f.old != f.File && sum != zeros() {
				if _, err := f.WriteAt(b[:k], at); err != nil {
					return err
				}
			}
			continue
		case sum == zeros() && k > 0 && f.old == f.File:
			clear(b)
			if _, err := f.WriteAt(b, at); err != nil {
				return err
			}
			fallthrough
		case sum == zeros(): // the file is extended at its end: a hole
			f.have += blockSize
			continue
		}
		wants |= 1 << i
		t.waits = append(t.waits, wait{f, at, sum})
		f.waits++
	}
	return t.w.Write(need, binary.BigEndian.AppendUint64(nil, wants))
}

// block writes the next block that the source had to send.
func (t *receiver) block(b []byte) error {
	w := t.waits[0]
	if len(b) == 0 || sha256.Sum256(b) != w.sum {
		return fmt.Errorf("%.100q: the block at %d does not have its hash: %w", w.f.Path, w.at, api.ErrInvalid)
	}
	if _, err := w.f.WriteAt(b, w.at); err != nil {
		return err
	}
	t.got += int64(len(b))
	w.f.have += int64(len(b))
	w.f.waits--
	t.waits = t.waits[1:]
	return w.f.settle()
}

// settle completes a file of which everything was received.
func (f *file) settle() error {
	if !f.ended || f.waits > 0 {
		return nil
	}
	defer f.close()
	if f.size != f.have || f.size > f.at || f.size <= f.at-blockSize {
		return fmt.Errorf("%.100q: %d bytes were received, want %d: %w", f.Path, f.have, f.size, api.ErrInvalid)
	}
	if err := f.Truncate(f.size); err != nil {
		return err
	}
	if err := describe(f.File, f.item); err != nil {
		return err
	}
	at := unix.NsecToTimespec(f.MTime)
	return os.NewSyscallError("set times", unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{at, at}, unix.AT_EMPTY_PATH))
}

func (f *file) close() {
	if !f.closed {
		f.closed = true
		_, _ = f.File.Close(), f.old.Close()
	}
}
