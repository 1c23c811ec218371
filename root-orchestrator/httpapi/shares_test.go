package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
)

// from sends a request with the given remote address.
func (r *rig) from(addr, method, path, token, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(r.t.Context(), method, path, strings.NewReader(body))
	req.RemoteAddr = addr + ":40000"
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.web.Handler().ServeHTTP(w, req)
	return w
}

// While a thousand addresses guess a user's password continuously, the user can always sign in from
// a new address.
func TestGuessersDoNotLockAUserOut(t *testing.T) {
	r := newRig(t)
	r.user("acme/dora", rights.ApplicationProvider)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var guesses, refused atomic.Int64
	for i := range 100 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				addr := fmt.Sprintf("10.%d.%d.%d", i, n/10%250, n%250)
				w := r.from(addr, "POST", "/v1/auth/login", "", `{"user":"acme/dora","password":"a wrong password"}`)
				guesses.Add(1)
				if w.Code == http.StatusTooManyRequests {
					refused.Add(1)
				}
			}
		})
	}
	for guesses.Load() < 1000 {
		time.Sleep(time.Millisecond) // until the attack has begun
	}
	for i := range 20 {
		began := time.Now()
		w := r.from(fmt.Sprintf("192.0.2.%d", i+1), "POST", "/v1/auth/login", "", `{"user":"acme/dora","password":"correct horse battery"}`)
		if w.Code != http.StatusOK {
			t.Errorf("the right password from a fresh address: %d %s", w.Code, w.Body)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("a sign-in took %v during the attack", took)
		}
	}
	stop()
	all.Wait()

	// One address may guess 20 times for one user.
	wrong := 0
	for range 60 {
		if w := r.from("198.51.100.1", "POST", "/v1/auth/login", "", `{"user":"acme/dora","password":"a wrong password"}`); w.Code == 401 {
			wrong++
		}
	}
	if wrong < 20 || wrong > 25 {
		t.Errorf("%d guesses of one address were answered, want 20 and some", wrong)
	}
	// Attempts for a user with the name of an address do not count towards the address.
	for range 100 {
		r.from("198.51.100.2", "POST", "/v1/auth/login", "", `{"user":"@203.0.113.9","password":"a wrong password"}`)
	}
	if w := r.from("203.0.113.9", "POST", "/v1/auth/login", "", `{"user":"acme/dora","password":"correct horse battery"}`); w.Code != 200 {
		t.Errorf("the address of which a user's name was made: %d", w.Code)
	}
}

func TestUnauthenticatedRequestsLeaveCapacityForUsers(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) {
		o.Rate = 1
		now := time.Now()
		o.Now = func() time.Time { return now }
	})
	token := r.user("acme/dora", rights.ApplicationProvider)
	last := 0
	for range 10 {
		last = r.from("192.0.2.1", "GET", "/v1/auth/me", "", "").Code
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("the tenth request without a token: %d", last)
	}
	if w := r.from("192.0.2.1", "GET", "/v1/auth/me", token, ""); w.Code != 200 {
		t.Errorf("a person behind the same address: %d", w.Code)
	}
	if w := r.from("192.0.2.2", "GET", "/v1/auth/me", "", ""); w.Code != 401 {
		t.Errorf("another address: %d", w.Code)
	}
}

func TestWatchesOfOneUserLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	loud := r.user("acme/loud", rights.ApplicationProvider)
	quiet := r.user("acme/quiet", rights.ApplicationProvider)
	watch := func(token string) (int, func()) {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "GET", r.server.URL+"/v1/services?watch=1", nil)
		check(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := r.server.Client().Do(req)
		check(t, err)
		if resp.StatusCode == 200 {
			_, err = bufio.NewReader(resp.Body).ReadString('\n')
			check(t, err)
		}
		return resp.StatusCode, func() { cancel(); resp.Body.Close() }
	}
	open := 0
	for range 200 {
		status, end := watch(loud)
		defer end()
		if status == 200 {
			open++
		} else if status != http.StatusTooManyRequests {
			t.Fatalf("a watch too many: %d", status)
		}
	}
	if open != 64 {
		t.Errorf("one user has %d watches, want 64", open)
	}
	status, end := watch(quiet)
	defer end()
	if status != 200 {
		t.Errorf("a watch of another user of the tenant: %d", status)
	}
}

func TestRequestsUnderWayOfOnePersonLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	loud := r.user("op/loud", rights.InfrastructureProvider)
	quiet := r.user("op/quiet", rights.InfrastructureProvider)
	r.join("munich", "op")
	r.clusters.answers["POST /v1/tokens"] = httpAnswer(201, map[string]string{"id": "x", "kind": "node", "cluster": "munich", "token": "TL1.a.b"})
	gate := make(chan struct{})
	r.clusters.gate = gate
	var all sync.WaitGroup
	var refused atomic.Int64
	done := make(chan struct{}, 300)
	for range 300 {
		all.Go(func() {
			w := r.from("192.0.2.1", "POST", "/v1/tokens", loud, `{"kind":"node","cluster":"munich"}`)
			if w.Code == http.StatusTooManyRequests {
				refused.Add(1)
				done <- struct{}{}
			}
		})
	}
	for range 300 - 128 {
		<-done
	}
	if w := r.from("192.0.2.1", "GET", "/v1/apps", quiet, ""); w.Code != 200 && w.Code != 403 {
		t.Errorf("a request of another person: %d %s", w.Code, w.Body)
	}
	close(gate)
	all.Wait()
	if n := refused.Load(); n != 300-128 {
		t.Errorf("%d of 300 requests of one person were refused, want those over 128", n)
	}
	if w := r.from("192.0.2.1", "GET", "/v1/apps", loud, ""); w.Code == http.StatusTooManyRequests {
		t.Errorf("a request of the same person afterwards: %d", w.Code)
	}
}

func TestIdempotencyKeysOfOneTenantDoNotEvictAnothers(t *testing.T) {
	r := newRig(t)
	quiet := r.user("quiet/carl", rights.InfrastructureProvider)
	var loud []string
	for i := range 6 {
		loud = append(loud, r.user(account.UserID(fmt.Sprintf("loud/u%d", i)), rights.InfrastructureProvider))
	}
	post := func(token, key string) *httptest.ResponseRecorder {
		return r.from("192.0.2.1", "POST", "/v1/tokens", token, `{"kind":"cluster"}`, "Idempotency-Key", key)
	}
	first := post(quiet, "mine")
	if first.Code != 201 {
		t.Fatalf("first request: status %d, body %s, want 201", first.Code, first.Body)
	}
	for i := range 4800 { // more than the limit of one tenant
		w := r.from("192.0.2.1", "POST", "/v1/tokens", loud[i%6], `{"kind":"none"}`, "Idempotency-Key", fmt.Sprint("k", i))
		if w.Code >= 500 || w.Code == 429 {
			t.Fatalf("key %d: %d %s", i, w.Code, w.Body)
		}
	}
	again := post(quiet, "mine")
	if again.Body.String() != first.Body.String() || again.Header().Get("Idempotency-Replayed") == "" {
		t.Errorf("another tenant's key after the flood: %d %s, want the first answer", again.Code, again.Body)
	}
	if n := r.kept(); n > 2049 {
		t.Errorf("%d answers are stored, want at most 2048 of the tenant and one", n)
	}
}

// kept counts the stored answers.
func (r *rig) kept() (n int) {
	for _, d := range r.store.Docs() {
		if d.Kind == httpapi.KindAnswer {
			n++
		}
	}
	return n
}

