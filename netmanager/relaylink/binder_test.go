package relaylink

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
)

var (
	relayA = netip.MustParseAddrPort("198.51.100.1:7000")
	relayB = netip.MustParseAddrPort("198.51.100.2:7000")
	mine   = netip.MustParseAddrPort("192.168.1.2:7100")
	public = netip.MustParseAddrPort("203.0.113.9:40000")
	other  = netip.MustParseAddrPort("203.0.113.9:40001")
)

// sim runs a binder against a function that plays the relay.
type sim struct {
	b        binder
	now      time.Time
	wake     time.Time
	sent     int
	resolves int
	tests    []time.Duration
	rtt      time.Duration
	late     []func() // delayed answers
	lateAt   []time.Time
	// relay returns the address that a port of the relay sees; ok is false if no answer comes back.
	relay func(to netip.AddrPort) (seen netip.AddrPort, ok bool)
}

func newSim(relay func(netip.AddrPort) (netip.AddrPort, bool)) *sim {
	s := &sim{now: time.Unix(1e9, 0), relay: relay, rtt: 20 * time.Millisecond}
	s.b.own = []netip.AddrPort{mine}
	s.b.resolved([]netip.AddrPort{relayA, relayB})
	s.b.lease(7, []byte("secret"))
	s.step()
	return s
}

func (s *sim) step() {
	a := s.b.step(s.now)
	s.wake = a.wake
	if a.resolve {
		s.resolves++
	}
	if a.test > 0 {
		s.tests = append(s.tests, a.test)
	}
	for _, o := range a.send {
		s.sent++
		if seen, ok := s.relay(o.to); ok {
			ans := relaywire.Answer{Slot: 7, Seq: o.req.Seq, Last: o.req.Seq, Addr: seen, Alt: 7001}
			if o.req.Bind && o.to.Port() == 7000 {
				ans.Result = relaywire.Bound
			}
			s.late, s.lateAt = append(s.late, func() { s.b.answer(s.now, ans) }), append(s.lateAt, s.now.Add(s.rtt))
		}
	}
}

func (s *sim) run(d time.Duration) {
	for end := s.now.Add(d); ; {
		next := end
		if !s.wake.IsZero() && s.wake.Before(next) {
			next = s.wake
		}
		if len(s.late) > 0 && !s.lateAt[0].After(next) {
			s.now = s.lateAt[0]
			do := s.late[0]
			s.late, s.lateAt = s.late[1:], s.lateAt[1:]
			do()
			s.step()
			continue
		}
		if next.After(s.now) {
			s.now = next
		}
		if next.Equal(end) {
			return
		}
		s.step()
	}
}

func through(mapped, alt netip.AddrPort) func(netip.AddrPort) (netip.AddrPort, bool) {
	return func(to netip.AddrPort) (netip.AddrPort, bool) {
		if to.Port() == 7001 {
			return alt, alt.IsValid()
		}
		return mapped, mapped.IsValid()
	}
}

func TestLearnsTheKindOfNAT(t *testing.T) {
	for _, c := range []struct {
		mapped, alt netip.AddrPort
		want        paths.NAT
	}{
		{mine, mine, paths.Open},
		{public, public, paths.Easy},
		{public, other, paths.Hard},
		{public, netip.AddrPort{}, paths.Unknown},
		{netip.AddrPort{}, netip.AddrPort{}, paths.Blocked},
	} {
		s := newSim(through(c.mapped, c.alt))
		s.run(10 * time.Second)
		if s.b.nat != c.want || s.b.up != c.mapped.IsValid() || s.b.tls == s.b.up {
			t.Errorf("mapped to %v, for the other port to %v: NAT %v, bound %v, TLS %v; want NAT %v", c.mapped, c.alt, s.b.nat, s.b.up, s.b.tls, c.want)
		}
	}
}

func TestBindsAsSeldomAsTheNATAllows(t *testing.T) {
	for _, c := range []struct {
		lives time.Duration
		most  int // requests per hour
		least int
	}{
		{30 * time.Second, 160, 140}, {60 * time.Second, 110, 98}, {time.Hour, 42, 32},
	} {
		s := newSim(through(public, public))
		s.run(time.Second)
		for len(s.tests) > 0 {
			d := s.tests[0]
			s.tests = s.tests[1:]
			s.run(d)
			s.b.tested(s.b.epoch, d <= c.lives, nil)
			s.step()
		}
		if s.b.lifetime > c.lives {
			t.Errorf("lifetime of mappings = %v, want at most the real %v", s.b.lifetime, c.lives)
		}
		s.sent = 0
		s.run(time.Hour)
		if s.sent > c.most || s.sent < c.least {
			t.Errorf("mappings live %v: %d requests an hour, want %d to %d", c.lives, s.sent, c.least, c.most)
		}
	}
	s := newSim(through(mine, mine))
	s.run(time.Minute)
	s.sent = 0
	s.run(time.Hour)
	if s.sent > 34 || len(s.tests) > 0 {
		t.Errorf("without a NAT: %d requests an hour and tests %v, want at most 34 and none", s.sent, s.tests)
	}
}

