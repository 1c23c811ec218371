package netlab

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// node is a UDP socket on a host.
type node struct {
	t    *testing.T
	conn *net.UDPConn
}

func listen(t *testing.T, h *Host, port int) *node {
	t.Helper()
	var conn *net.UDPConn
	var err error
	h.Do(func() { conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &node{t, conn}
}

func (n *node) send(to string) {
	n.t.Helper()
	if _, err := n.conn.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort(to)); err != nil {
		n.t.Log(err) // a router's ICMP
	}
}

// from returns the source of the next datagram, invalid if there is none.
func (n *node) from(wait time.Duration) netip.AddrPort {
	_ = n.conn.SetReadDeadline(time.Now().Add(wait))
	var b [16]byte
	_, from, err := n.conn.ReadFromUDPAddrPort(b[:])
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
}

const soon, never = time.Minute, 300 * time.Millisecond

// TestNATsDoWhatTheirNamesSay checks the filtering and mapping of each kind of NAT.
func TestNATsDoWhatTheirNamesSay(t *testing.T) {
	lab := New(t)
	wan := lab.Switch("wan")
	one, two := lab.Host("one"), lab.Host("two")
	one.Plug(wan, "eth0", "203.0.113.1/24")
	two.Plug(wan, "eth0", "203.0.113.2/24")
	for i, k := range Kinds {
		public := fmt.Sprintf("203.0.113.%d", 10+i)
		home := lab.Site(fmt.Sprintf("h%d", i), k, wan, public+"/24", fmt.Sprintf("192.168.%d.0/24", i))
		in, a, a2, b := listen(t, home, 7000), listen(t, one, 5000+i), listen(t, one, 6000+i), listen(t, two, 5000+i)
		in.send(fmt.Sprintf("203.0.113.1:%d", 5000+i))
		if k == Blocked {
			if got := a.from(never); got.IsValid() {
				t.Errorf("%v: UDP from %v passed, want it blocked", k, got)
			}
			continue
		}
		mapped := a.from(soon)
		if mapped.Addr().String() != public {
			t.Fatalf("%v: unexpected mapping %v", k, mapped)
		}
		// Who may send to the mapping?
		for _, c := range []struct {
			what string
			by   *node
			want bool
		}{
			{"whom it was used to", a, true},
			{"another port there", a2, k == None || k == FullCone || k == Restricted},
			{"anybody", b, k == None || k == FullCone},
		} {
			c.by.send(mapped.String())
			wait := never
			if c.want {
				wait = soon
			}
			if got := in.from(wait).IsValid(); got != c.want {
				t.Errorf("%v: a datagram from %s arrived from %v, which does not match the filtering of this kind", k, c.what, got)
			}
		}
		// Is the mapping the same for all?
		in.send(fmt.Sprintf("203.0.113.2:%d", 5000+i))
		if second := b.from(soon); (second == mapped) != (k != Symmetric) {
			t.Errorf("%v: mappings to two destinations are %v and %v, which does not match this kind", k, mapped, second)
		}
	}
}

func TestSlowCableDelaysAndLoses(t *testing.T) {
	lab := New(t)
	a, b := lab.Host("a"), lab.Host("b")
	cable := lab.Slow(a, "eth0", "192.0.2.1/24", b, "eth0", "192.0.2.2/24", 40*time.Millisecond, 0, 1)
	x, y := listen(t, a, 5000), listen(t, b, 5000)
	x.send("192.0.2.2:5000") // ARP
	y.from(soon)
	began := time.Now()
	x.send("192.0.2.2:5000")
	if !y.from(soon).IsValid() || time.Since(began) < 40*time.Millisecond {
		t.Errorf("after %v", time.Since(began))
	}
	cable.Set(0, 0.3)
	for range 200 {
		x.send("192.0.2.2:5000")
	}
	after := listen(t, a, 5001) // sends the last datagram
	n := 0
	for from := y.from(never); from.Port() != 5001; from = y.from(never) {
		if from.IsValid() {
			n++
		} else {
			after.send("192.0.2.2:5000")
		}
	}
	if n < 110 || n > 170 {
		t.Errorf("%d of 200 datagrams arrived at 30 %% loss", n)
	}
}

func TestCaptureSeesFrames(t *testing.T) {
	lab := New(t)
	a, b := lab.Host("a"), lab.Host("b")
	lab.Join(a, "eth0", "192.0.2.1/24", b, "eth0", "192.0.2.2/24")
	c := b.Capture("eth0")
	y := listen(t, b, 5000)
	x := listen(t, a, 5000)
	if _, err := x.conn.WriteToUDPAddrPort([]byte("the marker"), netip.MustParseAddrPort("192.0.2.2:5000")); err != nil {
		t.Fatal(err)
	}
	y.from(soon)
	for !c.Contains([]byte("the marker")) {
		if t.Context().Err() != nil {
			t.Fatal("the datagram was not captured")
		}
		time.Sleep(time.Millisecond)
	}
	var file strings.Builder
	if _, err := c.WriteTo(&file); err != nil || !strings.Contains(file.String(), "the marker") {
		t.Error(err)
	}
}

func TestNothingIsLeft(t *testing.T) {
	var id string
	t.Run("lab", func(t *testing.T) {
		lab := New(t)
		id = lab.id
		lab.Site("s", Double, lab.Switch("wan"), "203.0.113.9/24", "192.168.1.0/24")
	})
	if id == "" {
		t.Skip("needs root")
	}
	if out, _ := exec.Command("ip", "netns", "list").CombinedOutput(); strings.Contains(string(out), id) {
		t.Errorf("%s", out)
	}
}
