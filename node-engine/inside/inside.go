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
	// A connection within a machine is usually established, or refused, when connect returns.
	err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: at.As4()})
	if errors.Is(err, unix.EINPROGRESS) {
		err = connected(fd)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
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
		return fmt.Errorf("%w: %w", ErrNoSocket, err)
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

// Sockets creates sockets in network namespaces, on a thread that it enters them with.
type Sockets struct {
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

// NewSockets returns Sockets without a thread; the first use in a namespace starts it.
func NewSockets() *Sockets {
	return &Sockets{requests: make(chan socketRequest), ended: make(chan struct{})}
}

// Close ends the thread.
func (s *Sockets) Close() { close(s.ended) }

// Create returns a TCP socket in a network namespace; nil: the host's.
func (s *Sockets) Create(ns *os.File) (fd int, err error) {
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
func (s *Sockets) run() {
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
