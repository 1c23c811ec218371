package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/internal/watch"
)

// watched is a message of a stream.
type watched struct {
	name, id string
	api.Change
	text string
}

// watch opens a stream as a caller. The status is 200 if it is open.
func (r *rig) watch(who, since string) (status int, _ <-chan watched, end func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	server := httptest.NewServer(r.web.Handler())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v1/changes", nil)
	check(r.t, err)
	req.Header.Set("Authorization", "Bearer "+who)
	if since != "" {
		req.Header.Set("Last-Event-ID", since)
	}
	resp, err := server.Client().Do(req)
	check(r.t, err)
	out := make(chan watched, 1000)
	go func() {
		defer close(out)
		var m watched
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			key, value, _ := strings.Cut(lines.Text(), ": ")
			switch key {
			case "event":
				m = watched{name: value}
			case "id":
				m.id = value
			case "data":
				m.text = value
				_ = json.Unmarshal([]byte(value), &m.Change)
			case "":
				out <- m
			}
		}
	}()
	return resp.StatusCode, out, func() {
		cancel()
		resp.Body.Close()
		server.Close()
	}
}

// until returns the messages up to the first of a change of the kind and id with a text in it.
func until(t *testing.T, all <-chan watched, kind, id, text string) (seen []watched) {
	t.Helper()
	for limit := time.After(30 * time.Second); ; {
		select {
		case m, ok := <-all:
			if !ok {
				t.Fatalf("the stream ended after %+v, want %s %s with %q", seen, kind, id, text)
			}
			if seen = append(seen, m); m.Kind == kind && m.ID == id && strings.Contains(m.text, text) {
				return seen
			}
		case <-limit:
			t.Fatalf("no %s %s with %q within 30 s, only %+v", kind, id, text, seen)
		}
	}
}

// A stream continues after the lists with what its user may see in them, and of developers with no node's name.
func TestTheStreamOfChangesHasWhatItsUserMaySee(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	var nodes api.Page[api.Node]
	r.ask("otto", "GET", "/v1/nodes", nil, 200, &nodes)
	since := watch.Position{Revision: nodes.Revision}.String()
	r.want(1, instance("acme/shop.prod.web.v1#0", 10))
	r.want(2, instance("acme/shop.prod.web.v1#0", 10), instance("rival/shop.prod.web.v1#0", 10))
	r.ask("otto", "POST", "/v1/nodes/n1/cordon", nil, 200, nil)
	r.step(cluster.RootLink{Up: true})
	for _, c := range []struct{ who, kinds, hidden string }{
		{"otto", "cluster event instance node", ""},
		{"own", "cluster event instance node", ""},
		{"alice", "instance", "n1"},
		{"rival", "instance", "acme"},
	} {
		status, all, end := r.watch(c.who, since)
		if status != 200 {
			t.Fatalf("a watch of %s: %d", c.who, status)
		}
		kind, id := "cluster", "munich"
		if !strings.Contains(c.kinds, "cluster") {
			tenant := map[string]string{"alice": "acme", "rival": "rival"}[c.who]
			kind, id = "instance", tenant+"/shop.prod.web.v1#0"
		}
		seen := until(t, all, kind, id, "")
		end()
		var kinds []string
		for _, m := range seen {
			if m.Kind != "" && !slices.Contains(kinds, m.Kind) {
				kinds = append(kinds, m.Kind)
			}
			if c.hidden != "" && strings.Contains(m.text, c.hidden) {
				t.Errorf("%s sees %s: %s", c.who, c.hidden, m.text)
			}
		}
		slices.Sort(kinds)
		if got := strings.Join(kinds, " "); got != c.kinds {
			t.Errorf("the stream of %s has %q, want %q", c.who, got, c.kinds)
		}
	}
}

func TestAWatchOfTheClusterResumes(t *testing.T) {
	r := newRig(t)
	_, all, end := r.watch("otto", "")
	r.join("n1")
	seen := until(t, all, "node", "n1", `"status":"ready"`)
	end()
	r.ask("otto", "POST", "/v1/nodes/n1/cordon", nil, 200, nil)
	_, all, end = r.watch("otto", seen[len(seen)-1].id)
	defer end()
	for _, m := range until(t, all, "node", "n1", `"status":"cordoned"`) {
		if m.Kind == "node" && strings.Contains(m.text, `"status":"ready"`) {
			t.Errorf("it repeats %s", m.text)
		}
	}
	r.step(cluster.RemoveNode{Node: "n1"})
	for _, m := range until(t, all, "node", "n1", "") {
		if m.Object != nil && m.Kind == "node" {
			t.Errorf("the removed node is %s", m.text)
		}
	}
}

func TestAWatchNeedsATokenAndAKnownPosition(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) { o.FeedSize = 2 })
	for _, c := range []struct {
		who, since string
		want       int
	}{
		{"", "", 401}, {"otto", "9007199254740991", 410}, {"otto", "1", 410}, {"otto", "x", 422}, {"otto", strings.Repeat("1", 100), 422},
	} {
		req := httptest.NewRequest("GET", "/v1/changes", nil)
		if c.who != "" {
			req.Header.Set("Authorization", "Bearer "+c.who)
		}
		req.Header.Set("Last-Event-ID", c.since)
		w := httptest.NewRecorder()
		r.web.Handler().ServeHTTP(w, req)
		if w.Code != c.want {
			t.Errorf("a watch of %q since %q: %d %s, want %d", c.who, c.since, w.Code, w.Body, c.want)
		}
	}
}

// A person cannot take the places of others, and a watch ends with its token.
func TestWatchesOfOneOperatorLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	open := 0
	for range 70 {
		status, _, end := r.watch("alice", "")
		defer end()
		switch status {
		case 200:
			open++
		case http.StatusTooManyRequests:
		default:
			t.Fatalf("a watch too many: %d", status)
		}
	}
	if open != 64 {
		t.Errorf("one person has %d watches, want 64", open)
	}
	status, all, end := r.watch("otto", "")
	defer end()
	if status != 200 {
		t.Errorf("a watch of another person: %d", status)
	}
	r.mu.Lock()
	r.revoked = append(r.revoked, "otto")
	r.mu.Unlock()
	r.web.Recheck()
	for limit := time.After(30 * time.Second); ; {
		select {
		case _, ok := <-all:
			if !ok {
				return
			}
		case <-limit:
			t.Fatal("the watch continues after its token is revoked")
		}
	}
}
