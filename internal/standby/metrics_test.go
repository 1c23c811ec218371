package standby_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/internal/standby"
)

// A standby serves its metrics to its own machine, and to those whom the active replica allows to read its own.
func TestMetricsOfAStandbyNeedTheActiveReplicasWord(t *testing.T) {
	asked := 0
	active := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if got := fmt.Sprint(r.Method, " ", r.URL.RequestURI(), " ", len(r.Header), " ", r.ContentLength); got != "HEAD /metrics 1 0" {
			t.Errorf("the active replica is asked %s, want for the right to its metrics, with the token alone", got)
		}
		if r.Header.Get("Authorization") != "Bearer good" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte("sign in"))
			return
		}
		_, _ = w.Write([]byte("secret list"))
	})
	h := standby.HealthOr(func() (string, bool) { return "the active one is elsewhere", true }, active)
	for _, try := range []struct {
		from, token string
		status      int
	}{
		{"127.0.0.1:5", "", 200},
		{"[::1]:5", "", 200},
		{"192.0.2.7:5", "", 401},
		{"192.0.2.7:5", "Bearer bad", 401},
		{"192.0.2.7:5", "Bearer good", 200},
	} {
		before := asked
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://s/metrics?x=1", strings.NewReader("body"))
		r.RemoteAddr = try.from
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Treeline-Forwarded-For", "127.0.0.1:1")
		if try.token != "" {
			r.Header.Set("Authorization", try.token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		text := w.Body.String()
		if has := strings.Contains(text, "process_start_time_seconds"); w.Code != try.status || has != (try.status == 200) || strings.Contains(text, "secret") {
			t.Errorf("%s with %q: got %d %.200s, want %d", try.from, try.token, w.Code, text, try.status)
		}
		if local := try.from[0] == '1' && try.from[1] == '2' || try.from[0] == '['; (asked > before) == local {
			t.Errorf("%s: the active replica was asked %d times", try.from, asked-before)
		}
		if w.Code == 401 && (w.Header().Get("WWW-Authenticate") == "" || text != "sign in") {
			t.Errorf("%s: got %v %q, want the answer of the active replica", try.from, w.Header(), text)
		}
	}
}
