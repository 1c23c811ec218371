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

// An instance that is deleted between the list and the request for its logs is not a failure of the
// logs of its service. It is one if the user has named it, or if no instance has logs.
func TestLogsOfAServiceNameInstancesWithoutLogs(t *testing.T) {
	gone := "1"
	r := canned(t, func(w http.ResponseWriter, req *http.Request) {
		path, logs := strings.CutSuffix(req.URL.Path, "/logs")
		number := path[len(path)-1:]
		switch {
		case !logs:
			var all []api.Instance
			for n := range 2 {
				all = append(all, api.Instance{ID: api.ServiceID("acme/shop.prod.web.v1").Instance(n), Service: "acme/shop.prod.web.v1", Number: n, Cluster: "munich", State: api.Running})
			}
			say(t, w, api.Page[api.Instance]{Items: all})
		case strings.Contains(gone, number):
			w.WriteHeader(http.StatusConflict)
			say(t, w, api.Problem{Status: http.StatusConflict, Code: "conflict", Detail: "logs of acme/shop.prod.web.v1#" + number + ": it is terminated"})
		default:
			_, _ = w.Write([]byte("line 1\n"))
		}
	})
	out, said, code := r.run("", "logs", "shop/web")
	if code != 0 || !strings.HasSuffix(out, "#0 | line 1\n") || strings.Count(said, "logs of acme/shop.prod.web.v1#1: it is terminated") != 1 {
		t.Errorf("of the service: exit %d, prints %q, says %s", code, out, said)
	}
	out, said, code = r.run("", "logs", "shop/web#0", "shop/web#1")
	if code == 0 || !strings.HasSuffix(out, "#0 | line 1\n") || !strings.Contains(said, "it is terminated") {
		t.Errorf("of named instances: exit %d, prints %q, says %s", code, out, said)
	}
	gone = "01"
	if out, said, code = r.run("", "logs", "shop/web"); code == 0 || !strings.Contains(said, "none of 2 instances has logs") {
		t.Errorf("of a service without logs: exit %d, prints %q, says %s", code, out, said)
	}
}
