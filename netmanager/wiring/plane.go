package wiring

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// planes are what chooses and rewrites in the kernel.
var planes = map[string]func(prefix string) (dataplane.Plane, error){
	"nft":  func(prefix string) (dataplane.Plane, error) { return nft.New(prefix) },
	"ebpf": func(prefix string) (dataplane.Plane, error) { return ebpf.New(prefix) },
}

// chooser opens the plane that is configured, or the better one that works here.
type chooser struct {
	want, prefix string
	planes       map[string]func(prefix string) (dataplane.Plane, error)
	available    func() error // why ebpf cannot be had
	data         *os.Root
	log          *slog.Logger

	now atomic.Pointer[string] // which plane there is, for whoever asks
}

func newChooser(cfg Config, data *os.Root, log *slog.Logger) *chooser {
	return &chooser{want: cfg.Plane, prefix: cfg.Prefix, planes: planes, available: ebpf.Available, data: data, log: log}
}

// name is the plane there is, empty before there is one.
func (c *chooser) name() string {
	if n := c.now.Load(); n != nil {
		return *n
	}
	return ""
}

// open opens the plane. What another one left of an earlier life goes.
func (c *chooser) open() (dataplane.Plane, error) {
	if c.want != "auto" {
		return c.take(c.want)
	}
	if err := c.available(); err != nil {
		c.log.Info("the plane is nft, because this kernel cannot do with ebpf", "why", err)
		return c.take("nft")
	}
	p, err := c.take("ebpf")
	if err != nil {
		return nil, err
	}
	return &fallback{Plane: p, instead: func(why error) (dataplane.Plane, error) {
		c.log.Warn("the plane is nft from now on, because the kernel refused ebpf", "why", why)
		return c.take("nft")
	}}, nil
}

// take opens the plane of that name, and has none of another kind beside it.
func (c *chooser) take(name string) (dataplane.Plane, error) {
	p, err := c.planes[name](c.prefix)
	if err != nil {
		return nil, fmt.Errorf("open the plane %s: %w", name, err)
	}
	if err := c.dropOther(name); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	c.now.Store(&name)
	c.log.Info("plane opened", "plane", name)
	return p, nil
}

const planeFile = "plane"

// dropOther removes what a plane of another kind left, and notes which one it is
// from now on.
func (c *chooser) dropOther(name string) error {
	was, err := c.data.ReadFile(planeFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read which plane there was: %w", err)
	}
	if string(was) == name { // on a full disk it could not be noted again
		return nil
	}
	if open := c.planes[string(was)]; open != nil {
		if err := removePlane(open, c.prefix); err != nil {
			return fmt.Errorf("remove the plane %s: %w", was, err)
		}
	}
	if err := ca.WriteFile(c.data, planeFile, []byte(name), 0o600); err != nil {
		return fmt.Errorf("note which plane there is: %w", err)
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

// fallback is a plane that gives way to another one if the kernel refuses its first
// Sync: programs that can be loaded may still not be taken by the devices that are
// there. After a Sync that went well it stays, and its flows with it.
type fallback struct {
	dataplane.Plane
	instead func(why error) (dataplane.Plane, error) // nil: it stays
	failed  int                                      // Syncs in a row
}

// patience is how many Syncs may fail for a reason that may pass, before the plane that
// an earlier life left in the kernel, with its flows, is given up: about half a minute.
const patience = 10

// Sync is dataplane.Plane's.
func (f *fallback) Sync(ctx context.Context, s plane.State) error {
	err := f.Plane.Sync(ctx, s)
	switch {
	case err == nil:
		f.instead = nil
		return nil
	case f.instead == nil || ctx.Err() != nil || errors.Is(err, api.ErrInvalid): // no plane takes what is invalid
		return err
	}
	if f.failed++; !refusal(err) && f.failed < patience {
		return err
	}
	p, refused := f.instead(err)
	if refused != nil {
		return errors.Join(err, refused)
	}
	_ = f.Plane.Close() // what it has in the kernel is removed already
	f.Plane, f.instead = p, nil
	return p.Sync(ctx, s)
}

// refusal reports whether a Sync that failed would fail again: the kernel does not do
// what it was asked for. A machine that is short of something now is none.
func refusal(err error) bool {
	for _, e := range []error{unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR, unix.EBUSY, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, e) {
			return false
		}
	}
	return errors.Is(err, api.ErrUnavailable) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission)
}
