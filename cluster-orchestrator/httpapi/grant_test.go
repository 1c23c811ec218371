package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/wire"
)

// pipe is a node's stream that begins and does not end.
func pipe() io.ReadCloser {
	r, w := io.Pipe()
	go func() { _, _ = io.WriteString(w, "line 1\n") }()
	return r
}

// begun signals when the first byte of a response is written.
type begun struct {
	http.ResponseWriter
	once  sync.Once
	first chan struct{}
}

func (b *begun) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *begun) Write(p []byte) (int, error) {
	defer b.once.Do(func() { close(b.first) })
	return b.ResponseWriter.Write(p)
}

// aborted serves the request until it ends, and reports whether it was aborted after when was
// called.
func aborted(h http.Handler, r *http.Request, when func()) (aborted bool, body *bytes.Buffer) {
	rec := httptest.NewRecorder()
	w := &begun{ResponseWriter: rec, first: make(chan struct{})}
	go func() {
		<-w.first
		when()
	}()
	defer func() {
		if e := recover(); e != nil {
			err, _ := e.(error)
			aborted = errors.Is(err, http.ErrAbortHandler)
		}
	}()
	h.ServeHTTP(w, r)
	return false, rec.Body
}

func TestStreamsEndWithTheRightThatOpenedThem(t *testing.T) {
	const id = "acme/shop.prod.web.v1#0"
	logs, capture := "/v1/instances/"+api.PathOf(id)+"/logs?follow=true", "/v1/instances/"+api.PathOf(id)+"/capture"
	newRig := func(t *testing.T) (*rig, func()) {
		r := newRig(t)
		r.join("n1")
		r.want(1, instance(id, 64))
		r.stream = pipe()
		return r, func() {
			r.mu.Lock()
			r.revoked = append(r.revoked, "alice")
			r.mu.Unlock()
			r.web.Recheck()
		}
	}
	for _, path := range []string{logs, capture} {
		t.Run("directly "+path, func(t *testing.T) {
			r, revoke := newRig(t)
			req := httptest.NewRequest("GET", path, nil)
			req.Header.Set("Authorization", "Bearer alice")
			if ok, body := aborted(r.web.Handler(), req, revoke); !ok {
				t.Errorf("ended as if it were whole: %s", body)
			}
		})
		t.Run("over the root "+path, func(t *testing.T) {
			r, revoke := newRig(t)
			q := wire.StreamRequest{Kind: "api", Method: "GET", Path: path}
			q.Token = "alice for " + q.CallObject()
			if ok, body := aborted(r.web.FromRoot(q), httptest.NewRequest("GET", path, nil), revoke); !ok {
				t.Errorf("ended as if it were whole: %s", body)
			}
		})
	}
	t.Run("a log that the root asks for", func(t *testing.T) {
		r, revoke := newRig(t)
		q := wire.StreamRequest{Kind: "logs", Instance: id, Follow: true}
		q.Token = "alice for " + q.CallObject()
		body, err := r.web.LogsFromRoot(t.Context(), q)
		check(t, err)
		defer body.Close()
		line := make([]byte, len("line 1\n"))
		if _, err := io.ReadFull(body, line); err != nil {
			t.Fatal(err)
		}
		revoke()
		if _, err := body.Read(line); !errors.Is(err, grant.ErrEnded) {
			t.Errorf("read %v", err)
		}
	})
}

// Requests of the root only accept the token that was delegated for them, wherever it is put.
func TestRequestsOfTheRootRequireADelegatedToken(t *testing.T) {
	r, h := newRig(t), http.Header{"Authorization": {"Bearer admin"}}
	for _, token := range []string{"", "admin", "admin for something else"} {
		q := wire.StreamRequest{Kind: "api", Method: "GET", Path: "/v1/nodes", Token: token}
		req := httptest.NewRequest("GET", q.Path, nil)
		req.Header = h.Clone()
		w := httptest.NewRecorder()
		r.web.FromRoot(q).ServeHTTP(w, req)
		if w.Code != http.StatusForbidden {
			t.Errorf("token %q: %d %s", token, w.Code, w.Body)
		}
		if _, err := r.web.LogsFromRoot(context.Background(), q); !errors.Is(err, api.ErrForbidden) {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

func TestMetricsAreForThisMachineAndTheOperator(t *testing.T) {
	r := newRig(t)
	h := r.web.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	for _, c := range []struct {
		from, token string
		want        int
	}{
		{"127.0.0.1:1234", "", 200},
		{"[::1]:1234", "", 200},
		{"192.0.2.7:1234", "", 401},
		{"192.0.2.7:1234", "nonsense", 401},
		{"192.0.2.7:1234", "alice", 403},
		{"192.0.2.7:1234", "operator", 404},
		{"192.0.2.7:1234", "otto", 200},
		{"192.0.2.7:1234", "admin", 200},
		{"", "", 401},
	} {
		req := httptest.NewRequest("GET", "/metrics", nil)
		req.RemoteAddr = c.from
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code != c.want {
			t.Errorf("from %q as %q: %d %s, want %d", c.from, c.token, w.Code, w.Body, c.want)
		}
	}
}
