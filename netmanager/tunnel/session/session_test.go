package session

import (
	"bytes"
	"crypto/rand"
	"errors"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func identity(t testing.TB) Identity {
	t.Helper()
	var k [32]byte
	rand.Read(k[:])
	id, err := NewIdentity(k)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestPacketsPassAfterAHandshake(t *testing.T) {
	claim := netip.MustParseAddr("10.16.0.64")
	for _, c := range []struct{ a, b, want bool }{{true, true, true}, {true, false, false}, {false, true, false}, {false, false, false}} {
		x, y := identity(t), identity(t)
		try, msg, _ := Initiate(rand.Reader, x, y.Public(), 7, Hello{Stamp: 5, AES: c.a, Claim: claim})
		offer, err := ReadInitiation(rand.Reader, y, msg)
		if err != nil {
			t.Fatal(err)
		}
		if offer.Peer != x.Public() || offer.Hello != (Hello{Stamp: 5, AES: c.a, Claim: claim}) {
			t.Fatalf("offer of %v: %+v", offer.Peer, offer.Hello)
		}
		reply, b, _ := offer.Accept(9, Hello{AES: c.b})
		Sign(reply, x.Public(), [16]byte{})
		a, _, err := try.Finish(reply)
		if err != nil {
			t.Fatal(err)
		}
		if a.AES != c.want || b.AES != c.want {
			t.Errorf("AES here %v, there %v: agreed on %v and %v", c.a, c.b, a.AES, b.AES)
		}
		for i, s := range [][2]*Session{{a, b}, {b, a}, {a, b}} {
			packet := bytes.Repeat([]byte{byte(i)}, 100*i)
			kind, got, err := s[1].Open(s[0].Seal(nil, Partial, packet))
			if err != nil || kind != Partial || !bytes.Equal(got, packet) {
				t.Fatalf("message %d: %v %v %v", i, kind, got, err)
			}
		}
	}
}

func TestForgedMessagesAreRefused(t *testing.T) {
	x, y := identity(t), identity(t)
	_, msg, _ := Initiate(rand.Reader, x, y.Public(), 7, Hello{Stamp: 1})
	for i := 8; i < len(msg)-2*macLen; i++ {
		forged := bytes.Clone(msg)
		forged[i] ^= 0x40
		if i == 39 {
			continue // the high bit of a point's last byte is ignored (RFC 7748); then the hash differs
		}
		if _, err := ReadInitiation(rand.Reader, y, forged); err == nil {
			t.Fatalf("initiation changed in byte %d opens", i)
		}
	}
	if _, err := ReadInitiation(rand.Reader, x, msg); err == nil {
		t.Fatal("an initiation to another opens")
	}

	a, b := agreed(t)
	sealed := a.Seal(nil, Data, []byte("packet"))
	for i := 4; i < len(sealed); i++ {
		forged := bytes.Clone(sealed)
		forged[i] ^= 1
		if _, _, err := b.Open(forged); err == nil {
			t.Fatalf("message changed in byte %d opens", i)
		}
	}
	if _, _, err := b.Open(bytes.Clone(sealed)); err != nil {
		t.Fatalf("forgeries used up the true message: %v", err)
	}
	if _, _, err := b.Open(sealed); !errors.Is(err, ErrMalformed) {
		t.Fatalf("replay: %v", err)
	}
}

// agreed returns a session between two new identities.
func agreed(t testing.TB) (a, b *Session) {
	t.Helper()
	x, y := identity(t), identity(t)
	try, msg, _ := Initiate(rand.Reader, x, y.Public(), 7, Hello{AES: true})
	offer, err := ReadInitiation(rand.Reader, y, msg)
	if err != nil {
		t.Fatal(err)
	}
	reply, b, _ := offer.Accept(9, Hello{AES: true})
	Sign(reply, x.Public(), [16]byte{})
	if a, _, err = try.Finish(reply); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestKeysHaveAMessageLimit(t *testing.T) {
	a, b := agreed(t)
	now := time.Unix(1000, 0)
	a.Created, b.Created = now, now
	if a.Old(now) || !a.Old(now.Add(RekeyAfter)) || b.Old(now.Add(RekeyAfter)) {
		t.Error("the one who began renews first, after RekeyAfter")
	}
	if !a.Usable(now.Add(RejectAfter-1)) || a.Usable(now.Add(RejectAfter)) {
		t.Error("usable until RejectAfter")
	}
	a.sent.Store(RekeyMessages)
	if !a.Old(now) || !a.Usable(now) {
		t.Error("old after RekeyMessages")
	}
	a.sent.Store(RejectMessages - 1)
	last := a.Seal(nil, Data, nil)
	if last == nil || a.Seal(nil, Data, nil) != nil || a.Usable(now) {
		t.Error("nothing is sealed after RejectMessages")
	}
	if _, _, err := b.Open(last); err != nil {
		t.Error(err)
	}
}

func TestAResponseIsAcceptedOnceAndOnlyUnchanged(t *testing.T) {
	x, y := identity(t), identity(t)
	try, msg, _ := Initiate(rand.Reader, x, y.Public(), 7, Hello{})
	offer, err := ReadInitiation(rand.Reader, y, msg)
	if err != nil {
		t.Fatal(err)
	}
	reply, _, _ := offer.Accept(9, Hello{})
	Sign(reply, x.Public(), [16]byte{})
	for i := 12; i < len(reply)-macLen; i++ {
		forged := bytes.Clone(reply)
		forged[i] ^= 1
		if i < len(reply)-2*macLen {
			Sign(forged, x.Public(), [16]byte{}) // as a sender that has our key can do
		}
		if _, _, err := try.Finish(forged); err == nil {
			t.Fatalf("response changed in byte %d is taken", i)
		}
	}
	if _, _, err := try.Finish(reply); err != nil {
		t.Fatalf("forgeries spoilt the true response: %v", err)
	}
	if _, _, err := try.Finish(reply); err == nil {
		t.Fatal("a response is taken twice")
	}
}

// slowWindow is a reference implementation of Window.
type slowWindow struct {
	seen map[uint64]bool
	next uint64
}

func (w *slowWindow) take(c uint64) bool {
	if w.seen[c] || c < w.next && w.next-c > WindowSize {
		return false
	}
	w.seen[c] = true
	w.next = max(w.next, c+1)
	return true
}

func TestWindowAcceptsEachCounterOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, slow := &Window{}, &slowWindow{seen: map[uint64]bool{}}
		at := rapid.Uint64Range(0, RejectMessages).Draw(t, "start")
		for range 300 {
			c := at
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0, 1:
				at += rapid.Uint64Range(1, 5).Draw(t, "on")
				c = at
			case 2:
				at += rapid.Uint64Range(1, 3*windowBits).Draw(t, "leap")
				c = at
			default:
				if back := rapid.Uint64Range(0, windowBits+200).Draw(t, "back"); back <= at {
					c = at - back
				}
			}
			if got, want := w.Take(c), slow.take(c); got != want {
				t.Fatalf("take %d: %v, want %v", c, got, want)
			}
		}
		if received, expected := w.Counts(); int(received) != len(slow.seen) || expected != slow.next {
			t.Fatalf("counts %d of %d", received, expected)
		}
	})
}