func TestTestWithoutResultIsRepeated(t *testing.T) {
	s := newSim(through(public, public))
	s.run(time.Second)
	s.b.tested(s.b.epoch, true, nil) // the first silence
	s.step()
	for range 3 {
		s.b.tested(s.b.epoch, false, errors.New("connection refused"))
		s.step()
	}
	if want := []time.Duration{tests[0], tests[1], tests[1], tests[1], tests[1]}; !slices.Equal(s.tests, want) {
		t.Errorf("silences %v after three errors of the second test's socket, want %v", s.tests, want)
	}
	s.b.tested(s.b.epoch, true, nil)
	if want := tests[1] * 9 / 10; s.b.lifetime != want {
		t.Errorf("mappings live %v after the second test succeeded, want %v", s.b.lifetime, want)
	}
}

func TestGoesToTLSAndBack(t *testing.T) {
	open := true
	s := newSim(func(to netip.AddrPort) (netip.AddrPort, bool) { return public, open })
	s.run(5 * time.Second)
	if !s.b.up || s.b.tls {
		t.Fatalf("bound %v, TLS %v with working UDP, want true, false", s.b.up, s.b.tls)
	}
	open = false
	s.run(30 * time.Second)
	if s.b.up || !s.b.tls || s.resolves == 0 {
		t.Fatalf("UDP blocked for 30 s: bound %v, TLS %v, %d look-ups; want false, true and at least one", s.b.up, s.b.tls, s.resolves)
	}
	s.sent = 0
	s.run(time.Hour)
	if s.sent > 80 {
		t.Errorf("%d attempts over blocked UDP in an hour, want at most 80", s.sent)
	}
	open = true
	s.run(maxRetry + time.Second)
	if !s.b.up || s.b.tls || s.b.mapped != public {
		t.Errorf("UDP works again: bound %v, TLS %v, mapped to %v; want true, false, %v", s.b.up, s.b.tls, s.b.mapped, public)
	}
}

func TestSecondAddressOfTheRelayIsTried(t *testing.T) {
	s := newSim(func(to netip.AddrPort) (netip.AddrPort, bool) { return public, to.Addr() == relayB.Addr() })
	s.run(minRetry + 5*time.Second)
	if !s.b.up || s.b.relays[0] != relayB {
		t.Errorf("bound %v at %v, want true at %v first", s.b.up, s.b.relays, relayB)
	}
}

func TestSlowRelayDoesNotCountAsBlocked(t *testing.T) {
	s := newSim(through(public, public))
	s.rtt = 1200 * time.Millisecond // a satellite link with a queue
	s.b.lease(7, []byte("secret"))
	s.step()
	s.run(20 * time.Second)
	if !s.b.up || s.b.tls {
		t.Errorf("bound %v, TLS %v with a slow relay, want true, false", s.b.up, s.b.tls)
	}
}

func TestSetBackClockRecovers(t *testing.T) {
	s := newSim(through(public, public))
	s.run(time.Second)
	first := s.b.seq
	s.now = s.now.Add(2 * time.Second)
	s.b.rebindSoon()
	a := s.b.step(s.now)
	s.b.answer(s.now, relaywire.Answer{Result: relaywire.Stale, Slot: 7, Seq: a.send[0].req.Seq, Last: first + 1<<60})
	a = s.b.step(s.now)
	if len(a.send) != 1 || a.send[0].req.Seq != first+1<<60+1 {
		t.Errorf("action %+v, want one request with a number above the relay's last", a)
	}
}

func TestUnrequestedAnswersAreIgnored(t *testing.T) {
	s := newSim(through(public, public))
	s.run(time.Second)
	s.b.answer(s.now, relaywire.Answer{Result: relaywire.Bound, Slot: 7, Seq: 1, Addr: other})
	if s.b.mapped != public {
		t.Errorf("mapped to %v after an answer to no request, want %v", s.b.mapped, public)
	}
}
