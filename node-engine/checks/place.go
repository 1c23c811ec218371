package checks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	goruntime "runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
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
var errNoSocket = errors.New("create a socket")

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
	// A connection within a machine is usually established, or refused, when connect returns.
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: at.As4()})
	if errors.Is(err, unix.EINPROGRESS) {
		err = connected(fd)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "health check of "+at.String())
	if err != nil {
		if err = await(ctx, f); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return f, nil
}

// connected returns the result of a connect that was begun, EINPROGRESS if there is none yet.
func connected(fd int) error {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return err
	case code != 0:
		return unix.Errno(code)
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return unix.EINPROGRESS
	}
	return nil
}

// await waits for the result of a connect that was begun.
func await(ctx context.Context, f *os.File) error {
	if end, ok := ctx.Deadline(); ok {
		_ = f.SetDeadline(end)
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetDeadline(past) })()
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("%w: %w", errNoSocket, err)
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		result = connected(int(fd))
		return !errors.Is(result, unix.EINPROGRESS)
	})
	if err != nil {
		return err
	}
	return result
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
	if fd, err = c.sockets.create(p.ns); err != nil {
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

// sockets creates sockets in network namespaces, on a thread that it enters them with.
type sockets struct {
	start    sync.Once
	requests chan socketRequest
	ended    chan struct{}
}

type socketRequest struct {
	ns     int
	answer chan<- socketAnswer
}

type socketAnswer struct {
	fd  int
	err error
}

func newSockets() *sockets {
	return &sockets{requests: make(chan socketRequest), ended: make(chan struct{})}
}

func (s *sockets) close() { close(s.ended) }

// create returns a TCP socket in a network namespace; nil: the host's.
func (s *sockets) create(ns *os.File) (fd int, err error) {
	if ns == nil {
		return tcpSocket()
	}
	s.start.Do(func() { go s.run() })
	answer := make(chan socketAnswer, 1)
	select {
	case s.requests <- socketRequest{int(ns.Fd()), answer}:
		a := <-answer
		goruntime.KeepAlive(ns)
		return a.fd, a.err
	case <-s.ended:
		return 0, context.Canceled
	}
}

// run serves requests. The thread ends with the goroutine, because it stays in a namespace.
func (s *sockets) run() {
	goruntime.LockOSThread()
	for {
		select {
		case r := <-s.requests:
			var a socketAnswer
			if a.err = unix.Setns(r.ns, unix.CLONE_NEWNET); a.err == nil {
				a.fd, a.err = tcpSocket()
			}
			r.answer <- a
		case <-s.ended:
			return
		}
	}
}

func tcpSocket() (int, error) {
	return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}
