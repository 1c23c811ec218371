package paths

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Report describes the path to the peer.
type Report struct {
	Path   Path
	None   bool // there is no path
	Proven bool // the peer answered a probe on it
	RTT    time.Duration
	MinRTT time.Duration // 0, like RTT: not measured yet
	// Samples counts the round trips on paths in use. Sample is the least of the last few on this path.
	// Coord is the peer's coordinate in the last reply, or nil.
	Samples uint64
	Sample  time.Duration
	Coord   *api.Coordinate
	Loss    float64        // of probes, 0 to 1
	MTU     int            // of packets with the outer IP header, at least 1280
	Sized   bool           // MTU was measured; otherwise it is minMTU
	NoNAT   bool           // there is no NAT: each side sees the other at an address of its own
	Seen    netip.AddrPort // this node's address as the peer sees it
	Idle    bool           // there was no traffic for long, so no better path is searched for
	Silent  bool           // there is traffic, and the peer has not answered for about a second
	Reason  string         // why there is no better path; "" on a direct path
}

func (r Report) differs(o Report) bool {
	return r.Path != o.Path || r.None != o.None || r.MTU != o.MTU || r.Sized != o.Sized || r.NoNAT != o.NoNAT || r.Silent != o.Silent || r.Proven != o.Proven || r.Idle != o.Idle
}

// Report returns the state after the last step.
func (m *Machine) Report() Report {
	x := m.current
	if x == nil {
		return Report{None: true, MTU: minMTU, Idle: m.asleep, Silent: m.silent, Reason: "no address of the peer is known"}
	}
	r := Report{
		Path: x.path, Proven: x.proven, RTT: x.rtt, MinRTT: x.least, Loss: x.loss, MTU: x.mtu.safe(), Sized: x.mtu.proven > 0 || x.mtu.tooBig > 0 || x.mtu.done,
		NoNAT: m.noNAT(x), Seen: x.seen, Idle: m.asleep, Silent: m.silent, Samples: m.samples, Sample: x.sample(m.now), Coord: m.coord,
	}
	if x.path.Relay() {
		r.Reason = m.reason()
	}
	return r
}

// reason returns why traffic takes the relay.
func (m *Machine) reason() string {
	p := m.punch
	switch {
	case !m.session:
		return "no session yet"
	case m.asleep:
		return "idle: a direct path is looked for when there is traffic"
	case m.self.NAT == Blocked && m.theirs.NAT == Blocked:
		return "UDP is blocked on both sides"
	case m.self.NAT == Blocked:
		return "UDP is blocked on this side"
	case m.theirs.NAT == Blocked:
		return "UDP is blocked on the peer's side"
	case len(m.direct) == 0:
		return "the peer has named no address that may be probed"
	}
	var tried string
	if p.fails > 0 {
		tried = fmt.Sprintf(": punching failed %s", times(p.fails))
	}
	if !p.next.IsZero() && p.next.After(m.now) {
		tried += ", next try in " + round(p.next.Sub(m.now))
	} else if p.active {
		tried += ", trying now"
	}
	switch {
	case m.self.NAT == Hard && m.theirs.NAT == Hard:
		return "symmetric NAT on both sides" + tried
	case m.self.NAT == Hard:
		return "symmetric NAT on this side" + tried
	case m.theirs.NAT == Hard:
		return "symmetric NAT on the peer's side" + tried
	}
	return "no direct path is proven" + tried
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func round(d time.Duration) string {
	if d >= time.Minute {
		return fmt.Sprintf("%d min", (d+30*time.Second)/time.Minute)
	}
	return fmt.Sprintf("%d s", (d+time.Second-1)/time.Second)
}
