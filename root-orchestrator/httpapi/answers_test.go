package httpapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// nodesAnswer is a cluster's answer that lists n empty nodes.
func nodesAnswer(n int) string {
	body := `{"items":[` + strings.Repeat(`{},`, n-1) + `{}]}`
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// slowReader is a client that reads nothing until hold is closed.
type slowReader struct {
	*httptest.ResponseRecorder
	reached, hold chan struct{}
}

func (s slowReader) Write(p []byte) (int, error) {
	s.reached <- struct{}{}
	<-s.hold
	return s.ResponseRecorder.Write(p)
}

// An answer above the limit is refused before it takes much more memory than its size. Other
// answers take places of the requesting user's tenant.
func TestAnswersOfOneTenantsClusterLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	r.join("loud", "loud")
	r.join("quiet", "quiet")
	loud, quiet := r.user("loud/op", rights.InfrastructureProvider), r.user("quiet/op", rights.InfrastructureProvider)
	serve := func(w http.ResponseWriter, cluster, token string) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/clusters/"+cluster+"/nodes", nil)
		req.Header.Set("Authorization", "Bearer "+token)
		r.web.Handler().ServeHTTP(w, req)
	}
	nodes := func(cluster, token string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		serve(w, cluster, token)
		return w
	}
	r.clusters.answers["GET /v1/nodes"] = nodesAnswer(4 << 20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w := nodes("loud", loud)
	runtime.ReadMemStats(&after)
	if used := (after.TotalAlloc - before.TotalAlloc) >> 20; w.Code != http.StatusServiceUnavailable || used > 128 {
		t.Errorf("an answer of 4 million nodes: %d %.200s after %d MiB", w.Code, w.Body, used)
	}
	r.clusters.answers["GET /v1/nodes"] = nodesAnswer(120_000)
	slow := slowReader{reached: make(chan struct{}), hold: make(chan struct{})}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			serve(slowReader{httptest.NewRecorder(), slow.reached, slow.hold}, "loud", loud)
		})
	}
	<-slow.reached
	<-slow.reached
	if w := nodes("loud", loud); w.Code != http.StatusTooManyRequests {
		t.Errorf("a third answer of 120,000 nodes: %d %.200s, want 429", w.Code, w.Body)
	}
	r.clusters.mu.Lock()
	r.clusters.answers["GET /v1/nodes"] = nodesAnswer(10)
	r.clusters.mu.Unlock()
	if w := nodes("quiet", quiet); w.Code != http.StatusOK {
		t.Errorf("an answer of another tenant's cluster: %d %.200s, want status 200", w.Code, w.Body)
	}
	go func() {
		for range slow.reached { // read the rest
		}
	}()
	close(slow.hold)
	all.Wait()
	close(slow.reached)
	for range 300 {
		if w := nodes("loud", loud); w.Code != http.StatusOK {
			t.Fatalf("an answer after the others ended: %d %.200s, want status 200", w.Code, w.Body)
		}
	}
}
