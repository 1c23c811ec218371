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
	maxDepth        = 256 // of directories, each of which is open while it is read
	maxName         = 4096
	dirBatch        = 256      // entries of a directory that are in memory at once
	maxLinked       = 64 << 20 // bytes of the paths of files with several names, which are in memory
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

// cancelled is a reader that fails when ctx ends.
type cancelled struct {
	ctx  context.Context
	from io.Reader
}

// Read implements io.Reader.
func (c cancelled) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.from.Read(p)
}

// packer writes the archive of one volume.
type packer struct {
	ctx   context.Context
	tar   *tar.Writer
	sum   *checksum
	root  *os.Root
	first map[uint64]string // the name of a file with several links, by inode
	kept  int               // bytes of these names
	size  int64             // in bytes, that the files may have
	left  int64             // of size
}

func writeArchive(ctx context.Context, w io.Writer, dir string, head snapshotHead) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	p := &packer{
		ctx: ctx, tar: tar.NewWriter(w), sum: newChecksum(), root: root, first: map[uint64]string{},
		size: head.SizeMB << 20, left: head.SizeMB << 20,
	}
	if err := p.addJSON(headName, head); err != nil {
		return err
	}
	info, err := root.Lstat(".")
	if err == nil {
		err = p.file(".", info)
	}
	if err == nil {
		err = p.dir(".", 0)
	}
	if err != nil {
		return err
	}
	return errors.Join(p.addJSON(endName, p.sum.end()), p.tar.Close())
}

func (p *packer) add(h *tar.Header, content io.Reader) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	h.Format = tar.FormatPAX
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	p.sum.entry(h)
	_, err := io.CopyN(io.MultiWriter(p.tar, p.sum), cancelled{p.ctx, content}, h.Size)
	return err
}

func (p *packer) addJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(text))}, strings.NewReader(string(text)))
}

// dir adds what is in a directory. It has a part of the directory in memory only: a tenant can make one
// with millions of entries.
func (p *packer) dir(name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("it has directories in more than %d levels: %w", maxDepth, api.ErrInvalid)
	}
	d, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		part, err := d.ReadDir(dirBatch)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range part {
			below := path.Join(name, e.Name())
			info, err := p.root.Lstat(below)
			if err == nil {
				err = p.file(below, info)
			}
			if err == nil && info.IsDir() {
				err = p.dir(below, depth+1)
			}
			if err != nil {
				return err
			}
		}
	}
}

// file adds one file, without what is in a directory. It leaves out sockets, pipes and devices.
func (p *packer) file(name string, info fs.FileInfo) error {
	if p.sum.files > maxFiles {
		return fmt.Errorf("it has more than %d files: %w", maxFiles, api.ErrInvalid)
	}
	stat := info.Sys().(*syscall.Stat_t)
	h := &tar.Header{
		Name: path.Join(filesName, name), Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid), ModTime: info.ModTime(),
	}
	if len(h.Name) > maxName {
		return fmt.Errorf("it has a file whose path has more than %d bytes: %w", maxName, api.ErrInvalid)
	}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := p.root.Readlink(name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, to
	case !info.Mode().IsRegular():
		return nil
	case stat.Nlink > 1 && p.first[stat.Ino] != "":
		h.Typeflag, h.Linkname = tar.TypeLink, p.first[stat.Ino]
	default:
		if stat.Nlink > 1 {
			if p.kept += len(h.Name); p.kept > maxLinked {
				return fmt.Errorf("the paths of its files with several names have more than %d MiB: %w", maxLinked>>20, api.ErrInvalid)
			}
			p.first[stat.Ino] = h.Name
		}
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
		if p.left -= h.Size; p.left < 0 {
			return fmt.Errorf("its files have more than the %d MiB of the volume, because some are sparse: %w", p.size>>20, api.ErrInvalid)
		}
		f, err := p.root.Open(name)
		if err != nil {
			return err
		}
		return errors.Join(p.add(h, f), f.Close())
	}
	return p.add(h, strings.NewReader(""))
}

// readArchive creates the files of an archive in dir. Errors: ErrInvalid (the archive is not complete, or
// has more than a snapshot has), those of the reader and of the file system. dir then has a part of them.
func readArchive(ctx context.Context, r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t, sum := tar.NewReader(cancelled{ctx, r}), newChecksum()
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
			if _, err := t.Next(); err != io.EOF { //nolint:errorlint // the end of the archive is as it is written
				return fmt.Errorf("the snapshot has something after its end: %w", errors.Join(api.ErrInvalid, err))
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
	name, err := inVolume(h.Name)
	if err != nil {
		return err
	}
	mode := h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case tar.TypeSymlink:
		return errors.Join(root.Symlink(h.Linkname, name), root.Lchown(name, h.Uid, h.Gid))
	case tar.TypeLink:
		old, err := inVolume(h.Linkname)
		if err != nil {
			return err
		}
		return root.Link(old, name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err = errors.Join(err, f.Close()); err != nil {
			return incomplete(err)
		}
	default:
		return fmt.Errorf("entry %q has type %q: %w", h.Name, h.Typeflag, api.ErrInvalid)
	}
	return errors.Join(root.Lchown(name, h.Uid, h.Gid), root.Chmod(name, mode), root.Chtimes(name, h.ModTime, h.ModTime))
}

// inVolume returns the path of an entry in the volume. Each step of a path costs a system call.
func inVolume(entry string) (string, error) {
	name, below := strings.CutPrefix(path.Clean(entry)+"/", filesName)
	name = path.Join(".", strings.TrimSuffix(name, "/"))
	if !below || !filepath.IsLocal(name) || len(entry) > maxName || strings.Count(name, "/") > maxDepth {
		return "", fmt.Errorf("entry %.100q is not below %s, or in more than %d levels: %w", entry, filesName, maxDepth, api.ErrInvalid)
	}
	return name, nil
}
