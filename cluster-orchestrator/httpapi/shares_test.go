package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/internal/wire"
)

// from sends a request from the given address and returns its status.
func (r *rig) from(addr, who, path string) int {
	req := httptest.NewRequest("GET", path, nil)
	req.RemoteAddr = addr + ":40000"
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+who)
	}
	w := httptest.NewRecorder()
	r.web.Handler().ServeHTTP(w, req)
	return w.Code
}

// once allows each caller one to four requests, and no more because time stands still.
func once(o *httpapi.Options) {
	now := time.Now()
	o.Rate, o.Now = 1, func() time.Time { return now }
}

func TestWildLoopsAreSlowedDown(t *testing.T) {
	r := newRig(t, once)
	served := 0
	for range 100 {
		if r.from("192.0.2.1", "otto", "/v1/nodes") == http.StatusOK {
			served++
		}
	}
	if served != 4 {
		t.Errorf("%d of 100 requests of one person were served, want 4", served)
	}
	if code := r.from("192.0.2.1", "admin", "/v1/nodes"); code != http.StatusOK {
		t.Errorf("another person at the same address: %d", code)
	}
	// Requests over the root count towards the same share.
	q := wire.StreamRequest{Kind: "api", Method: "GET", Path: "/v1/nodes"}
	q.Token = "otto for " + q.CallObject()
	w := httptest.NewRecorder()
	r.web.FromRoot(q).ServeHTTP(w, httptest.NewRequest("GET", q.Path, nil))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("the same person over the root: %d %s, want 429 with Retry-After", w.Code, w.Body)
	}
}

func TestUnauthenticatedRequestsLeaveCapacityForUsers(t *testing.T) {
	r := newRig(t, once)
	last := 0
	for range 10 {
		last = r.from("192.0.2.1", "", "/v1/nodes")
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("the tenth request without a token: %d", last)
	}
	if code := r.from("192.0.2.1", "otto", "/v1/nodes"); code != http.StatusOK {
		t.Errorf("a person behind the same address: %d", code)
	}
	if code := r.from("192.0.2.2", "", "/v1/nodes"); code != http.StatusUnauthorized {
		t.Errorf("another address: %d", code)
	}
	metrics := r.web.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	req := httptest.NewRequest("GET", "/metrics", nil)
	req.RemoteAddr = "192.0.2.1:40000"
	w := httptest.NewRecorder()
	metrics.ServeHTTP(w, req)
	if w.Code != http.StatusTooManyRequests {
		t.Errorf("the address asks for metrics: %d", w.Code)
	}
}

func TestRequestsUnderWayOfOnePersonLeaveRoomForOthers(t *testing.T) {
	const id = "acme/shop.prod.web.v1#0"
	r := newRig(t)
	r.join("n1")
	r.want(1, instance(id, 64))
	hold, reached := make(chan struct{}), make(chan struct{}, 300)
	r.hold = func() { reached <- struct{}{}; <-hold }
	trace := "/v1/instances/" + api.PathOf(id) + "/trace?to=db"
	var all sync.WaitGroup
	codes := make(chan int, 300)
	for range 300 {
		all.Go(func() { codes <- r.from("192.0.2.1", "alice", trace) })
	}
	deadline := time.After(30 * time.Second)
	for held, refused := 0, 0; held+refused < 300; {
		select {
		case <-reached:
			held++
		case code := <-codes:
			if refused++; code != http.StatusTooManyRequests {
				t.Errorf("a request too many: %d", code)
			}
		case <-deadline:
			t.Fatalf("%d requests are under way and %d were refused", held, refused)
		}
		if held > 128 {
			t.Fatalf("%d requests of one person are under way, want 128", held)
		}
	}
	if code := r.from("192.0.2.1", "otto", "/v1/nodes"); code != http.StatusOK {
		t.Errorf("a request of another person: %d", code)
	}
	close(hold)
	all.Wait()
	if code := r.from("192.0.2.1", "alice", "/v1/instances"); code != http.StatusOK {
		t.Errorf("a request of the same person afterwards: %d", code)
	}
}

// Followed logs have their own bound and do not count as requests in progress.
func TestFollowedLogsAreNoRequestsUnderWay(t *testing.T) {
	const id = "acme/shop.prod.web.v1#0"
	r := newRig(t)
	r.join("n1")
	r.want(1, instance(id, 64))
	r.open = func() io.ReadCloser { return pipe() }
	server := httptest.NewServer(r.web.Handler())
	defer server.Close()
	for i := range 140 {
		req, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/v1/instances/"+api.PathOf(id)+"/logs?follow=true", nil)
		check(t, err)
		req.Header.Set("Authorization", "Bearer alice")
		resp, err := server.Client().Do(req)
		check(t, err)
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("log %d: %s", i, resp.Status)
		}
		line := make([]byte, len("line 1\n"))
		if _, err := io.ReadFull(resp.Body, line); err != nil || !strings.HasPrefix(string(line), "line") {
			t.Fatalf("log %d: %q %v", i, line, err)
		}
	}
	if code := r.from("192.0.2.1", "alice", "/v1/instances"); code != http.StatusOK {
		t.Errorf("a request beside 140 followed logs: %d", code)
	}
}

// TestForgedTokensSlowTheirAddressOnly: each forged token costs a check, until its address has
// used up its share of refusals.
func TestForgedTokensSlowTheirAddressOnly(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) {
		now := time.Now()
		o.Now = func() time.Time { return now }
	})
	if code := r.from("192.0.2.1", "otto", "/v1/nodes"); code != http.StatusOK {
		t.Fatalf("a good token: %d", code)
	}
	codes := map[int]int{}
	for range 300 {
		codes[r.from("192.0.2.1", "forged", "/v1/nodes")]++
	}
	if codes[401] != 60 || codes[429] != 240 {
		t.Errorf("300 forged tokens are answered %v, want 60 times 401 and then 429", codes)
	}
	if code := r.from("192.0.2.1", "otto", "/v1/nodes"); code != http.StatusOK {
		t.Errorf("a token that was good before, from the same address: %d", code)
	}
	if code := r.from("192.0.2.2", "admin", "/v1/nodes"); code != http.StatusOK {
		t.Errorf("a good token from another address: %d", code)
	}
}
