package volume

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// A snapshot is a tar archive: the entry headName, the files of the volume below filesName, and the entry
// endName with a checksum of all entries before it. An archive without that entry, or with another
// checksum, is not complete, and is not restored.
//
// The archive has files and not blocks, because the kernel must not mount a file system that somebody
// else has made.

const (
	headName  = "treeline-snapshot.json"
	filesName = "files/"
	endName   = "treeline-end.json"

	snapshotVersion = 1
	maxHead         = 4 << 10
	maxFiles        = 1 << 20
)

type snapshotHead struct {
	Version int          `json:"version"`
	Volume  api.VolumeID `json:"volume"`
	SizeMB  int64        `json:"size_mb"`
	Taken   time.Time    `json:"taken"`
	// Running reports whether a workload had the volume. The files are then as after a loss of power.
	Running bool `json:"running"`
}

type snapshotEnd struct {
	Files  int    `json:"files"`
	SHA256 string `json:"sha256"`
}

// Snapshot writes the files of a local volume to w. While a workload has the volume, its writes wait
// until the files were copied to the disk of the node; w is written afterwards. Errors: ErrNotFound,
// ErrFull (the disk has no space for the copy), ErrInvalid (its files are larger than the volume, because
// they are sparse).
func (m *Manager) Snapshot(ctx context.Context, id api.VolumeID, w io.Writer) error {
	copied, err := m.copyFiles(ctx, id)
	if err != nil {
		return fmt.Errorf("snapshot volume %s: %w", id, err)
	}
	defer copied.Close() // it has no name, so that nothing is left after a crash
	if _, err := io.Copy(w, copied); err != nil {
		return fmt.Errorf("snapshot volume %s: %w", id, err)
	}
	return nil
}

func (m *Manager) copyFiles(ctx context.Context, id api.VolumeID) (copied *os.File, err error) {
	v, err := m.take(record{Type: api.VolumeLocal, Instance: id.Instance(), Name: id.Label()})
	if err != nil {
		return nil, err
	}
	defer v.busy.Unlock()
	if v.Instance == "" {
		m.forget(v)
		return nil, api.ErrNotFound
	}
	fd, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "create a file in", Path: m.dir, Err: err}
	}
	copied = os.NewFile(uintptr(fd), "snapshot")
	defer func() {
		if err != nil {
			err = errors.Join(err, copied.Close())
			copied = nil
		}
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: %w", api.ErrFull, err)
		}
	}()
	if err := attach(v.dir); err != nil {
		return copied, err
	}
	at := filepath.Join(v.dir, mountDir)
	if v.Held {
		thaw, err := freeze(at)
		if err != nil {
			return copied, err
		}
		defer func() { err = errors.Join(err, thaw()) }()
	} else {
		defer func() { err = errors.Join(err, detach(v.dir)) }()
	}
	head := snapshotHead{Version: snapshotVersion, Volume: id, SizeMB: v.SizeMB, Taken: time.Now().UTC(), Running: v.Held}
	if err := writeSnapshot(ctx, copied, filepath.Join(at, dataDir), head); err != nil {
		return copied, err
	}
	_, err = copied.Seek(0, io.SeekStart)
	return copied, err
}

// The requests of ioctl_fs.h, which package unix does not have.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// freeze makes writes to a file system wait, after what was written is on the disk.
func freeze(at string) (thaw func() error, err error) {
	d, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetInt(int(d.Fd()), fiFreeze, 0); err != nil {
		return nil, errors.Join(&os.PathError{Op: "freeze", Path: at, Err: err}, d.Close())
	}
	return func() error {
		return errors.Join(unix.IoctlSetInt(int(d.Fd()), fiThaw, 0), d.Close())
	}, nil
}

// thawLeft ends a freeze that an earlier process did not end.
func thawLeft(at string) error {
	d, err := os.Open(at)
	if err != nil {
		return err
	}
	err = unix.IoctlSetInt(int(d.Fd()), fiThaw, 0)
	if errors.Is(err, unix.EINVAL) { // it is not frozen
		err = nil
	}
	return errors.Join(err, d.Close())
}

// checksum sums the entries of a snapshot.
type checksum struct {
	hash.Hash
	files int
}

func newChecksum() *checksum { return &checksum{Hash: sha256.New()} }

func (c *checksum) entry(h *tar.Header) {
	c.files++
	fmt.Fprintf(c, "%q %c %o %d %d %d %q\n", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Size, h.Linkname)
}

func (c *checksum) end() snapshotEnd {
	return snapshotEnd{Files: c.files, SHA256: hex.EncodeToString(c.Sum(nil))}
}

func writeSnapshot(ctx context.Context, w io.Writer, dir string, head snapshotHead) error {
	t, sum, left := tar.NewWriter(w), newChecksum(), head.SizeMB<<20
	add := func(h *tar.Header, content io.Reader) error {
		h.Format = tar.FormatPAX
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		sum.entry(h)
		_, err := io.CopyN(io.MultiWriter(t, sum), content, h.Size)
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := addJSON(add, headName, head); err != nil {
		return err
	}
	first := map[uint64]string{} // the name of a file with several links, by inode
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		h := &tar.Header{
			Name: path.Join(filesName, name), Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid), ModTime: info.ModTime(),
		}
		switch {
		case info.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case info.Mode()&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = root.Readlink(name); err != nil {
				return err
			}
		case !info.Mode().IsRegular():
			return nil // sockets, pipes and devices
		case stat.Nlink > 1 && first[stat.Ino] != "":
			h.Typeflag, h.Linkname = tar.TypeLink, first[stat.Ino]
		default:
			if stat.Nlink > 1 {
				first[stat.Ino] = h.Name
			}
			h.Typeflag, h.Size = tar.TypeReg, info.Size()
			if left -= h.Size; left < 0 {
				return fmt.Errorf("its files have more than the %d MiB of the volume, because some are sparse: %w", head.SizeMB, api.ErrInvalid)
			}
			f, err := root.Open(name)
			if err != nil {
				return err
			}
			return errors.Join(add(h, f), f.Close())
		}
		return add(h, strings.NewReader(""))
	})
	if err != nil {
		return err
	}
	return errors.Join(addJSON(add, endName, sum.end()), t.Close())
}

