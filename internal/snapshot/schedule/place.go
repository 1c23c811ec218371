//go:build unix

package schedule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/internal/s3"
)

// place is where snapshots are written.
type place interface {
	// write writes a snapshot of size bytes, which is there as a whole or not at all.
	write(ctx context.Context, name string, size int64, from io.Reader) error
	// read passes the content to fn.
	read(ctx context.Context, name string, fn func(io.Reader) error) error
	// remove deletes the snapshot, and parts of it. It succeeds if there is none.
	remove(ctx context.Context, name string) error
}

func (r *Runner) place() place {
	if to := r.opt.Config.To; strings.HasPrefix(to, s3.Scheme) {
		return bucket{to, s3.Options{Endpoint: r.opt.Config.Endpoint, Env: r.opt.Env}}
	}
	return directory(r.opt.Config.To)
}

// directory is a directory of this machine.
type directory string

// partSuffix is that of a file that is being written.
const partSuffix = ".part"

func (d directory) write(ctx context.Context, name string, _ int64, from io.Reader) (err error) {
	path := filepath.Join(string(d), name)
	f, err := os.OpenFile(path+partSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = fmt.Errorf("%w (%w)", api.ErrFull, err)
		}
	}()
	_, err = io.Copy(f, while{ctx, from})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return durable.SyncDir(string(d))
}

// while is a reader that fails when ctx ends.
type while struct {
	ctx  context.Context
	from io.Reader
}

// Read implements io.Reader.
func (w while) Read(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.from.Read(p)
}

func (d directory) read(ctx context.Context, name string, fn func(io.Reader) error) error {
	f, err := os.Open(filepath.Join(string(d), name))
	if err != nil {
		return err
	}
	defer f.Close()
	return fn(while{ctx, f})
}

func (d directory) remove(_ context.Context, name string) error {
	for _, path := range []string{name, name + partSuffix} {
		if err := os.Remove(filepath.Join(string(d), path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// bucket is a prefix of a bucket of an S3-compatible server.
type bucket struct {
	prefix  string // s3://BUCKET/PREFIX/
	options s3.Options
}

func (b bucket) do(name string, fn func(*s3.Object) error) error {
	o, err := s3.Parse(b.prefix+name, b.options)
	if err != nil {
		return err
	}
	defer o.Close()
	return fn(o)
}

func (b bucket) write(ctx context.Context, name string, size int64, from io.Reader) error {
	return b.do(name, func(o *s3.Object) error {
		return o.Write(ctx, size, func(w io.Writer) error {
			_, err := io.Copy(w, from)
			return err
		})
	})
}

func (b bucket) read(ctx context.Context, name string, fn func(io.Reader) error) error {
	return b.do(name, func(o *s3.Object) error { return o.Read(ctx, fn) })
}

func (b bucket) remove(ctx context.Context, name string) error {
	return b.do(name, func(o *s3.Object) error { return o.Remove(ctx) })
}
