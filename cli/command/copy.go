package command

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

// copyTo copies a file or directory of this machine to an instance.
func (c *cli) copyTo(ctx context.Context, a *client.Client, from string, id api.InstanceID, to string) error {
	source, err := filepath.EvalSymlinks(from)
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	dir, name := path.Split(to)
	if name == "" {
		abs, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		name = filepath.Base(abs)
	}
	if dir == "" {
		dir = "."
	}
	in, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(out, source, name)
		_ = out.CloseWithError(err)
		packed <- err
	}()
	err = c.tar(ctx, a, id, in, io.Discard, "-xf", "-", "-C", dir)
	_ = in.CloseWithError(io.ErrClosedPipe)
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return fmt.Errorf("copy %s: %w", from, perr)
	}
	return err
}

// pack writes a file, or a directory with its content, as a tar archive under a name.
func pack(w io.Writer, from, name string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(from, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !e.IsDir() && !e.Type().IsRegular() {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name = path.Join(name, filepath.ToSlash(rel))
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
		if err := tw.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(tw, f)
		return err
	})
	return errors.Join(err, tw.Close())
}

// copyFrom copies a file or directory of an instance to this machine.
func (c *cli) copyFrom(ctx context.Context, a *client.Client, id api.InstanceID, from, to string) error {
	dir, base := path.Split(path.Clean(from))
	if dir == "" {
		dir = "."
	}
	if base == ".." || base == "." || base == "/" || base == "" {
		return usage("%s: name the file or directory to copy", from)
	}
	name := base
	if !strings.HasSuffix(to, "/") && !strings.HasSuffix(to, string(filepath.Separator)) {
		if info, err := os.Stat(to); err != nil || !info.IsDir() {
			to, name = filepath.Split(to)
		}
	}
	if to == "" {
		to = "."
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	in, out := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := unpack(in, root, base, name)
		_ = in.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		unpacked <- err
	}()
	err = c.tar(ctx, a, id, nil, out, "-cf", "-", "-C", dir, "--", base)
	_ = out.CloseWithError(err)
	if uerr := <-unpacked; uerr != nil && (err == nil || !errors.Is(uerr, err)) {
		return fmt.Errorf("copy %s: %w", from, uerr)
	}
	return err
}

// unpack writes the files and directories of an archive below root, where base is called name. The
// archive comes from a workload: root keeps names and links from leading out of the directory.
func unpack(r io.Reader, root *os.Root, base, name string) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // the padding
			return err
		}
		if err != nil {
			return err
		}
		clean := path.Clean(h.Name)
		rest, ok := strings.CutPrefix(clean, base)
		if !ok || rest != "" && rest[0] != '/' {
			return fmt.Errorf("the archive contains %q, which is not in %q: %w", h.Name, base, api.ErrInvalid)
		}
		to := filepath.FromSlash(path.Join(name, rest))
		mode := h.FileInfo().Mode().Perm()
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(to, mode|0o700)
		case tar.TypeReg:
			err = unpackFile(tr, root, to, mode)
		}
		if err != nil {
			return err
		}
	}
}

func unpackFile(r io.Reader, root *os.Root, to string, mode fs.FileMode) error {
	if err := root.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