func addJSON(add func(*tar.Header, io.Reader) error, name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(text))}, strings.NewReader(string(text)))
}

// Restore replaces the files of a local volume, which no placement has, with those of a snapshot. The
// volume keeps its files if the snapshot is not complete. Errors: ErrNotFound, ErrConflict (a placement
// has it), ErrInvalid (the snapshot is not complete, or has more than a snapshot has), ErrFull (the disk
// has no space for both, or the files do not fit into the volume).
func (m *Manager) Restore(ctx context.Context, id api.VolumeID, r io.Reader) error {
	if err := m.restore(ctx, id, r); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: %w", api.ErrFull, err)
		}
		return fmt.Errorf("restore volume %s: %w", id, err)
	}
	return nil
}

func (m *Manager) restore(ctx context.Context, id api.VolumeID, r io.Reader) (err error) {
	v, err := m.take(record{Type: api.VolumeLocal, Instance: id.Instance(), Name: id.Label()})
	if err != nil {
		return err
	}
	defer v.busy.Unlock()
	switch {
	case v.Instance == "":
		m.forget(v)
		return api.ErrNotFound
	case v.Held:
		return fmt.Errorf("the placement %s still has it: %w", v.Epoch, api.ErrConflict)
	}
	dir, err := os.MkdirTemp(m.dir, newPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(dir)) }()
	if err := errors.Join(format(ctx, dir, v.SizeMB), attach(dir)); err != nil {
		return err
	}
	if err := readSnapshot(ctx, r, filepath.Join(dir, mountDir, dataDir)); err != nil {
		return err
	}
	if err := errors.Join(detach(dir), v.write(dir), detach(v.dir)); err != nil {
		return err
	}
	// From here on, dir is the volume that was replaced.
	if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, v.dir, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "exchange", Old: dir, New: v.dir, Err: err}
	}
	return syncDir(m.dir)
}

func readSnapshot(ctx context.Context, r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t, sum := tar.NewReader(r), newChecksum()
	var head snapshotHead
	if err := readJSON(t, sum, headName, &head); err != nil {
		return err
	}
	if head.Version != snapshotVersion {
		return fmt.Errorf("the snapshot has version %d, want %d: %w", head.Version, snapshotVersion, api.ErrInvalid)
	}
	for {
		want := sum.end()
		h, err := t.Next()
		if err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil:
			return incomplete(err)
		case h.Name == endName:
			var got snapshotEnd
			if err := decode(t, h, &got); err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("the snapshot has %d entries with checksum %s, its end says %d with %s: %w", want.Files, want.SHA256, got.Files, got.SHA256, api.ErrInvalid)
			}
			return nil
		case sum.files > maxFiles:
			return fmt.Errorf("the snapshot has more than %d files: %w", maxFiles, api.ErrInvalid)
		}
		sum.entry(h)
		if err := extract(root, h, io.TeeReader(t, sum)); err != nil {
			return err
		}
	}
}

func incomplete(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) {
		return fmt.Errorf("the snapshot is not complete: %w: %w", api.ErrInvalid, err)
	}
	return err
}

func readJSON(t *tar.Reader, sum *checksum, name string, v any) error {
	h, err := t.Next()
	if err != nil {
		return incomplete(err)
	}
	if h.Name != name {
		return fmt.Errorf("this is no snapshot of a volume: its first entry is %q, want %q: %w", h.Name, name, api.ErrInvalid)
	}
	sum.entry(h)
	return decode(io.TeeReader(t, sum), h, v)
}

func decode(r io.Reader, h *tar.Header, v any) error {
	if h.Size > maxHead {
		return fmt.Errorf("entry %s of the snapshot has %d bytes, want at most %d: %w", h.Name, h.Size, maxHead, api.ErrInvalid)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return incomplete(err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("entry %s of the snapshot: %w: %w", h.Name, api.ErrInvalid, err)
	}
	return nil
}

// extract creates an entry of a snapshot. root keeps it from leaving the volume by its name or by links.
func extract(root *os.Root, h *tar.Header, content io.Reader) error {
	name, below := strings.CutPrefix(path.Clean(h.Name)+"/", filesName)
	if name = strings.TrimSuffix(name, "/"); !below || !filepath.IsLocal(path.Join(".", name)) {
		return fmt.Errorf("entry %q is not below %s: %w", h.Name, filesName, api.ErrInvalid)
	}
	name = path.Join(".", name)
	mode := h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case tar.TypeSymlink:
		return errors.Join(root.Symlink(h.Linkname, name), root.Lchown(name, h.Uid, h.Gid))
	case tar.TypeLink:
		old, below := strings.CutPrefix(path.Clean(h.Linkname), filesName)
		if !below {
			return fmt.Errorf("entry %q links to %q: %w", h.Name, h.Linkname, api.ErrInvalid)
		}
		return root.Link(old, name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return incomplete(err)
		}
	default:
		return fmt.Errorf("entry %q has type %q: %w", h.Name, h.Typeflag, api.ErrInvalid)
	}
	return errors.Join(root.Lchown(name, h.Uid, h.Gid), root.Chmod(name, mode), root.Chtimes(name, h.ModTime, h.ModTime))
}
