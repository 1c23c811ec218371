package link_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
	"github.com/treeline-edge/treeline/netmanager/link"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// The eBPF plane bypasses parts of the host's stack. The limits must apply to the packets that take
// this shorter path too.
func TestBandwidthIsBoundedUnderEachPlane(t *testing.T) {
	const mbit = 20
	for name, open := range map[string]func() (dataplane.Plane, error){
		"ebpf": func() (dataplane.Plane, error) { return ebpf.New("tl") },
		"nft":  func() (dataplane.Plane, error) { return nft.New("tl") },
	} {
		for _, bound := range []struct {
			what    string
			in, out int64 // the receiver's, the sender's
		}{{"in", mbit, 0}, {"out", 0, mbit}} {
			t.Run(name+"/"+bound.what, func(t *testing.T) {
				host, a, b := dataplanetest.NewSpace(t, "h"), dataplanetest.NewSpace(t, "a"), dataplanetest.NewSpace(t, "b")
				defer hold(t, host, "tlhold", "tltun")()
				with(t, host, func(l *link.Links) error {
					if err := l.Setup(node(0), netip.Addr{}); err != nil {
						return err
					}
					sender, receiver := attachment(1, a), attachment(2, b)
					sender.Out, receiver.In = bound.out, bound.in
					if err := l.Attach(sender); err != nil {
						return err
					}
					return l.Attach(receiver)
				})
				s := plane.State{Node: node(0), Allowed: []plane.Pair{{From: 1, To: 2}}}
				s.Node.Subnet = netip.PrefixFrom(instance(1), 26).Masked()
				for n := 1; n <= 2; n++ {
					s.Endpoints = append(s.Endpoints, plane.Endpoint{Address: instance(n), Ident: plane.Ident(n), Device: plane.Device("tl", instance(n))})
				}
				var err error
				host.Do(func() {
					var p dataplane.Plane
					if p, err = open(); err == nil {
						err = p.Sync(context.Background(), s)
						t.Cleanup(func() { host.Do(func() { _ = p.Close() }) })
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, to := range []netip.Addr{instance(2), ranges.To6(instance(2))} {
					bytes, took := stream(t, a, b, netip.AddrPortFrom(to, 7000))
					most := took.Seconds()*mbit*1e6/8*1.2 + 1<<20 // plus the bytes in queues and buckets
					t.Logf("to %s: %d bytes in %s, at most %.0f", to, bytes, took, most)
					if float64(bytes) > most || bytes == 0 {
						t.Errorf("to %s: %d bytes in %s, want at most %.0f", to, bytes, took, most)
					}
				}
			})
		}
	}
}

// stream sends by TCP for about a second, as fast as possible, and returns the received bytes and the
// duration, which begins before the first byte is sent.
func stream(t *testing.T, from, at *dataplanetest.Space, to netip.AddrPort) (int, time.Duration) {
	t.Helper()
	var l net.Listener
	var err error
	at.Do(func() { l, err = net.Listen("tcp", to.String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	out, err := from.Dial("tcp", to, 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for b := make([]byte, 64<<10); ; {
			if _, err := out.Write(b); err != nil {
				return
			}
		}
	}()
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	bytes, b := 0, make([]byte, 256<<10)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		n, err := in.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		bytes += n
	}
	return bytes, time.Since(began)
}
