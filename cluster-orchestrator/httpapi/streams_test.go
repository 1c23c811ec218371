package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
)

// shortLived accepts tokens of the rig's users, "alice 1", "alice 2" and so on, that expire life after their
// first use.
func shortLived(r **rig, life time.Duration) func(*httpapi.Options) {
	var mu sync.Mutex
	ends := map[string]time.Time{}
	return func(o *httpapi.Options) {
		o.Authenticate = func(token string) (httpapi.Caller, error) {
			mu.Lock()
			defer mu.Unlock()
			if ends[token].IsZero() {
				ends[token] = time.Now().Add(life)
			}
			left := time.Until(ends[token])
			if left <= 0 {
				return httpapi.Caller{}, fmt.Errorf("token %q has expired: %w", token, api.ErrUnauthenticated)
			}
			who, _, _ := strings.Cut(token, " ")
			c, err := (*r).caller(who)
			c.Life = left
			return c, err
		}
	}
}

// numbered returns a different token of one user at each call.
type numbered struct {
	who string
	n   atomic.Int64
}

// Token implements client.Tokens.
func (n *numbered) Token(context.Context, string) (string, error) {
	return fmt.Sprintf("%s %d", n.who, n.n.Add(1)), nil
}

const followed = api.InstanceID("acme/shop.prod.web.v1#0")

// follow reads a log directly at the cluster's port. renewals gets the status of each attempt to
// renew it.
func follow(t *testing.T, life time.Duration, tokens client.Tokens) (lines *bufio.Reader, write func(string), renewals chan int) {
	t.Helper()
	var r *rig
	r = newRig(t, shortLived(&r, life))
	r.join("n1")
	r.want(1, instance(followed, 64))
	from, into := io.Pipe()
	r.stream = from
	t.Cleanup(func() { _ = into.Close() })
	renewals = make(chan int, 1024)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasPrefix(req.URL.Path, "/v1/auth/streams/") {
			r.web.Handler().ServeHTTP(w, req)
			return
		}
		rec := httptest.NewRecorder()
		r.web.Handler().ServeHTTP(rec, req)
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		w.WriteHeader(rec.Code)
		_, _ = rec.Body.WriteTo(w)
		renewals <- rec.Code
	}))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Options{URL: srv.URL, HTTP: srv.Client(), Tokens: tokens})
	check(t, err)
	body, err := c.Logs(t.Context(), followed, true, -1)
	check(t, err)
	t.Cleanup(func() { _ = body.Close() })
	return bufio.NewReader(body), func(line string) { _, _ = io.WriteString(into, line) }, renewals
}

// TestAFollowedLogOutlivesItsTokenAtACluster reads a log for several lifetimes of a token. No
// line is lost or repeated. The tokens of further trials live longer: they expire if the machine stalls.
func TestAFollowedLogOutlivesItsTokenAtACluster(t *testing.T) {
	var err error
	for _, life := range []time.Duration{2 * time.Second, 8 * time.Second, 30 * time.Second} {
		if err = outlives(t, life); err == nil {
			return
		}
		t.Logf("with tokens of %s: %v", life, err)
	}
	t.Error(err)
}

func outlives(t *testing.T, life time.Duration) error {
	lines, write, renewals := follow(t, life, &numbered{who: "alice"})
	for n := range 3 {
		want := fmt.Sprintf("line %d\n", n)
		write(want)
		if got, err := lines.ReadString('\n'); got != want || err != nil {
			return fmt.Errorf("read %q, %w; want %q", got, err, want)
		}
		select {
		case code := <-renewals: // the last one is after the first token's expiry
			if code != http.StatusOK {
				return fmt.Errorf("renewed with status %d", code)
			}
		case <-time.After(life + time.Minute):
			return errors.New("not renewed")
		}
	}
	return nil
}

// TestALogSaysThatItsTokenExpired: there is no newer token.
func TestALogSaysThatItsTokenExpired(t *testing.T) {
	lines, write, _ := follow(t, 5*time.Second, client.Static("alice 0"))
	write("line 0\n")
	if got, err := lines.ReadString('\n'); got != "line 0\n" || err != nil {
		t.Fatalf("read %q, %v", got, err)
	}
	_, err := lines.ReadString('\n')
	if !errors.Is(err, api.ErrUnauthenticated) || !strings.Contains(err.Error(), "token expired") {
		t.Errorf("the log ended with %v, want that the token expired", err)
	}
}

// TestNobodyElseRenewsAStream: only the user who opened a stream may renew it, with all roles
// that opened it.
func TestNobodyElseRenewsAStream(t *testing.T) {
	var r *rig
	r = newRig(t, shortLived(&r, 2*time.Second))
	r.join("n1")
	r.want(1, instance(followed, 64))
	from, into := io.Pipe()
	r.stream = from
	defer into.Close()
	srv := httptest.NewTLSServer(r.web.Handler())
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/v1/instances/"+api.PathOf(followed)+"/logs?follow=true", nil)
	check(t, err)
	req.Header.Set("Authorization", "Bearer alice 0")
	resp, err := srv.Client().Do(req)
	check(t, err)
	defer resp.Body.Close()
	path := "/v1/auth/streams/" + resp.Header.Get("Treeline-Stream")
	for who, status := range map[string]int{"": 401, "otto 1": 404, "admin 1": 404, "operator 1": 404, "nobody 1": 401} {
		r.ask(who, "POST", path, nil, status, nil)
	}
	r.ask("alice 1", "POST", path+"x", nil, 404, nil)
	if _, err := io.ReadAll(resp.Body); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream ended as if it were whole: %v", err)
	}
	r.ask("alice 2", "POST", path, nil, 404, nil) // the stream has ended
}
