package checks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/inside"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// place is where a workload is reached: an address in a network namespace.
type place struct {
	mu      sync.Mutex // guards the fields below
	address netip.Addr // invalid: not known yet
	ns      *os.File   // nil: the host's
	closed  bool
}

func (p *place) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.ns != nil {
		_ = p.ns.Close()
		p.ns = nil
	}
}

// addr returns the address after a successful dial.
func (p *place) addr() netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

// errNoPlace is the error of a workload whose network namespace is not known: it has just ended.
var errNoPlace = errors.New("the workload has no network namespace now")

// errNoSocket is the error of this machine, which says nothing about the workload.
var errNoSocket = inside.ErrNoSocket

// dial connects to a port of the workload. It fails with errNoPlace or errNoSocket if it cannot find
// out whether the port accepts connections.
func (c *Checks) dial(ctx context.Context, t *target, port int) (net.Conn, error) {
	f, err := c.connect(ctx, t, port)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoSocket, err)
	}
	return conn, nil
}

// connect is dial without the use of the connection, which the caller closes.
func (c *Checks) connect(ctx context.Context, t *target, port int) (*os.File, error) {
	fd, at, err := c.socket(ctx, t)
	if err != nil {
		return nil, err
	}
	return inside.Connect(ctx, fd, at, port, "health check of "+at.String())
}

// socket creates a socket in the workload's network, and returns the workload's address.
func (c *Checks) socket(ctx context.Context, t *target) (fd int, at netip.Addr, err error) {
	p := &t.place
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed: // without its namespace, the socket would be the host's
		return 0, at, errNoPlace
	case !p.address.IsValid():
		if err := c.find(ctx, t); err != nil {
			return 0, at, err
		}
	}
	if fd, err = c.sockets.Create(p.ns); err != nil {
		err = fmt.Errorf("%w: %w", errNoSocket, err)
	}
	return fd, p.address, err
}

// find sets where the workload is reached. The namespace is kept open, because the number of its
// process may be reused by another workload. place.mu is held.
func (c *Checks) find(ctx context.Context, t *target) error {
	p, at := &t.place, t.Address
	if !at.IsValid() {
		at = localhost
	}
	n, ok := c.opt.Runtime.(runtime.Namespaced)
	if !ok {
		p.address = localhost
		return nil
	}
	path, w, err := n.Namespace(ctx, t.Key)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoPlace, err)
	}
	if path == "" {
		// It shares the host's network, or has ended. Only its kind and the configuration tell: a check
		// of a workload that has ended must not reach the host.
		if t.Address.IsValid() || !c.opt.HostNetwork && w.Spec.Virtualization != api.Process {
			return errNoPlace
		}
		p.address = localhost
		return nil
	}
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoPlace, err)
	}
	again, _, err := n.Namespace(ctx, t.Key)
	if err != nil || again != path { // it ended, and path may be that of another process
		return errors.Join(errNoPlace, err, ns.Close())
	}
	p.address, p.ns = at, ns
	return nil
}
