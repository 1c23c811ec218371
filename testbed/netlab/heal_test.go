package netlab_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/relay"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/pathmanager"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// talking returns two nodes, of which one sends to the other ten times a second and gets echoes.
func talking(t *testing.T, a, b netlab.Kind) (w *world, x, y *node) {
	t.Helper()
	w = newWorld(t)
	x, y = w.add(a), w.add(b)
	y.echo()
	x.knows(y)
	y.knows(x)
	x.talk([]*node{y})
	eventually(t, x.reaches(y, 10, func(r overlay.Path) bool {
		return r.Kind == api.PathDirect == directIn(a, b)
	}))
	_, first, direct, _ := x.sees(y)
	t.Logf("%v to %v: first echo after %v, direct after %v", a, b, first, direct)
	return w, x, y
}

// reaches returns an error until the peer has sent more echoes and the path is as wanted.
func (n *node) reaches(o *node, more int, ok func(overlay.Path) bool) func() string {
	_, _, _, before := n.sees(o)
	return func() string {
		r, _, _, echoes := n.sees(o)
		if echoes < before+more || !ok(r) {
			return fmt.Sprintf("%d echoes more, by %+v", echoes-before, r)
		}
		return ""
	}
}

func anyPath(overlay.Path) bool { return true }

// gap breaks the path and returns how long there was no echo.
func (n *node) gap(o *node, breakIt func()) time.Duration {
	n.w.t.Helper()
	began := time.Now()
	breakIt()
	eventually(n.w.t, n.reaches(o, 3, anyPath))
	return time.Since(began)
}

// heals changes an address up to three times, because the machine may be busy: one change must
// heal within the guaranteed time. Each starts when the path is again of the original kind.
func (n *node) heals(o *node, change func(trial int)) {
	t := n.w.t
	t.Helper()
	was, _, _, _ := n.sees(o)
	as := func(r overlay.Path) bool { return r.Kind == was.Kind }
	best := time.Duration(-1)
	for trial := range 3 {
		d := n.gap(o, func() { change(trial) })
		began := time.Now()
		eventually(t, n.reaches(o, 3, as))
		t.Logf("change %d healed after %v, original path after %v more", trial, d, time.Since(began))
		if best < 0 || d < best {
			best = d
		}
		if best <= healed {
			return
		}
	}
	t.Errorf("the best of three changes healed after %v, want at most %v", best, healed)
}

const (
	healed   = 3 * time.Second // guaranteed after a change of address
	detoured = 8 * time.Second // not guaranteed; with a margin for a busy machine
)

func TestNATThatForgetsHeals(t *testing.T) {
	for _, kind := range []netlab.Kind{netlab.PortRestricted, netlab.Symmetric} { // direct, relayed
		t.Run(kind.String(), func(t *testing.T) {
			_, x, y := talking(t, kind, kind)
			r, public := x.host.Router(), x.public
			x.heals(y, func(trial int) { // without notice
				r.Run("ip", "addr", "del", public+"/24", "dev", "out")
				public = fmt.Sprintf("203.0.113.%d", 200+trial)
				r.Run("ip", "addr", "add", public+"/24", "dev", "out")
				r.Forget()
			})
			if at, _ := x.w.relay.Where(uint32(x.i)); at.Addr() != netip.MustParseAddr(public) {
				t.Errorf("bound at %v, want %s", at, public)
			}
		})
	}
}

func TestNewAddressHeals(t *testing.T) {
	w, x, y := talking(t, netlab.PortRestricted, netlab.FullCone)
	local := x.local
	x.heals(y, func(trial int) {
		x.host.Run("ip", "addr", "del", local.String()+"/24", "dev", "eth0")
		local = netip.AddrFrom4([4]byte{192, 168, 1, byte(77 + trial)})
		x.host.Run("ip", "addr", "add", local.String()+"/24", "dev", "eth0")
		x.host.Run("ip", "route", "replace", "default", "via", "192.168.1.1")
		own := []netip.AddrPort{netip.AddrPortFrom(local, x.engine.Local().Port())}
		_ = x.link.SetOwn(w.ctx, own)
		s := x.link.State()
		x.paths.SetSelf(pathmanager.Self{
			Self: paths.Self{
				Own: own, Links: []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")}, Mapped: []netip.AddrPort{s.Mapped}, NAT: s.NAT,
			},
			Relay: w.at.String(), Relays: []netip.AddrPort{w.at},
		})
	})
}

