package packetqueue

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// A socket that sends to an address without a route, or to one that it may not reach, gets an
// error from the kernel.
func TestTheKernelAcceptsARefusal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	programtest.Need(t, "ip")
	type call struct {
		remote netip.Addr
		denied bool
		want   error
	}
	calls := []call{{ip("10.30.0.1"), false, syscall.EHOSTUNREACH}, {ip("10.30.0.2"), true, syscall.EHOSTUNREACH}}
	done := make(chan error, 1)
	go func() {
		// The thread keeps the namespace and dies with the goroutine: it is not unlocked.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			dev, err := tun.Open("tlhold", 1500)
			if err != nil {
				return err
			}
			for _, args := range [][]string{
				{"link", "set", "lo", "up"},
				{"addr", "add", "10.16.0.2/32", "dev", "tlhold"},
				{"route", "add", "10.30.0.0/16", "dev", "tlhold", "src", "10.16.0.2"},
			} {
				if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
					return errors.Join(errors.New(string(out)), err)
				}
			}
			misses := make(chan miss, 16)
			h := New(dev, Config{
				Local: func(a netip.Addr) bool { return a == client }, To4: ranges.To4,
				Miss: func(l, r netip.Addr) {
					select {
					case misses <- miss{l, r}:
					default:
					}
				},
			})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- h.Run(ctx) }()
			defer func() { cancel(); <-ended }()
			for _, c := range calls {
				s, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: c.remote.AsSlice(), Port: 9})
				if err != nil {
					return err
				}
				defer s.Close()
				raw, err := s.SyscallConn()
				if err != nil {
					return err
				}
				// Without this option a socket gets no transient errors, such as host unreachable.
				if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_RECVERR, 1) }); e != nil || err != nil {
					return errors.Join(e, err)
				}
				if _, err := s.Write([]byte("x")); err != nil {
					return err
				}
				for m := range misses {
					if m == (miss{client, c.remote}) {
						break
					}
				}
				h.Refuse(client, c.remote, c.denied)
				_ = s.SetReadDeadline(time.Now().Add(30 * time.Second))
				if _, err := s.Read(make([]byte, 1)); !errors.Is(err, c.want) {
					return errors.Join(errors.New(c.remote.String()), err)
				}
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
