package command_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// An instance that has just started, also after a move, has no processor and network yet. The command shows what it has, says why
// the rest is missing, and fails.
func TestTopSaysWhyAnInstanceIsNotMeasured(t *testing.T) {
	web := api.ServiceID("acme/shop.prod.web.v1").Instance(0)
	usage := api.UnknownUsage
	r := canned(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/v1/usage/instances":
			say(t, w, api.Usages[api.InstanceUsage]{Items: []api.InstanceUsage{{Instance: web, Cluster: "munich", Node: "n1", Usage: usage}}})
		default:
			t.Errorf("nobody answers %s", req.URL.Path)
		}
	})
	for _, c := range []struct {
		name   string
		memory int64
		code   int
	}{{"of a runtime that measures nothing", -1, 0}, {"that has just started", 2 << 20, 8}} {
		usage.Memory = c.memory
		out, said, code := r.run("", "top", "instances")
		if code != c.code || !strings.Contains(out, "shop.prod.web.v1#0") || strings.Contains(said, "it has just started there") != (c.code != 0) {
			t.Errorf("an instance %s: exit %d, prints %q, says %q, want exit %d and the reason", c.name, code, out, said, c.code)
		}
	}
}
