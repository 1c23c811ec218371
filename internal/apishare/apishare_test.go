package apishare_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// clock is a clock that advances only when it is set.
type clock struct{ now time.Time }

func (c *clock) time() time.Time { return c.now }

func newShares() (*apishare.Shares, *clock) {
	c := &clock{time.Now()}
	return apishare.New(apishare.Options{Now: c.time}), c
}

// do makes a request whose handler returns err, and reports whether it was served.
func do(s *apishare.Shares, h apishare.Holder, err error) (served bool, _ error) {
	r := httptest.NewRequest("POST", "/", http.NoBody)
	got := s.Do(r, h, func(*http.Request) error { served = true; return err })
	return served, got
}

func TestRefusedJoinsSlowTheirAddressOnly(t *testing.T) {
	s, c := newShares()
	var last error
	ran := 0
	for range 100 {
		served, err := do(s, apishare.Join("192.0.2.1:99"), api.ErrUnauthenticated)
		if last = err; served {
			ran++
		}
	}
	if ran != 60 || !errors.Is(last, api.ErrTooMany) {
		t.Errorf("%d of 100 refused joins were looked at and the last gave %v, want 60 and ErrTooMany", ran, last)
	}
	if _, err := do(s, apishare.Join("192.0.2.2:99"), nil); err != nil {
		t.Errorf("a join from the next address: %v", err)
	}
	for range 1000 {
		if _, err := do(s, apishare.Join("198.51.100.1:99"), nil); err != nil {
			t.Fatalf("machines that join from behind one address: %v", err)
		}
	}
	c.now = c.now.Add(2 * time.Second)
	if _, err := do(s, apishare.Join("192.0.2.1:99"), nil); err != nil {
		t.Errorf("a join from the slowed address later: %v", err)
	}
}

// A join is either served or refused, even when its address is just allowed to try again.
func TestAJoinThatIsNotMadeIsRefused(t *testing.T) {
	now, step := time.Now(), time.Duration(0)
	s := apishare.New(apishare.Options{Now: func() time.Time { now = now.Add(step); return now }})
	for range 60 {
		_, _ = do(s, apishare.Join("192.0.2.1:99"), api.ErrUnauthenticated)
	}
	step = 700 * time.Millisecond
	for i := range 20 {
		if made, err := do(s, apishare.Join("192.0.2.1:99"), nil); made == (err != nil) {
			t.Fatalf("try %d: made: %v, error: %v", i, made, err)
		}
	}
}

// TestJoinsUnderWayLeaveRoomForOthers opens joins whose bodies never arrive.
func TestJoinsUnderWayLeaveRoomForOthers(t *testing.T) {
	s, _ := newShares()
	hold, serving := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(hold)
	full := make(chan error, 2000)
	for i := range 2000 {
		all.Go(func() {
			r := httptest.NewRequest("POST", "/", http.NoBody)
			err := s.Do(r, apishare.Join(fmt.Sprintf("192.0.2.%d:99", i%4)), func(*http.Request) error {
				serving <- struct{}{}
				<-hold
				return nil
			})
			if err != nil {
				full <- err
			}
		})
	}
	held := 0
	for range 2000 {
		select {
		case <-serving:
			held++
		case err := <-full:
			if !errors.Is(err, api.ErrTooMany) {
				t.Errorf("a join too many: %v, want ErrTooMany", err)
			}
		}
	}
	if held != 512 {
		t.Errorf("%d joins of one subnet are under way, want 512", held)
	}
	if _, err := do(s, apishare.Join("198.51.100.1:99"), nil); err != nil {
		t.Errorf("a join from another subnet: %v", err)
	}
}

