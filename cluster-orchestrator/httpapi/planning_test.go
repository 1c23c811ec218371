package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// The plans of one tenant, here with a body that does not end, occupy one place of two.
func TestPlansOfOneTenantLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	slow := func() (finish func() *httptest.ResponseRecorder) {
		body, send := io.Pipe()
		req := httptest.NewRequest(http.MethodPost, "/v1/plan", body)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer alice")
		w, done := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(done)
			r.web.Handler().ServeHTTP(w, req)
		}()
		if _, err := io.WriteString(send, `{"instances":`); err != nil { // returns when the server has read it
			t.Fatal(err)
		}
		return func() *httptest.ResponseRecorder {
			_, err := io.WriteString(send, `[]}`)
			check(t, err)
			check(t, send.Close())
			<-done
			return w
		}
	}
	finish := slow()
	const more = 17 // one more than may wait per tenant: the first to return was refused
	codes := make(chan int, more)
	for range more {
		go func() { codes <- r.raw("alice", "POST", "/v1/plan", `{"instances":[]}`).Code }()
	}
	if code := <-codes; code != 429 {
		t.Errorf("a plan beyond the queue of its tenant: %d, want 429", code)
	}
	if w := r.raw("rival", "POST", "/v1/plan", `{"instances":[]}`); w.Code != 200 {
		t.Errorf("another tenant's plan meanwhile: %d %s", w.Code, w.Body)
	}
	if w := finish(); w.Code != 200 {
		t.Errorf("the slow plan: %d %s", w.Code, w.Body)
	}
	for range more - 1 {
		if code := <-codes; code != 200 {
			t.Errorf("a plan that waited: %d", code)
		}
	}
}

// Refusing a body must not allocate a multiple of its size. No body is read without a token.
func TestPlansAreMeasuredBeforeTheyAreDecoded(t *testing.T) {
	r := newRig(t)
	many := func(item string) string {
		return `{"instances":[` + strings.Repeat(item+",", (8<<20-64)/(len(item)+1)) + item + `]}`
	}
	for _, body := range []string{many("{}"), many("[]"), many("0"), `{"gone":[` + strings.Repeat(`"",`, 2<<20) + `""]}`, strings.Repeat("[", 8<<20), strings.Repeat(" ", 8<<20+1)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := r.raw("alice", "POST", "/v1/plan", body)
		runtime.ReadMemStats(&after)
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; w.Code != 413 || used > 96 {
			t.Errorf("%.20s…: %d after %d MiB", body, w.Code, used)
		}
	}
	read := strings.NewReader(many("{}"))
	req := httptest.NewRequest(http.MethodPost, "/v1/plan", read)
	w := httptest.NewRecorder()
	r.web.Handler().ServeHTTP(w, req)
	if w.Code != 401 || read.Len() != int(read.Size()) {
		t.Errorf("a stranger's body: %d, %d bytes of it were read", w.Code, int(read.Size())-read.Len())
	}
	// The maximum that is decoded: 100,000 values.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	code := r.raw("alice", "POST", "/v1/plan", `{"instances":[`+strings.Repeat(`{},`, 49_990)+`{}]}`).Code
	runtime.ReadMemStats(&after)
	if used := (after.TotalAlloc - before.TotalAlloc) >> 20; code < 400 || used > 320 && !raceDetector {
		t.Errorf("49,991 empty instances: %d after %d MiB", code, used)
	} else {
		t.Logf("49,991 empty instances: %d after allocating %d MiB", code, used)
	}
	within := `{"instances":[],"gone":[` + strings.Repeat(`"a,[{\",",`, 99_990) + `""]}`
	if w := r.raw("alice", "POST", "/v1/plan", within); w.Code != 200 {
		t.Errorf("commas in strings count: %d %.200s", w.Code, w.Body)
	}
	var p api.ClusterPlan
	r.ask("alice", "POST", "/v1/plan", api.ClusterPlanRequest{Instances: []api.WhyRequest{}}, 200, &p)
}
