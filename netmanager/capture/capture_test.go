package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/capture"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
)

// The layout of a file.
const (
	magic        = 0xa1b23c4d // times in nanoseconds
	fileHeader   = 24
	packetHeader = 16
)

// file is the captured file. It calls all when it contains all marks.
type file struct {
	bytes.Buffer
	marks [][]byte
	all   context.CancelFunc
}

func (f *file) Write(p []byte) (int, error) {
	n, err := f.Buffer.Write(p)
	for _, m := range f.marks {
		if !bytes.Contains(f.Bytes(), m) {
			return n, err
		}
	}
	f.all()
	return n, err
}

// instance returns a namespace with a device that sends all packets to its neighbour.
func instance(t *testing.T) (*dataplanetest.Space, net.HardwareAddr) {
	s, mac := dataplanetest.NewSpace(t, "c"), hardware(t, "02:54:0a:10:00:01")
	s.IP("link add eth0 address "+mac.String()+" type veth peer name out0", "link set eth0 up", "link set out0 up",
		"addr add 10.16.0.1/24 dev eth0", "neigh add 10.16.0.2 lladdr 02:54:0a:10:00:02 dev eth0 nud permanent")
	return s, mac
}

func hardware(t *testing.T, s string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func TestTheFileIsPcap(t *testing.T) {
	s, mac := instance(t)
	out, err := s.Dial("udp", netip.MustParseAddrPort("10.16.0.2:9"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mark := []byte("a mark that nobody else sends")
	f, done := &file{marks: [][]byte{mark}, all: cancel}, make(chan error, 1)
	go func() { done <- capture.Run(ctx, s.Path(), mac, f, capture.Limits{For: time.Minute}) }()
	for ctx.Err() == nil {
		if _, err := out.Write(mark); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b := f.Bytes()
	if len(b) < fileHeader || binary.LittleEndian.Uint32(b) != magic || !bytes.Contains(b, mark) {
		t.Fatalf("the file begins with %x", b[:min(len(b), fileHeader)])
	}
	for at, n := fileHeader, 0; at < len(b); n++ {
		size := int(binary.LittleEndian.Uint32(b[at+8:]))
		if at += packetHeader + size; at > len(b) {
			t.Fatalf("packet %d is cut", n)
		}
	}
}

func TestCaptureIsBounded(t *testing.T) {
	s, mac := instance(t)
	out, err := s.Dial("udp", netip.MustParseAddrPort("10.16.0.2:9"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for ctx.Err() == nil {
			_, _ = out.Write(make([]byte, 1000))
		}
	}()
	var b bytes.Buffer
	if err := capture.Run(t.Context(), s.Path(), mac, &b, capture.Limits{Bytes: 10_000}); err != nil {
		t.Error(err)
	}
	cancel()
	<-sent
	if b.Len() > 10_000 || b.Len() <= fileHeader {
		t.Errorf("the file has %d bytes", b.Len())
	}
}

// A process id was reused, so that its path leads to another namespace.
func TestPacketsOfOtherInstancesAreNotCaptured(t *testing.T) {
	s, _ := instance(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // otherwise a capture that begins would not end
	defer cancel()
	for _, netns := range []string{s.Path(), "/proc/self/ns/net", "/run/netns/nobody's"} {
		err := capture.Run(ctx, netns, hardware(t, "02:54:0a:10:00:07"), &bytes.Buffer{}, capture.Limits{})
		if !errors.Is(err, api.ErrNotFound) {
			t.Errorf("in %s: %v", netns, err)
		}
	}
}

func TestACaptureEndsWithTheDevice(t *testing.T) {
	s, mac := instance(t)
	done := make(chan error, 1)
	begun, begin := context.WithCancel(t.Context())
	go func() { done <- capture.Run(t.Context(), s.Path(), mac, &file{all: begin}, capture.Limits{}) }()
	<-begun.Done()
	s.IP("link del eth0")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The eBPF plane forwards packets to an instance past the host's end of its device.
func TestBothDirectionsAreCapturedUnderEachPlane(t *testing.T) {
	for name, open := range map[string]func() (dataplane.Plane, error){
		"ebpf": func() (dataplane.Plane, error) { return ebpf.New("tl") },
		"nft":  func() (dataplane.Plane, error) { return nft.New("tl") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dataplanetest.NewWorld(t, func(t testing.TB) dataplane.Plane {
				p, err := open()
				if err != nil {
					t.Fatal(err)
				}
				return p
			}, api.PathRoute)
			server, clients := w.C(1), []*dataplanetest.Container{w.C(2), w.C(4)} // on the same host, and on the other
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			f, done := &file{all: cancel}, make(chan error, 1)
			var ways []string
			for _, c := range clients {
				to, from := append(c.Addr.AsSlice(), server.Addr.AsSlice()...), append(server.Addr.AsSlice(), c.Addr.AsSlice()...)
				f.marks, ways = append(f.marks, to, from), append(ways, c.Label+" to it", "it to "+c.Label)
			}
			go func() {
				done <- capture.Run(ctx, server.Path(), hardware(t, server.MAC), f, capture.Limits{})
			}()
			for ctx.Err() == nil {
				for _, c := range clients {
					_, _ = c.Ask("tcp", netip.AddrPortFrom(server.Addr, 80)) // the refusal is the answer
				}
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			for i, m := range f.marks {
				if !bytes.Contains(f.Bytes(), m) {
					t.Errorf("nothing was seen from %s", ways[i])
				}
			}
		})
	}
}