// TestRequestsOfOneCertificateAreSlowedDown: a node with a valid certificate sends requests without
// a pause. Requests of others, and its requests on other routes, are served.
func TestRequestsOfOneCertificateAreSlowedDown(t *testing.T) {
	s, c := newShares()
	loud := apishare.Peer("node/loud", "POST /v1/node/brokers")
	ran := 0
	var last error
	for range 5000 {
		served, err := do(s, loud, nil)
		if last = err; served {
			ran++
		}
	}
	var wait interface{ RetryAfter() time.Duration }
	if ran != 800 || !errors.Is(last, api.ErrTooMany) || !errors.As(last, &wait) || wait.RetryAfter() <= 0 {
		t.Errorf("%d of 5000 requests were served and the last gave %v, want 800 and when to try again", ran, last)
	}
	for _, h := range []apishare.Holder{
		apishare.Peer("node/quiet", "POST /v1/node/brokers"), apishare.Peer("node/loud", "POST /v1/node/renew"),
		apishare.Stranger("192.0.2.1:99"), apishare.Person(rights.Principal{Tenant: "acme", User: "node/loud"}),
	} {
		if _, err := do(s, h, nil); err != nil {
			t.Errorf("%+v: %v", h, err)
		}
	}
	c.now = c.now.Add(time.Second)
	if _, err := do(s, loud, nil); err != nil {
		t.Errorf("the same node a second later: %v", err)
	}
	// It may have 64 concurrent requests.
	hold, serving := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	full := make(chan error, 300)
	for range 300 {
		all.Go(func() {
			full <- s.Do(httptest.NewRequest("POST", "/", http.NoBody), apishare.Peer("node/slow", "POST /x"), func(*http.Request) error {
				serving <- struct{}{}
				<-hold
				return nil
			})
		})
	}
	held := 0
	for range 300 {
		select {
		case <-serving:
			held++
		case err := <-full:
			if !errors.Is(err, api.ErrTooMany) {
				t.Errorf("a request too many: %v", err)
			}
		}
	}
	if held != 64 {
		t.Errorf("%d requests of one certificate are under way, want 64", held)
	}
	if _, err := do(s, apishare.Peer("node/quiet", "POST /x"), nil); err != nil {
		t.Errorf("another node: %v", err)
	}
	close(hold)
	all.Wait()
}

// TestStreamsThatSomebodyWaitsForAreNotSlowedDown: a cluster dials as many streams as users request.
// Only streams that no requester waits for are slowed down.
func TestStreamsThatSomebodyWaitsForAreNotSlowedDown(t *testing.T) {
	s, _ := newShares()
	h := apishare.Stream("cluster/munich", "POST /v1/cluster/streams/{id}")
	for range 5000 {
		if _, err := do(s, h, nil); err != nil {
			t.Fatal(err)
		}
	}
	ran := 0
	for range 5000 {
		if served, _ := do(s, h, api.ErrNotFound); served {
			ran++
		}
	}
	if ran != 800 {
		t.Errorf("%d of 5000 streams that nobody waits for were looked up, want 800", ran)
	}
}

// TestRefusedTokensSlowTheirAddressOnly sends a flood of invalid tokens.
func TestRefusedTokensSlowTheirAddressOnly(t *testing.T) {
	s, c := newShares()
	checked := 0
	token := func(remote, text string, err error) error {
		return s.Token(remote, text, func() (rights.Principal, error) {
			checked++
			return rights.Principal{Tenant: "acme/part", User: "ann"}, err
		})
	}
	if err := token("192.0.2.1:1", "ann's", nil); err != nil {
		t.Fatal(err)
	}
	checked = 0
	var last error
	for i := range 1000 {
		last = token("192.0.2.1:2", fmt.Sprint("forged", i), api.ErrUnauthenticated)
	}
	var wait interface{ RetryAfter() time.Duration }
	if checked != 60 || !errors.Is(last, api.ErrTooMany) || !errors.As(last, &wait) || wait.RetryAfter() <= 0 {
		t.Errorf("%d of 1000 forged tokens were checked and the last gave %v, want 60 and when to try again", checked, last)
	}
	for range 1000 {
		if err := token("192.0.2.1:3", "ann's", nil); err != nil {
			t.Fatalf("a token that was good before, at the same address: %v", err)
		}
	}
	if err := token("192.0.2.2:1", "bob's", nil); err != nil {
		t.Errorf("a new token from the next address: %v", err)
	}
	c.now = c.now.Add(2 * time.Second)
	if err := token("192.0.2.1:1", "eve's", nil); err != nil {
		t.Errorf("a new token from the slowed address later: %v", err)
	}
	// A token that is no longer valid counts like any other invalid token.
	checked = 0
	for range 1000 {
		_ = token("198.51.100.1:3", "ann's", api.ErrUnauthenticated)
	}
	if checked != 60 {
		t.Errorf("%d of 1000 uses of a revoked token were checked, want 60", checked)
	}
}

// TestCertificatesOfOneIdentityAreFew requests 1,000 certificates at once.
func TestCertificatesOfOneIdentityAreFew(t *testing.T) {
	s, c := newShares()
	signed := 0
	for range 1000 {
		if s.Certificate("node/loud") == nil {
			signed++
		}
	}
	if signed != 20 {
		t.Errorf("%d certificates of one node are signed at once, want 20", signed)
	}
	if err := s.Certificate("node/quiet"); err != nil {
		t.Errorf("another node's: %v", err)
	}
	c.now = c.now.Add(time.Minute)
	if err := s.Certificate("node/loud"); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}