func TestBusyGateAsksForACookie(t *testing.T) {
	x, y := identity(t), identity(t)
	gate := NewGate(y)
	now := time.Unix(1000, 0)
	from := netip.MustParseAddrPort("192.0.2.1:1000")
	_, msg, _ := Initiate(rand.Reader, x, y.Public(), 7, Hello{})
	if v := gate.Check(now, msg, from, false, false); v != Drop {
		t.Fatalf("without a first MAC: %v", v)
	}
	Sign(msg, y.Public(), [16]byte{})
	if v := gate.Check(now, msg, from, false, false); v != Pass {
		t.Fatalf("idle: %v", v)
	}
	if v := gate.Check(now, msg, from, false, true); v != AskCookie {
		t.Fatalf("busy, before any cookie was given: %v", v)
	}
	// The MAC with a cookie of an unset secret.
	zero := gate.cookie(1, from)
	forged := bytes.Clone(msg)
	Sign(forged, y.Public(), zero)
	reply, err := gate.Reply(rand.Reader, now, msg, from)
	if err != nil {
		t.Fatal(err)
	}
	if v := gate.Check(now, forged, from, false, true); v != AskCookie {
		t.Fatalf("busy, with the cookie of no secret: %v", v)
	}
	if Type(reply) != TypeCookie || Receiver(reply) != 7 || len(reply) >= len(msg) {
		t.Fatalf("cookie of %d bytes", len(reply))
	}
	cookie, err := Cookie(reply, msg, y.Public())
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(msg)
	other[len(other)-2*macLen] ^= 1
	if _, err := Cookie(reply, other, y.Public()); err == nil {
		t.Fatal("a cookie for another message opens")
	}
	Sign(msg, y.Public(), cookie)
	if v := gate.Check(now, msg, from, false, true); v != Pass {
		t.Fatalf("busy, with cookie: %v", v)
	}
	if v := gate.Check(now, msg, netip.MustParseAddrPort("192.0.2.2:1000"), false, true); v != AskCookie {
		t.Fatalf("with another's cookie: %v", v)
	}
	gate.Reply(rand.Reader, now.Add(cookieAge), msg, from) // changes the secret
	if v := gate.Check(now.Add(cookieAge+1), msg, from, false, true); v != Pass {
		t.Fatalf("with the cookie before: %v", v)
	}
	if v := gate.Check(now.Add(2*cookieAge), msg, from, false, true); v != AskCookie {
		t.Fatalf("with an old cookie: %v", v)
	}
	passed := 0
	for range 1000 {
		if gate.Check(now.Add(cookieAge+time.Second), msg, from, false, true) == Pass {
			passed++
		}
	}
	if passed > burst {
		t.Fatalf("%d messages of one address passed at once", passed)
	}
	relayed := 0
	for range 1000 {
		if gate.Check(now.Add(time.Hour), msg, netip.MustParseAddrPort("192.0.2.9:1"), true, true) == Pass {
			relayed++
		}
	}
	if relayed == 0 || relayed > burst {
		t.Fatalf("%d messages of a relay passed at once", relayed)
	}
}

