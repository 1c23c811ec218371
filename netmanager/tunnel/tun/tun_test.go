package tun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
)

// inside runs a test in its own network namespace.
func inside(t *testing.T, f func(run func(...string))) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	programtest.Need(t, "ip")
	ns := fmt.Sprintf("tltun%d-%d", os.Getpid(), time.Now().UnixNano()%1e6)
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Fatalf("add the namespace: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		h, err := os.Open("/var/run/netns/" + ns)
		if err != nil {
			t.Error(err)
			return
		}
		defer h.Close()
		if err := unix.Setns(int(h.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		f(func(args ...string) {
			if out, err := exec.Command("ip", append([]string{"-n", ns}, args...)...).CombinedOutput(); err != nil {
				t.Errorf("ip %v: %v: %s", args, err, out)
			}
		})
	})
	wg.Wait()
}

// opens opens both kinds of device.
var opens = map[string]func(string) (Device, error){"vnet": open, "plain": openPlain}

func TestPacketsPassTheDevice(t *testing.T) {
	for kind, open := range opens {
		t.Run(kind, func(t *testing.T) {
			inside(t, func(run func(...string)) {
				d, err := open("tl0")
				if err != nil {
					t.Error(err)
					return
				}
				if err := up("tl0", 1400); err != nil {
					t.Error(err)
				}
				run("addr", "add", "10.16.0.1/24", "dev", "tl0")
				c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 16, 0, 1), Port: 7})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if _, err := c.WriteToUDP([]byte("hello"), &net.UDPAddr{IP: net.IPv4(10, 16, 0, 2), Port: 8}); err != nil {
					t.Error(err)
				}
				frame := make([]byte, FrameLen)
				idles := 0
				var p []byte
				for len(p) == 0 || p[0]>>4 != 4 { // the kernel sends IPv6 packets by itself
					n, err := d.Read(frame, func() { idles++ })
					if err != nil {
						t.Error(err)
						return
					}
					p = frame[offload.VnetLen:n]
				}
				if string(p[28:]) != "hello" {
					t.Errorf("read %q", p)
				}
				// Send the packet back with swapped addresses, which does not change its checksums.
				back := append([]byte(nil), p...)
				copy(back[12:16], p[16:20])
				copy(back[16:20], p[12:16])
				binary.BigEndian.PutUint16(back[20:], 8)
				binary.BigEndian.PutUint16(back[22:], 7)
				vnet := frame[:offload.VnetLen]
				if vnet[0] != 0 && !d.Partial() {
					t.Error("a partial checksum from a device that has none")
				}
				if err := d.Write([][]byte{vnet, back[:28], back[28:]}); err != nil {
					t.Error(err)
				}
				c.SetReadDeadline(time.Now().Add(20 * time.Second))
				buf := make([]byte, 100)
				if n, _, err := c.ReadFromUDP(buf); err != nil || string(buf[:n]) != "hello" {
					t.Errorf("received %q (%v), want hello", buf[:n], err)
				}
				// Closing the device ends a waiting Read.
				done := make(chan error)
				go func() {
					for {
						if _, err := d.Read(frame, nil); err != nil {
							done <- err
							return
						}
					}
				}()
				d.Close()
				if err := <-done; !errors.Is(err, net.ErrClosed) {
					t.Errorf("read from a closed device: %v", err)
				}
				// The device still exists with its address, and can be opened again.
				if i, err := net.InterfaceByName("tl0"); err != nil {
					t.Error(err)
				} else if addrs, _ := i.Addrs(); len(addrs) == 0 {
					t.Error("its addresses are gone")
				}
				again, err := open("tl0")
				if err != nil {
					t.Error(err)
					return
				}
				again.Close()
				for range 2 {
					if err := Remove("tl0"); err != nil {
						t.Error(err)
					}
				}
				if _, err := net.InterfaceByName("tl0"); err == nil {
					t.Error("it is still there")
				}
			})
		})
	}
}

func TestOpenTakesOffloadsWhereItCan(t *testing.T) {
	inside(t, func(func(...string)) {
		d, err := Open("tl0", 1400)
		if err != nil {
			t.Error(err)
			return
		}
		defer d.Close()
		if tcp, _ := d.Joins(); !tcp || !d.Partial() || d.Name() != "tl0" {
			t.Errorf("the device is %+v, want tl0 with joined TCP and partial checksums", d)
		}
		if i, err := net.InterfaceByName("tl0"); err != nil || i.MTU != 1400 || i.Flags&net.FlagUp == 0 {
			t.Errorf("the interface is %+v (%v), want it up with MTU 1400", i, err)
		}
		if _, err := Open("a-name-that-is-too-long", 1400); err == nil {
			t.Error("a name that is no name")
		}
	})
}
