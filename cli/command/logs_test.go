package command_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// If the token of a followed log expires and there is no newer one, the error is neither the end of
// the log nor an unreachable server.
func TestFollowedLogsSayThatTheTokenExpired(t *testing.T) {
	const life = 300 * time.Millisecond
	for _, instances := range []int{1, 2} {
		var all []api.Instance
		for n := range instances {
			all = append(all, api.Instance{ID: api.ServiceID("acme/shop.prod.web.v1").Instance(n), Service: "acme/shop.prod.web.v1", Number: n, Cluster: "munich", State: api.Running})
		}
		r := canned(t, func(w http.ResponseWriter, req *http.Request) {
			switch path := req.URL.Path; {
			case req.URL.Query().Get("watch") == "true":
				_ = http.NewResponseController(w).Flush()
				<-req.Context().Done()
			case path == "/v1/apps":
				say(t, w, api.Page[api.App]{})
			case path == "/v1/services":
				say(t, w, api.Page[api.Service]{Items: []api.Service{{ID: "acme/shop.prod.web.v1", App: "acme/shop.prod"}}})
			case path == "/v1/instances":
				say(t, w, api.Page[api.Instance]{Items: all})
			case strings.HasSuffix(path, "/logs"):
				w.Header().Set("Treeline-Stream", "name")
				w.Header().Set("Treeline-Stream-Life", fmt.Sprint(life.Seconds()))
				_, _ = w.Write([]byte("line 1\n"))
				_ = http.NewResponseController(w).Flush()
				<-time.After(life) // the server ends the stream when the token expires
				panic(http.ErrAbortHandler)
			case path == "/v1/auth/streams/name":
				w.WriteHeader(http.StatusUnauthorized)
			default:
				t.Errorf("unexpected request %s", path)
			}
		})
		out, said, code := r.run("", "logs", "shop/web", "--follow")
		if code != 5 || strings.Count(out, "line 1\n") < 1 || strings.Count(out, "line 1\n") > instances || !strings.Contains(said, "stream interrupted: read stream: its token expired") || !strings.Contains(said, "logs of acme/shop.prod.web.v1#") {
			t.Errorf("of %d: exit %d, prints %q, says %s", instances, code, out, said)
		}
	}
}
