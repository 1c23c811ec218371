// Package inside opens connections within network namespaces of workloads.
package inside

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	goruntime "runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	_ "github.com/treeline-edge/treeline/internal/mainthread"
)

// ErrNoSocket is the error of this machine, which says nothing about the workload.
var ErrNoSocket = errors.New("create a socket")

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// Connect connects a socket of Sockets.Create to an address, and takes it over. name is that of the file.
func Connect(ctx context.Context, fd int, at netip.Addr, port int, name string) (*os.File, error) {
	to := &unix.SockaddrInet4{Port: port, Addr: at.As4()}
	answered, err := begin(fd, to)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if !answered {
		if err = await(ctx, f, to); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return f, nil
}

// Probe begins a connection to an address with a socket of Sockets, and closes the socket. It does not wait:
// without an answer at once the result is not known.
func Probe(fd int, at netip.Addr, port int) (answered bool, err error) {
	answered, err = begin(fd, &unix.SockaddrInet4{Port: port, Addr: at.As4()})
	_ = unix.Close(fd)
	return answered, err
}

// begin begins to connect a socket. A connection within a machine is usually established, or refused, when
// the call returns.
func begin(fd int, to *unix.SockaddrInet4) (answered bool, err error) {
	answered, err = connected(unix.Connect(fd, to))
	if answered {
		return true, err
	}
	return connected(unix.Connect(fd, to))
}

// connected interprets the result of connect. Repeated on a socket, the call returns the result of the
// connection that was begun.
func connected(err error) (answered bool, _ error) {
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EALREADY) {
		return false, nil
	}
	return true, err
}

// await waits for the result of a connect that was begun.
func await(ctx context.Context, f *os.File, to *unix.SockaddrInet4) error {
	if end, ok := ctx.Deadline(); ok {
		_ = f.SetDeadline(end)
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetDeadline(past) })()
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	var result error
	err = raw.Write(func(fd uintptr) (answered bool) {
		answered, result = connected(unix.Connect(int(fd), to))
		return answered
	})
	if err != nil {
		return err
	}
	return result
}

// Sockets creates sockets in network namespaces, on a thread that enters them. It is safe for concurrent use.
type Sockets struct {
	start    sync.Once
	requests chan request
	ended    chan struct{}
}

type request struct {
	do   func(*Thread)
	done chan<- struct{}
}

// NewSockets returns Sockets without a thread; the first use in a namespace starts it.
func NewSockets() *Sockets {
	return &Sockets{requests: make(chan request), ended: make(chan struct{})}
}

// Close ends the thread.
func (s *Sockets) Close() { close(s.ended) }

// Create returns a TCP socket in a network namespace; nil: the host's.
func (s *Sockets) Create(ns *os.File) (fd int, err error) {
	if ns == nil {
		return tcpSocket()
	}
	if closed := s.Do(func(t *Thread) { fd, err = t.Create(ns) }); closed != nil {
		return 0, closed
	}
	return fd, err
}

// Do runs a function on the thread, and waits for it. Others wait meanwhile, so it must not block. It fails after
// Close.
func (s *Sockets) Do(fn func(*Thread)) error {
	s.start.Do(func() { go s.run() })
	done := make(chan struct{})
	select {
	case s.requests <- request{fn, done}:
		<-done
		return nil
	case <-s.ended:
		return context.Canceled
	}
}

// run serves requests. The thread ends with the goroutine, because it stays in a namespace.
func (s *Sockets) run() {
	goruntime.LockOSThread()
	t := &Thread{}
	defer t.close()
	for {
		select {
		case r := <-s.requests:
			r.do(t)
			close(r.done)
		case <-s.ended:
			return
		}
	}
}

// Thread is the thread of Sockets, within a call of Do.
type Thread struct {
	host *os.File // the host's namespace; nil: the thread has not left it
}

// Create returns a TCP socket in a network namespace; nil: the host's. The caller keeps ns open.
func (t *Thread) Create(ns *os.File) (fd int, err error) {
	switch {
	case ns == nil:
		ns = t.host
	case t.host == nil:
		if t.host, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return 0, err
		}
	}
	if ns != nil {
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		goruntime.KeepAlive(ns)
		if err != nil {
			return 0, fmt.Errorf("enter a network namespace: %w", err)
		}
	}
	return tcpSocket()
}

func (t *Thread) close() {
	if t.host != nil {
		_ = t.host.Close()
	}
}

func tcpSocket() (int, error) {
	return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}
