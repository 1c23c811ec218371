package treecopy

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/frames"
)

// Send copies a directory to the Receive at the other end of conn. The end of ctx does not interrupt a read or write
// of conn.
func Send(ctx context.Context, dir string, conn io.ReadWriter, o Options) (Sum, error) {
	w := frames.NewWriter(conn)
	s := sender{w: w, final: o.Final, tally: newTally(), groups: make(chan [][]byte, ahead), asked: make(chan uint64, ahead+1), first: map[inode]string{}}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answered, sent := make(chan error, 1), make(chan error, 1)
	go func() {
		err := s.listen(frames.NewReader(conn))
		close(s.asked)
		cancel(err)
		answered <- err
	}()
	go func() {
		err := s.blocks()
		if err != nil {
			cancel(err)
		}
		sent <- err
	}()
	err := s.tree(ctx, dir)
	close(s.groups)
	switch cause := context.Cause(ctx); {
	case err == nil:
		if err = writeJSON(w, end, s.tally.sum(0)); err != nil {
			return Sum{}, err // the caller closes conn, which ends the others
		}
	case errors.Is(cause, errDone):
		return Sum{}, fmt.Errorf("the target has claimed to have everything before it was sent: %w", api.ErrInvalid)
	case cause != nil: // of the other side
		return Sum{}, cause
	default:
		return Sum{}, fail(w, err)
	}
	select {
	case err := <-sent: // either because of listen, or because it has failed
		if err != nil {
			return Sum{}, err
		}
		err = <-answered
		if !errors.Is(err, errDone) {
			return Sum{}, err
		}
	case err := <-answered:
		if !errors.Is(err, errDone) {
			return Sum{}, err
		}
		if err = <-sent; err != nil {
			return Sum{}, err
		}
	}
	sum := s.tally.sum(s.sent)
	if !sum.Same(s.theirs) {
		return Sum{}, fmt.Errorf("the target has %d entries with the sum %s, want %d with %s: %w", s.theirs.Entries, s.theirs.Digest, sum.Entries, sum.Digest, api.ErrInvalid)
	}
	return sum, nil
}

// errDone means that the target has everything.
var errDone = errors.New("the copy is complete")

type inode struct{ dev, ino uint64 }

type sender struct {
	w      *frames.Writer
	final  bool
	tally  *tally
	groups chan [][]byte    // blocks whose hashes were sent
	asked  chan uint64      // answers to them
	first  map[inode]string // a name of each file with several
	held   held             // of first
	bytes  int64

	sent   int64 // of blocks
	theirs Sum   // of listen
}

// listen reads what the target needs, until it has everything (errDone). It does not wait for blocks to be written, while
// the target may wait for an answer to be read.
func (s *sender) listen(r *frames.Reader) error {
	for {
		k, payload, err := r.Next()
		switch {
		case err != nil:
			return cut(err)
		case k == alive:
			continue
		case k == done:
			if err := readJSON(payload, &s.theirs); err != nil {
				return err
			}
			return errDone
		case k != need || len(payload) != 8:
			return unexpected(k, payload)
		}
		select {
		case s.asked <- binary.BigEndian.Uint64(payload):
		default:
			return fmt.Errorf("the target answers more than it was asked: %w", api.ErrInvalid)
		}
	}
}

// blocks sends the blocks that the target needs.
func (s *sender) blocks() error {
	for wants := range s.asked {
		var group [][]byte
		select {
		case group = <-s.groups:
		default: // an answer without a question
		}
		if bits.Len64(wants) > len(group) {
			return fmt.Errorf("the target asks for a block that was not offered: %w", api.ErrInvalid)
		}
		for i, b := range group {
			if wants&(1<<i) == 0 {
				continue
			}
			if err := s.w.Write(block, b); err != nil {
				return err
			}
			s.sent += int64(len(b))
		}
	}
	return nil
}

func (s *sender) tree(ctx context.Context, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := s.list(ctx, root); err != nil {
		return err
	}
	return s.walk(ctx, root, func(name string) error { return s.one(ctx, root, name) })
}

