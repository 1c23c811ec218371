package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

var implementations = map[string]func(prefix string) (dataplane.Plane, error){
	"nft":  func(prefix string) (dataplane.Plane, error) { return nft.New(prefix) },
	"ebpf": func(prefix string) (dataplane.Plane, error) { return ebpf.New(prefix) },
}

// Planes opens the configured data plane; for "auto" eBPF, or nftables if the kernel does
// not support eBPF.
type Planes struct {
	want, prefix string
	all          map[string]func(prefix string) (dataplane.Plane, error)
	data         *os.Root
	log          *slog.Logger

	open atomic.Pointer[string] // name of the open plane
}

// NewPlanes returns an opener of the data plane want: "auto", "ebpf" or "nft". It saves in data
// which plane is in the kernel.
func NewPlanes(want, prefix string, data *os.Root, log *slog.Logger) *Planes {
	return &Planes{want: want, prefix: prefix, all: implementations, data: data, log: log}
}

// Name returns the name of the open plane; "" before Open.
func (c *Planes) Name() string {
	if n := c.open.Load(); n != nil {
		return *n
	}
	return ""
}

// Open opens the data plane, and removes the other one if an earlier start left it.
func (c *Planes) Open() (dataplane.Plane, error) {
	if c.want != "auto" {
		return c.take(c.want)
	}
	p, err := c.take("ebpf")
	if errors.Is(err, api.ErrUnavailable) {
		c.log.Info("eBPF unavailable, falling back to nftables", "err", err)
		return c.take("nft")
	}
	if err != nil {
		return nil, err
	}
	return &fallback{Plane: p, instead: func(why error) (dataplane.Plane, error) {
		c.log.Warn("kernel refused eBPF, falling back to nftables", "err", why)
		return c.take("nft")
	}}, nil
}

// starter is a plane that the kernel may not support. A plane whose start fails with another error
// than ErrUnavailable is started again by its first Sync.
type starter interface{ Start() error }

// take opens the plane of that name and removes the other. If the kernel does not support the plane, the
// other one stays, and the error is ErrUnavailable.
func (c *Planes) take(name string) (dataplane.Plane, error) {
	p, err := c.all[name](c.prefix)
	if err != nil {
		return nil, fmt.Errorf("open data plane %s: %w", name, err)
	}
	if s, ok := p.(starter); ok && c.want == "auto" {
		if err := s.Start(); errors.Is(err, api.ErrUnavailable) {
			return nil, errors.Join(err, p.Close())
		}
	}
	if err := c.removeOther(name); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	c.open.Store(&name)
	c.log.Info("data plane opened", "plane", name)
	return p, nil
}

const planeFile = "plane"

// removeOther removes the plane of another name that an earlier start left, and saves name
// as the one in the kernel.
func (c *Planes) removeOther(name string) error {
	was, err := c.data.ReadFile(planeFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the name of the last data plane: %w", err)
	}
	if string(was) == name { // do not write it again: the disk may be full
		return nil
	}
	if open := c.all[string(was)]; open != nil {
		if err := removePlane(open, c.prefix); err != nil {
			return fmt.Errorf("remove data plane %s: %w", was, err)
		}
	}
	if err := ca.WriteFile(c.data, planeFile, []byte(name), 0o600); err != nil {
		return fmt.Errorf("save the name of the data plane: %w", err)
	}
	return nil
}

func removePlane(open func(prefix string) (dataplane.Plane, error), prefix string) error {
	p, err := open(prefix)
	if err != nil {
		return err
	}
	return errors.Join(p.Remove(context.Background()), p.Close())
}

// RemovePlanes removes all data planes of the prefix from the kernel.
func RemovePlanes(prefix string) error {
	err := removePlane(implementations["nft"], prefix)
	if ebpf.Available() == nil {
		err = errors.Join(err, removePlane(implementations["ebpf"], prefix))
	}
	return err
}

// fallback is a plane that another one replaces if the kernel rejects its first Sync, because
// devices may reject programs that the kernel has loaded. After a successful Sync it is not
// replaced, so that its flows continue.
type fallback struct {
	dataplane.Plane
	instead func(why error) (dataplane.Plane, error) // nil: no replacement
	failed  int                                      // Syncs in a row
}

// maxFailedSyncs is how often the first Sync may fail with a temporary error, about half a minute,
// before the plane of an earlier start is replaced and its flows end.
const maxFailedSyncs = 10

// Sync implements dataplane.Plane.
func (f *fallback) Sync(ctx context.Context, s plane.State) error {
	err := f.Plane.Sync(ctx, s)
	switch {
	case err == nil:
		f.instead = nil
		return nil
	case f.instead == nil || ctx.Err() != nil || errors.Is(err, api.ErrInvalid): // every plane rejects an invalid state
		return err
	}
	if f.failed++; !permanent(err) && f.failed < maxFailedSyncs {
		return err
	}
	p, refused := f.instead(err)
	if refused != nil {
		return errors.Join(err, refused)
	}
	_ = f.Plane.Close() // its state in the kernel is removed already
	f.Plane, f.instead = p, nil
	return p.Sync(ctx, s)
}

// permanent reports whether a failed Sync would fail again because the kernel lacks support.
// A machine that is short of a resource may have it later.
func permanent(err error) bool {
	scarce := []error{unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR, unix.EBUSY, unix.EMFILE, unix.ENFILE}
	if slices.ContainsFunc(scarce, func(e error) bool { return errors.Is(err, e) }) {
		return false
	}
	return errors.Is(err, api.ErrUnavailable) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission)
}