func FuzzMessages(f *testing.F) {
	x, y := identity(f), identity(f)
	try, msg, _ := Initiate(rand.Reader, x, y.Public(), 7, Hello{})
	Sign(msg, y.Public(), [16]byte{})
	f.Add(bytes.Clone(msg))
	offer, _ := ReadInitiation(rand.Reader, y, msg)
	reply, s, _ := offer.Accept(9, Hello{})
	f.Add(reply)
	gate := NewGate(y)
	from := netip.MustParseAddrPort("[fe80::1%2]:1000")
	cookie, _ := gate.Reply(rand.Reader, time.Unix(1, 0), msg, from)
	f.Add(cookie)
	f.Add(s.Seal(nil, Data, []byte("packet")))
	f.Add([]byte{})
	_, second := agreed(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		switch Type(b) {
		case 0:
			return
		case TypeInitiation, TypeResponse:
			gate.Check(time.Unix(2, 0), b, from, false, true)
			Sign(b, x.Public(), [16]byte{})
		case TypeTransport:
			if _, _, err := second.Open(b); err == nil {
				t.Fatal("opens without the key")
			}
			return
		}
		if len(b) != ResponseLen || !bytes.Equal(b[:12], reply[:12]) {
			if _, _, err := try.Finish(b); err == nil {
				t.Fatal("response of nobody")
			}
		}
		Cookie(b, msg, y.Public())
		if len(b) == InitiationLen {
			ReadInitiation(rand.Reader, y, b)
		}
		Receiver(b)
	})
}

func BenchmarkSealOpen(b *testing.B) {
	x, y := agreed(b)
	packet := make([]byte, 1400)
	buf := make([]byte, 0, 1500)
	b.ReportAllocs()
	b.SetBytes(1400)
	for b.Loop() {
		msg := x.Seal(buf, Data, packet)
		if _, _, err := y.Open(msg); err != nil {
			b.Fatal(err)
		}
	}
}