func TestBlockedUDPGoesOverTLSAndBack(t *testing.T) {
	w, x, y := talking(t, netlab.PortRestricted, netlab.PortRestricted)
	detours(t, 2*detoured, func() time.Duration {
		d := x.gap(y, func() {
			x.host.Router().Nft(`insert rule ip filter forward meta l4proto udp drop`)
		})
		eventually(t, x.reaches(y, 3, func(r overlay.Path) bool {
			return r.Kind == api.PathRelayTLS && !r.Silent && x.paths.Reason(y.engine.Public()) == "UDP is blocked on this side"
		}))
		if s := w.relay.Stats(); s[relay.Streams] != 1 {
			t.Errorf("%+v", s)
		}
		x.host.Router().Nft(`flush chain ip filter forward`)
		eventually(t, x.reaches(y, 3, func(r overlay.Path) bool { return r.Kind == api.PathDirect }))
		return d
	})
}

// detours requires that one of three trials heals in time.
func detours(t *testing.T, most time.Duration, trial func() time.Duration) {
	t.Helper()
	var d time.Duration
	for n := range 3 {
		d = trial()
		t.Logf("trial %d: healed after %v", n, d)
		if d <= most {
			return
		}
	}
	t.Errorf("the best of three trials healed after %v, want at most %v", d, detoured)
}

// A relayed pair continues after the relay has lost its state, as soon as the nodes learn of it
// (when they reconnect to the cluster).
func TestRelayThatForgetsHeals(t *testing.T) {
	w, x, y := talking(t, netlab.Symmetric, netlab.Symmetric)
	detours(t, detoured, func() time.Duration {
		return x.gap(y, func() {
			for _, n := range w.nodes {
				w.relay.Drop(uint32(n.i))
			}
			for _, n := range w.nodes {
				w.slot(n)
				n.link.Nudge()
			}
		})
	})
}

// Packets between nodes cannot be read in transit, not even at the relay.
func TestRelayReadsNothing(t *testing.T) {
	w, x, y := talking(t, netlab.Symmetric, netlab.Symmetric)
	c := w.host.Capture("eth0")
	marker := []byte("a secret between containers")
	conn := x.socket(11)
	for range 20 {
		if _, err := conn.WriteToUDPAddrPort(marker, netip.AddrPortFrom(y.addr(), 9)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	eventually(t, x.reaches(y, 5, anyPath))
	if c.Count() == 0 || c.Contains(marker) {
		t.Errorf("of %d frames one contains the plain text (%v), want none and more than 0 frames", c.Count(), c.Contains(marker))
	}
}

func TestDeadPeerIsReported(t *testing.T) {
	_, x, y := talking(t, netlab.None, netlab.None)
	began := time.Now()
	y.host.Run("ip", "link", "set", "dev", "eth0", "down")
	eventually(t, func() string {
		if r, _, _, _ := x.sees(y); !r.Silent {
			return fmt.Sprintf("%+v", r)
		}
		return ""
	})
	t.Logf("a dead peer was detected after %v", time.Since(began))
	y.host.Run("ip", "link", "set", "dev", "eth0", "up")
	eventually(t, x.reaches(y, 3, func(r overlay.Path) bool { return !r.Silent && r.Kind == api.PathDirect }))
}

func TestLongestPacketIsFoundOnARealPath(t *testing.T) {
	w := newWorld(t)
	x, y := w.add(netlab.PortRestricted), w.add(netlab.PortRestricted)
	// A provider's tunnel: the MTU of the path is smaller than that of the nodes' links.
	y.host.Router().Run("ip", "link", "set", "dev", "in", "mtu", "1400")
	y.host.Run("ip", "link", "set", "dev", "eth0", "mtu", "1400")
	y.echo()
	x.knows(y)
	y.knows(x)
	x.talk([]*node{y})
	eventually(t, x.reaches(y, 5, func(r overlay.Path) bool {
		return r.Kind == api.PathDirect && r.MTU == 1400-28-session.Overhead
	}))
}
