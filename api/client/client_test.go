package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

func serve(t *testing.T, tokens client.Tokens, h http.HandlerFunc) *client.Client {
	t.Helper()
	srv := httptest.NewTLSServer(h)
	t.Cleanup(srv.Close)
	c, err := client.New(client.Options{URL: srv.URL, HTTP: srv.Client(), Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func problem(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"type":"x/%s","title":"t","status":%d,"code":%q,"detail":"the detail","errors":[{"pointer":"/a/0","detail":"bad"}]}`, code, status, code)
}

func TestProblemsAreErrorsOfTheirKind(t *testing.T) {
	var status int
	c := serve(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		if status == 502 {
			http.Error(w, "<html>a proxy</html>", status)
			return
		}
		problem(w, status, "c")
	})
	for s, kind := range map[int]error{404: api.ErrNotFound, 409: api.ErrConflict, 412: api.ErrPrecondition, 410: api.ErrGone, 422: api.ErrInvalid, 403: api.ErrForbidden, 503: api.ErrUnavailable} {
		status = s
		_, err := c.App(t.Context(), "acme/shop.prod")
		var p *api.Problem
		if !errors.Is(err, kind) || !errors.As(err, &p) || p.Code != "c" || !strings.Contains(err.Error(), "/a/0: bad") {
			t.Errorf("status %d became the error %v, want the kind, code and fault of the problem", s, err)
		}
	}
	status = 502
	if _, err := c.App(t.Context(), "acme/shop.prod"); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("no problem of ours: %v", err)
	}
}

func TestIdsTravelAsOneSegment(t *testing.T) {
	c := serve(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/instances/acme~lab~shop.prod.web.v1~12" || r.URL.RawPath != "" {
			t.Errorf("path %q, raw %q", r.URL.Path, r.URL.RawPath)
		}
		_, _ = io.WriteString(w, `{"id":"acme/lab/shop.prod.web.v1#12"}`)
	})
	id := api.InstanceID("acme/lab/shop.prod.web.v1#12")
	if i, err := c.Instance(t.Context(), id); err != nil || i.ID != id {
		t.Errorf("Instance returned %v, %v, want the instance", i, err)
	}
	if back := api.InstanceFromPath(api.PathOf(id)); back != id {
		t.Errorf("%s became %s", id, back)
	}
}

type renewed struct{ asked []string }

func (r *renewed) Token(_ context.Context, refused string) (string, error) {
	r.asked = append(r.asked, refused)
	if refused != "" {
		return "new", nil
	}
	return "old", nil
}

func TestARefusedTokenIsRenewedOnce(t *testing.T) {
	tokens := &renewed{}
	never := false
	c := serve(t, tokens, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer new" || never {
			problem(w, 401, "unauthenticated")
			return
		}
		if string(body) != `{"kind":"cluster"}` {
			t.Errorf("the body of the second try: %q", body)
		}
		_, _ = io.WriteString(w, `{"id":"x"}`)
	})
	if tok, err := c.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"}); err != nil || tok.ID != "x" || len(tokens.asked) != 2 {
		t.Errorf("%v %v, asked for tokens %q", tok, err, tokens.asked)
	}
	never, tokens.asked = true, nil
	if _, err := c.CreateJoinToken(t.Context(), api.TokenRequest{}); !errors.Is(err, api.ErrUnauthenticated) || len(tokens.asked) != 2 {
		t.Errorf("%v, asked for tokens %q", err, tokens.asked)
	}
}

func TestNobodyThereIsUnavailable(t *testing.T) {
	c, err := client.New(client.Options{URL: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.App(t.Context(), "a/b.c"); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("request to a server that is down: %v, want ErrUnavailable", err)
	}
	for _, bad := range []string{"", "http://x", "x:1"} {
		if _, err := client.New(client.Options{URL: bad}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("New with the URL %q: %v, want ErrInvalid", bad, err)
		}
	}
	if _, err := client.New(client.Options{URL: "https://x", CA: []byte("no PEM")}); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("no PEM: %v", err)
	}
}

func TestASlowServerIsATimeout(t *testing.T) {
	c := serve(t, nil, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.App(ctx, "a/b.c"); !errors.Is(err, api.ErrTimeout) {
		t.Errorf("request after the deadline: %v, want ErrTimeout", err)
	}
}

func TestAWatchResumesWhereItBroke(t *testing.T) {
	var tries atomic.Int32
	c := serve(t, nil, func(w http.ResponseWriter, r *http.Request) {
		last := r.Header.Get("Last-Event-ID")
		switch tries.Add(1) {
		case 1:
			if last != "5" {
				t.Errorf("begins at %q", last)
			}
			_, _ = io.WriteString(w, "event: change\nid: 6.1\ndata: {\"id\":\"a/x.y\",\"revision\":6,\"object\":{\"id\":\"a/x.y\"}}\n\n")
			_, _ = io.WriteString(w, "event: change\nid: 7.1\ndata: {\"id\":\"half") // breaks
		case 2:
			problem(w, 503, "unavailable")
		case 3:
			if last != "6.1" {
				t.Errorf("resumes at %q", last)
			}
			_, _ = io.WriteString(w, "event: bookmark\nid: 9\ndata: {\"revision\":9}\n\n: a comment\n\nevent: change\nid: 10.1\ndata: {\"id\":\"a/x.y\",\"revision\":10}\n\n")
		case 4:
			if last != "10.1" {
				t.Errorf("goes on at %q", last)
			}
			_, _ = io.WriteString(w, "event: gone\ndata: {\"status\":410,\"code\":\"gone\",\"detail\":\"too late\"}\n\n")
		}
	})
	var got []string
	for change, err := range client.Watch[api.App](t.Context(), c, client.Apps, client.WatchOptions{Since: 5}) {
		if err != nil {
			got = append(got, fmt.Sprint(errors.Is(err, api.ErrGone)))
			continue
		}
		got = append(got, fmt.Sprintf("%s@%d %t", change.ID, change.Revision, change.Object != nil))
	}
	if s := strings.Join(got, ", "); s != "a/x.y@6 true, a/x.y@10 false, true" {
		t.Errorf("watched %s", s)
	}
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	open := make(chan struct{})
	c := serve(t, nil, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		close(open)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-open
		cancel()
	}()
	for _, err := range client.Watch[api.App](ctx, c, client.Apps, client.WatchOptions{}) {
		t.Errorf("after the end: %v", err)
	}
}

func TestAllPagesAreRead(t *testing.T) {
	c := serve(t, nil, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("cursor") {
		case "":
			_, _ = io.WriteString(w, `{"items":[{"id":"a/1.x"}],"revision":7,"next":"two"}`)
		case "two":
			_, _ = io.WriteString(w, `{"items":[{"id":"a/2.x"}],"revision":9}`)
		}
	})
	apps, rev, err := c.Apps(t.Context(), client.ListOptions{Tenant: "a"})
	if err != nil || len(apps) != 2 || rev != 7 {
		t.Errorf("%v at %d %v", apps, rev, err)
	}
}

// The lists of a new root are at revision 0. A watch since 0 must not miss changes made before it
// begins.
func TestAWatchFromNothingIsFromTheFirstChange(t *testing.T) {
	c := serve(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if at := r.Header.Get("Last-Event-ID"); at != "0" {
			t.Errorf("begins at %q, which is now", at)
		}
		_, _ = io.WriteString(w, "event: change\nid: 1.1\ndata: {\"id\":\"a/x.y\",\"revision\":1}\n\n")
	})
	for change, err := range client.Watch[api.App](t.Context(), c, client.Apps, client.WatchOptions{}) {
		if err != nil || change.ID != "a/x.y" {
			t.Errorf("the first change is %+v (%v), want a/x.y", change, err)
		}
		break
	}
}
