//go:build unix

package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/store"
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "snapshots of the control plane that are taken or read at the same time", Total: 1, Per: "daemon",
	Beyond: "409", Attack: "TestOneSnapshotAtATime",
})

// reserve is the space that a snapshot leaves free on the disk of the data directory, in bytes: the store may
// be on it.
const reserve = 64 << 20

// Options describe what a Taker takes snapshots of.
type Options struct {
	Dir     *os.Root // the data directory
	Tier    string   // Root or Cluster
	Cluster string   // its name
	Version string
	// Authority returns the certificate of the daemon's authority. It is called while Keys is held.
	Authority func() *x509.Certificate
	// All calls fn with all documents as of one moment (see view.Store).
	All func(ctx context.Context, fn func(d store.Doc, again bool) error) error
	// Position returns the position in the log of a store that replicas share; nil: there is none.
	Position func() uint64
	// Keys is held while the key files are read; nil: they do not change.
	Keys sync.Locker
	Now  func() time.Time // default time.Now
}

// Taker takes snapshots, one at a time. It is safe for concurrent use.
type Taker struct {
	opt Options
	one sync.Mutex // held from Take until File.Close
}

// NewTaker returns a Taker.
func NewTaker(o Options) *Taker {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Taker{opt: o}
}

// File is a complete snapshot in a file without a name. Close deletes it.
type File struct {
	header Header
	r      io.Reader
	size   int64
	f      *os.File
	close  func()
	once   sync.Once
}

// Header returns the header.
func (f *File) Header() Header { return f.header }

// Size returns the size in bytes.
func (f *File) Size() int64 { return f.size }

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) { return f.r.Read(p) }

// Close deletes the snapshot, and lets the next one begin.
func (f *File) Close() error {
	var err error
	f.once.Do(func() {
		err = f.f.Close()
		f.close()
	})
	return err
}

// Take takes a snapshot that is encrypted to recipients. Errors: ErrInvalid (a recipient), ErrConflict (another
// one is being taken, or read), ErrFull (too little disk space), and those of All. The caller closes the file.
func (t *Taker) Take(ctx context.Context, recipients []string) (_ *File, err error) {
	to, err := Recipients(recipients)
	if err != nil {
		return nil, err
	}
	if !t.one.TryLock() {
		return nil, fmt.Errorf("take a snapshot: another one is being taken or transferred; try again when it has ended: %w", api.ErrConflict)
	}
	f, err := t.spool()
	defer func() {
		if err != nil {
			if f != nil {
				_ = f.Close()
			}
			t.one.Unlock()
			err = fmt.Errorf("take a snapshot: %w", err)
		}
	}()
	if err != nil {
		return nil, err
	}
	h := Header{
		Format: Format, Version: t.opt.Version, Tier: t.opt.Tier, Cluster: t.opt.Cluster,
		Time: t.opt.Now().UTC().Truncate(time.Second), Recipients: slices.Clone(recipients),
	}
	out := &spooled{f: f, sum: sha256.New()}
	if err := t.write(ctx, out, to, &h); err != nil {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = fmt.Errorf("%w (%w)", api.ErrFull, err)
		}
		return nil, err
	}
	h.Size, h.SHA256 = out.n, fmt.Sprintf("%x", out.sum.Sum(nil))
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	head = append([]byte(magic), append(head, '\n')...)
	return &File{header: h, r: io.MultiReader(bytes.NewReader(head), f), size: int64(len(head)) + h.Size, f: f, close: t.one.Unlock}, nil
}

// spool creates a file without a name in the data directory.
func (t *Taker) spool() (*os.File, error) {
	const name = "snapshot.part"
	if err := t.opt.Dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a crash
		return nil, err
	}
	f, err := t.opt.Dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return f, t.opt.Dir.Remove(name)
}

// write writes the encrypted part, and completes the header but for what is known after it.
func (t *Taker) write(ctx context.Context, to io.Writer, recipients []age.Recipient, h *Header) error {
	sealed, err := age.Encrypt(to, recipients...)
	if err != nil {
		return err
	}
	packed := gzip.NewWriter(sealed)
	archive := tar.NewWriter(packed)
	if err := t.writeKeys(archive, h); err != nil {
		return err
	}
	err = t.opt.All(ctx, func(d store.Doc, again bool) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		h.Documents++
		h.Bytes += int64(len(d.Data))
		if h.Documents > maxDocs || h.Bytes > maxBytes {
			return fmt.Errorf("the store has more than %d documents or %d GiB: %w", maxDocs, maxBytes>>30, api.ErrTooLarge)
		}
		records := map[string]string{paxKind: d.Kind, paxKey: d.Key}
		if again {
			records[paxAgain] = "1"
		}
		if d.Data == nil {
			records[paxDeleted] = "1"
		}
		return entry(archive, docPrefix+strconv.Itoa(h.Documents), d.Data, records)
	})
	if err != nil {
		return err
	}
	if t.opt.Position != nil {
		h.Position = t.opt.Position()
	}
	text, err := json.Marshal(h.inner())
	if err != nil {
		return err
	}
	if err := entry(archive, headerName, text, nil); err != nil {
		return err
	}
	for _, c := range []io.Closer{archive, packed, sealed} {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// writeKeys writes the key files that exist.
func (t *Taker) writeKeys(archive *tar.Writer, h *Header) error {
	if t.opt.Keys != nil {
		t.opt.Keys.Lock()
		defer t.opt.Keys.Unlock()
	}
	h.Authority = fmt.Sprintf("%x", sha256.Sum256(t.opt.Authority().RawSubjectPublicKeyInfo))
	for i, name := range KeyFiles(t.opt.Tier) {
		text, err := t.opt.Dir.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the keys: %w", err)
		}
		if err := entry(archive, keyPrefix+name, text, nil); err != nil {
			return err
		}
		h.Keys = append(h.Keys, name)
	}
	return nil
}

func entry(archive *tar.Writer, name string, data []byte, records map[string]string) error {
	err := archive.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o600, Typeflag: tar.TypeReg, PAXRecords: records})
	if err == nil {
		_, err = archive.Write(data)
	}
	return err
}

// spooled writes the encrypted part to its temporary file. It fails with ErrFull when less than reserve would stay free.
type spooled struct {
	f       *os.File
	sum     hash.Hash
	n       int64
	checked int64
}

// Write implements io.Writer.
func (s *spooled) Write(p []byte) (int, error) {
	if s.n == 0 || s.n-s.checked >= 8<<20 {
		s.checked = s.n
		var fs unix.Statfs_t
		if err := unix.Fstatfs(int(s.f.Fd()), &fs); err == nil && int64(fs.Bavail)*int64(fs.Bsize) < reserve {
			return 0, fmt.Errorf("less than %d MiB are free on the disk of the data directory, which the store may need: %w", reserve>>20, api.ErrFull)
		}
	}
	n, err := s.f.Write(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	return n, err
}
