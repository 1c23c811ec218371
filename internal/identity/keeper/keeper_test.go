package keeper_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// clock passes its waits to the test and advances when the test requests it.
type clock struct {
	mu    sync.Mutex // guards at
	at    time.Time
	waits chan wait
}

type wait struct {
	d    time.Duration
	fire chan time.Time
}

func newClock() *clock { return &clock{at: time.Now(), waits: make(chan wait)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) After(d time.Duration) <-chan time.Time {
	w := wait{d, make(chan time.Time, 1)}
	c.waits <- w
	return w.fire
}

// pass advances the clock to the end of the wait.
func (c *clock) pass(w wait) {
	c.mu.Lock()
	c.at = c.at.Add(w.d)
	at := c.at
	c.mu.Unlock()
	w.fire <- at
}

type fixture struct {
	clock *clock
	root  *ca.Authority
	k     *keeper.Keeper
	fail  error
	saved []ca.Pair
	calls int
	stop  func()
}

// newFixture runs a keeper of the root's certificate. Its Renew returns f.fail.
func newFixture(t *testing.T) *fixture {
	f := &fixture{clock: newClock()}
	f.root = must(ca.NewRoot(f.clock.Now()))
	key, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	f.k = must(keeper.New(keeper.Options{
		Pair: ca.Pair{Chain: must(f.root.SignOwn(f.clock.Now(), csr)), Key: key},
		Renew: func(_ context.Context, csr []byte) ([]*x509.Certificate, error) {
			f.calls++
			if f.fail != nil {
				return nil, f.fail
			}
			return f.root.SignOwn(f.clock.Now(), csr)
		},
		Save: func(p ca.Pair) error { f.saved = append(f.saved, p); return nil },
		Now:  f.clock.Now, After: f.clock.After,
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.k.Run(ctx) }()
	f.stop = func() {
		cancel()
		for {
			select {
			case <-f.clock.waits:
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	}
	return f
}

// until advances the clock until the condition is true while the keeper waits.
func (f *fixture) until(t *testing.T, cond func() bool) wait {
	t.Helper()
	for range 2000 {
		w := <-f.clock.waits
		if cond() {
			return w
		}
		f.clock.pass(w)
	}
	t.Fatal("it never came")
	return wait{}
}

func TestRenewsAtTwoThirdsAndKeepsConnections(t *testing.T) {
	f := newFixture(t)
	defer f.stop()
	first := f.k.Pair()
	v := &trust.Verifier{Roots: trust.New(f.root.Root()).Roots, Now: f.clock.Now}

	ln := must(tls.Listen("tcp", "127.0.0.1:0", v.Server(f.k.GetCertificate, false)))
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go echo(c)
		}
	}()
	dial := func() *tls.Conn {
		cc := v.Client(identity.OfRoot(), nil)
		return must(tls.Dial("tcp", ln.Addr().String(), cc))
	}
	open := dial()
	defer open.Close()
	say(t, open)

	due := keeper.Due(first)
	f.until(t, func() bool { return f.calls > 0 })
	if at := f.clock.Now(); at.Before(due) || at.After(due.Add(time.Hour)) {
		t.Errorf("renewed at %s, due at %s", at, due)
	}
	second := f.k.Pair()
	if second.Chain[0].Equal(first.Chain[0]) || len(f.saved) != 1 || !f.saved[0].Chain[0].Equal(second.Chain[0]) {
		t.Fatal("what is served is not what was renewed and saved")
	}
	say(t, open)
	fresh := dial()
	defer fresh.Close()
	say(t, fresh)
	if !fresh.ConnectionState().PeerCertificates[0].Equal(second.Chain[0]) {
		t.Error("a new handshake shows the old certificate")
	}
	if !open.ConnectionState().PeerCertificates[0].Equal(first.Chain[0]) {
		t.Error("the open connection is not the first one")
	}
}

func echo(c net.Conn) {
	defer c.Close()
	b := make([]byte, 1)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

func say(t *testing.T, c net.Conn) {
	t.Helper()
	b := []byte{42}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(b); err != nil || b[0] != 42 {
		t.Fatal(b, err)
	}
}

func TestRetriesWithGrowingWaits(t *testing.T) {
	f := newFixture(t)
	defer f.stop()
	first := f.k.Pair()
	f.fail = errors.New("away")
	w := f.until(t, func() bool { return f.calls == 1 })
	if w.d < 5*time.Second || w.d > 15*time.Second {
		t.Errorf("first retry after %s", w.d)
	}
	for f.calls < 12 {
		f.clock.pass(w)
		w = <-f.clock.waits
		if w.d > 15*time.Minute {
			t.Fatalf("retry after %s", w.d)
		}
	}
	if w.d < 5*time.Minute {
		t.Errorf("after 12 failures still a retry in %s", w.d)
	}
	if !f.k.Pair().Chain[0].Equal(first.Chain[0]) {
		t.Error("a failure changed what is served")
	}
	f.fail = nil
	f.clock.pass(w)
	if w = <-f.clock.waits; w.d != time.Hour || f.k.Pair().Chain[0].Equal(first.Chain[0]) {
		t.Errorf("not renewed after the failures ended, waits %s", w.d)
	}
}

func TestForeignCertificateIsNotServed(t *testing.T) {
	f := newFixture(t)
	defer f.stop()
	first := f.k.Pair()
	f.root = must(ca.NewRoot(f.clock.Now()))
	f.until(t, func() bool { return f.calls == 1 })
	if !f.k.Pair().Chain[0].Equal(first.Chain[0]) || len(f.saved) != 0 {
		t.Error("a certificate below another root was taken")
	}
}