func (s *sender) walk(ctx context.Context, root *os.Root, visit func(name string) error) error {
	return walk(root, ".", !s.final, func(name string) (bool, error) {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		return false, visit(name)
	})
}

// list sends all paths.
func (s *sender) list(ctx context.Context, root *os.Root) error {
	var buf []byte
	n := 0
	err := s.walk(ctx, root, func(name string) error {
		if n++; n > MaxEntries {
			return fmt.Errorf("it has more than %d files: %w", MaxEntries, api.ErrFull)
		}
		if len(name) > maxPath {
			return fmt.Errorf("path %.100q is longer than %d bytes: %w", name, maxPath, api.ErrInvalid)
		}
		if len(buf)+1+len(name) > frames.Max {
			if err := s.w.Write(names, buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
		if len(buf) > 0 {
			buf = append(buf, 0)
		}
		buf = append(buf, name...)
		return nil
	})
	if err == nil {
		err = s.w.Write(names, buf)
	}
	if err == nil {
		err = s.w.Write(namesEnd, nil)
	}
	return err
}

func (s *sender) one(ctx context.Context, root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	e := item{
		Path: []byte(name), Mode: stat.Mode & 0o7777, UID: int(stat.Uid), GID: int(stat.Gid), MTime: info.ModTime().UnixNano(),
	}
	if s.tally.entries >= MaxEntries {
		return fmt.Errorf("it has more than %d files: %w", MaxEntries, api.ErrFull)
	}
	at := inode{uint64(stat.Dev), stat.Ino}
	switch {
	case info.IsDir():
		e.Type = typeDir
	case info.Mode()&fs.ModeSymlink != 0:
		e.Type = typeSymlink
		to, err := root.Readlink(name)
		if err != nil {
			return err
		}
		e.Link = []byte(to)
		return s.entry(e)
	case !info.Mode().IsRegular():
		return nil
	case stat.Nlink > 1 && s.first[at] != "":
		return s.entry(item{Path: e.Path, Type: typeLink, Link: []byte(s.first[at])})
	default:
		e.Type = typeFile
	}
	// It may have been replaced by a pipe since: do not wait for a writer.
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		return errors.Join(err, fs.ErrNotExist)
	}
	if e.Attrs, err = attrs(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := s.entry(e); err != nil || e.Type == typeDir {
		return err
	}
	if stat.Nlink > 1 {
		if err := s.held.add(name); err != nil {
			return err
		}
		s.first[at] = name
	}
	return s.file(ctx, f)
}

func (s *sender) entry(e item) error {
	text, err := json.Marshal(e)
	if err == nil && len(text) > frames.Max {
		err = fmt.Errorf("the entry of %.100q has %d bytes, want at most %d: %w", e.Path, len(text), frames.Max, api.ErrInvalid)
	}
	if err != nil {
		return err
	}
	return s.describe(entry, text)
}

// describe sends a frame that counts for the sum.
func (s *sender) describe(k frames.Kind, payload []byte) error {
	s.tally.add(k, payload)
	return s.w.Write(k, payload)
}

// file sends the hashes of a file's blocks.
func (s *sender) file(ctx context.Context, f *os.File) error {
	var size int64
	for last := false; !last; {
		group, sums := make([][]byte, 0, groupBlocks), make([]byte, 0, groupBlocks*sha256.Size)
		for len(group) < groupBlocks && !last {
			b := make([]byte, blockSize)
			n, err := io.ReadFull(f, b)
			if last = err != nil; last && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return err
			}
			if n == 0 {
				break
			}
			sum := sha256.Sum256(b[:n])
			group, sums, size = append(group, b[:n]), append(sums, sum[:]...), size+int64(n)
		}
		if s.bytes += int64(len(group)) * blockSize; s.bytes > maxBytes {
			return fmt.Errorf("its files have more than %d bytes: %w", int64(maxBytes), api.ErrFull)
		}
		if len(group) == 0 {
			break
		}
		select {
		case s.groups <- group:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.describe(hashes, sums); err != nil {
			return err
		}
	}
	return s.describe(fileEnd, binary.BigEndian.AppendUint64(nil, uint64(size)))
}
