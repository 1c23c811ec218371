package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	goruntime "runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/forward"
	_ "github.com/treeline-edge/treeline/internal/mainthread"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// dialTimeout is how long a connection to a workload may take. It does not leave the machine.
const dialTimeout = 5 * time.Second

// forwarded bounds the connections of port-forwards, of which each buffers up to 512 KiB.
var forwarded = fairshare.Bound{
	Per: "tenant, then person", Beyond: "the connection is closed with the reason; a connection buffers at most 512 KiB",
	Attack: "TestForwardedConnectionsLeaveRoomForOthers",
}.Declare("connections that a node forwards to its instances", 512, 128, 64)

// portForward connects the streams of a session to ports of the workload until the session ends.
func (a *Access) portForward(ctx context.Context, ns runtime.Namespaced, k wire.Key, r wire.StreamRequest, conn io.ReadWriteCloser) error {
	session, err := forward.Server(conn)
	if err != nil {
		return err
	}
	defer session.Close()
	defer context.AfterFunc(ctx, func() { _ = session.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := session.Accept()
		if err != nil {
			return nil //nolint:nilerr // the user's end is closed
		}
		place, full := a.forward.Take(time.Now(), streams.Holder(r), nil)
		if full != nil {
			all.Go(func() { c.Refuse(fmt.Errorf("forward a connection: %w", full)) })
			continue
		}
		all.Go(func() {
			defer place.Release()
			a.connect(ctx, ns, k, c)
		})
	}
}

// connect connects one stream to the workload.
func (a *Access) connect(ctx context.Context, ns runtime.Namespaced, k wire.Key, c *forward.Conn) {
	to, err := c.Target()
	if err != nil {
		c.Refuse(err)
		return
	}
	path, _, err := ns.Namespace(ctx, k)
	if err == nil && path == "" {
		err = fmt.Errorf("%s has ended or has no network of its own: %w", k.Instance, api.ErrConflict)
	}
	if err != nil {
		c.Refuse(err)
		return
	}
	target, err := a.dial(ctx, path, to)
	if err != nil {
		c.Refuse(fmt.Errorf("port %s of %s: %w", to, k.Instance, err))
		return
	}
	c.Serve(target)
}

// dial connects to a port in a network namespace: at its loopback address, or else at its own
// address. A packet to either does not leave the namespace.
func dial(ctx context.Context, path string, to forward.Target) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err = inNamespace(path, func() error {
		addrs, err := addresses(to.Protocol)
		if err != nil {
			return err
		}
		var d net.Dialer
		var errs error
		for _, a := range addrs {
			// The address is literal, so that this thread makes the socket.
			c, err := d.DialContext(ctx, to.Protocol, net.JoinHostPort(a.String(), strconv.Itoa(int(to.Port))))
			if err == nil {
				conn = c
				return nil
			}
			errs = errors.Join(errs, err)
		}
		if errors.Is(errs, syscall.ECONNREFUSED) {
			return fmt.Errorf("connection refused: no process of the workload listens on it: %w", api.ErrUnavailable)
		}
		return fmt.Errorf("%w: %w", errs, api.ErrUnavailable)
	})
	return conn, err
}

// addresses returns the addresses of the current network namespace to try. The interface's own address
// is the first for UDP, where a closed port cannot be told from a silent one.
func addresses(protocol string) ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	out := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if protocol == "udp" {
			return []netip.Addr{p.Addr()}, nil
		}
		out = append(out, p.Addr())
	}
	return out, nil
}

// inNamespace runs fn on a thread that is in a network namespace.
func inNamespace(path string, fn func() error) error {
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the network namespace of the workload: %w: %w", err, api.ErrNotFound)
	}
	defer unix.Close(ns)
	result := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			goruntime.UnlockOSThread()
			result <- err
			return
		}
		defer unix.Close(own)
		if same, err := sameNamespace(own, ns); same || err != nil { // the PID was used again
			goruntime.UnlockOSThread()
			result <- fmt.Errorf("the workload has no network of its own any more (%v): %w", err, api.ErrNotFound)
			return
		}
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			goruntime.UnlockOSThread()
			result <- fmt.Errorf("enter the network namespace of the workload: %w", err)
			return
		}
		result <- fn()
		if unix.Setns(own, unix.CLONE_NEWNET) == nil {
			goruntime.UnlockOSThread() // otherwise the thread ends with this goroutine
		}
	}()
	return <-result
}

func sameNamespace(a, b int) (bool, error) {
	var x, y unix.Stat_t
	if err := errors.Join(unix.Fstat(a, &x), unix.Fstat(b, &y)); err != nil {
		return false, err
	}
	return x.Dev == y.Dev && x.Ino == y.Ino, nil
}