func TestIdempotencyAnswersSurviveARestart(t *testing.T) {
	r := newRig(t)
	token := r.user("op/carl", rights.InfrastructureProvider)
	post := func(key, body string) *httptest.ResponseRecorder {
		return r.from("192.0.2.1", "POST", "/v1/tokens", token, body, "Idempotency-Key", key)
	}
	first := post("k1", `{"kind":"cluster"}`)
	if first.Code != 201 {
		t.Fatalf("first request: status %d, body %s, want 201", first.Code, first.Body)
	}
	secret := first.Body.String()[strings.Index(first.Body.String(), "TL1."):][:40]
	for _, d := range r.store.Docs() {
		if d.Kind == httpapi.KindAnswer && strings.Contains(string(d.Data), secret[10:]) {
			t.Errorf("the store has the answer's secret: %s", d.Data)
		}
	}
	r.restart()
	if again := post("k1", `{"kind":"cluster"}`); again.Body.String() != first.Body.String() || again.Header().Get("Idempotency-Replayed") == "" {
		t.Errorf("after a restart: %d %s, want the first answer", again.Code, again.Body)
	}
	if other := post("k1", `{"kind":"cluster","uses":2}`); other.Code != 422 {
		t.Errorf("another request with the key after a restart: %d", other.Code)
	}
	if n := len(r.tokens.List()); n != 1 {
		t.Errorf("%d tokens were made, want 1", n)
	}
	later := func(o *httpapi.Options) { o.Now = func() time.Time { return time.Now().Add(25 * time.Hour) } }
	r.restart(later)
	check(t, r.web.Sweep(t.Context()))
	if n := r.kept(); n != 0 {
		t.Errorf("%d answers are stored after a day, want none", n)
	}
}

// If the root is killed after a request took effect and before its answer was saved, a repetition
// does not take effect.
func TestAKeyWhoseAnswerWasLostTakesEffectOnce(t *testing.T) {
	r := newRig(t)
	token := r.user("op/carl", rights.InfrastructureProvider)
	r.join("munich", "op")
	r.clusters.answers["POST /v1/tokens"] = httpAnswer(201, map[string]string{"id": "x", "kind": "node", "cluster": "munich", "token": "TL1.a.b"})
	r.clusters.hold, r.clusters.held = make(chan struct{}), make(chan struct{})
	post := func() *httptest.ResponseRecorder {
		return r.from("192.0.2.1", "POST", "/v1/tokens", token, `{"kind":"node","cluster":"munich"}`, "Idempotency-Key", "k1")
	}
	ended := make(chan struct{})
	hold, held := r.clusters.hold, r.clusters.held
	go func() { defer close(ended); post() }()
	<-held
	killed := r.store.Docs() // the store after a crash at this point
	close(hold)
	<-ended
	r.stop()
	r.store = mem.New(killed...)
	r.start()
	if w := post(); w.Code != 409 || !strings.Contains(w.Body.String(), "new key") {
		t.Errorf("the key after the crash: %d %s, want 409 and what to do", w.Code, w.Body)
	}
}

// Each forged token costs a check, until the limit of refusals for its address is reached.
func TestForgedTokensSlowTheirAddressOnly(t *testing.T) {
	now := time.Now()
	r := newRig(t, func(o *httpapi.Options) { o.Now = func() time.Time { return now } })
	dora := r.user("acme/dora", rights.ApplicationProvider)
	emil := r.user("acme/emil", rights.ApplicationProvider)
	if w := r.from("192.0.2.1", "GET", "/v1/auth/me", dora, ""); w.Code != 200 {
		t.Fatalf("a good token: %d", w.Code)
	}
	codes := map[int]int{}
	var last *httptest.ResponseRecorder
	for i := range 300 {
		last = r.from("192.0.2.1", "GET", "/v1/auth/me", fmt.Sprintf("%s%d", emil, i), "")
		codes[last.Code]++
	}
	if codes[401] != 60 || codes[429] != 240 || last.Header().Get("Retry-After") == "" {
		t.Errorf("300 forged tokens are answered %v and %v, want 60 times 401 and then 429 with Retry-After", codes, last.Header())
	}
	if w := r.from("192.0.2.1", "GET", "/v1/auth/me", dora, ""); w.Code != 200 {
		t.Errorf("a token that was good before, from the same address: %d", w.Code)
	}
	if w := r.from("192.0.2.2", "GET", "/v1/auth/me", emil, ""); w.Code != 200 {
		t.Errorf("a good token from another address: %d", w.Code)
	}
}
