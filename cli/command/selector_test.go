package command_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// labelled has three applications with labels; the service job of the first replaces one of its application's.
const labelled = `{"sla_version":"v2.0","applications":[
{"application_name":"shop","application_namespace":"prod","labels":{"team":"web","env":"prod"},"microservices":[
 {"microservice_name":"front","microservice_namespace":"v1","virtualization":"process","code":"/bin/sleep"},
 {"microservice_name":"job","microservice_namespace":"v1","virtualization":"process","code":"/bin/sleep","labels":{"team":"data"}}]},
{"application_name":"shop","application_namespace":"test","labels":{"team":"web","env":"test"},"microservices":[
 {"microservice_name":"front","microservice_namespace":"v1","virtualization":"process","code":"/bin/sleep"}]},
{"application_name":"blog","application_namespace":"test","labels":{"env":"test"},"microservices":[
 {"microservice_name":"front","microservice_namespace":"v1","virtualization":"process","code":"/bin/sleep"}]}]}`

// TestSelectorsSelectByLabels has what -l selects, what it refuses, and that a change of labels replaces no
// instance.
func TestSelectorsSelectByLabels(t *testing.T) {
	r := newRig(t)
	r.signIn()
	sla := r.file("labelled.json", labelled)
	r.must("", "apply", "-f", sla, "--detach")
	for _, tt := range []struct {
		args, want string
		code       int
	}{
		{"get apps -o name -l team=web", "acme/shop.prod acme/shop.test", 0},
		{"get apps -o name -l team=web,env!=prod", "acme/shop.test", 0},
		{"get apps -o name -l !team", "acme/blog.test", 0},
		{"get apps -o name shop.prod blog.test -l team", "acme/shop.prod", 0},
		{"get apps -o name -l team=none", "", 0},
		{"get services -o name -l team=web", "acme/shop.prod.front.v1 acme/shop.test.front.v1", 0},
		{"get services -o name -l team=data,env=prod", "acme/shop.prod.job.v1", 0},
		{"get instances -o name -l team=data", "acme/shop.prod.job.v1#0", 0},
		{"ps -o name -l env=test,team", "acme/shop.test.front.v1#0", 0},
		{"why -o name -l env=test,team", "acme/shop.test.front.v1#0", 0},
		{"describe app -o name -l env=prod", "acme/shop.prod", 0},
		{"describe service -o name -l env=prod,team!=web", "acme/shop.prod.job.v1", 0},
		{"describe app -o name -l env=none", "", 6},
		{"wait -l env=none", "", 6},
		{"logs -l env=none", "", 6},
		{"delete app -l env=none --yes", "", 6},
		{"delete app shop.prod -l env=test --yes", "", 2},
		{"delete app -l env=test", "", 2}, // no terminal to confirm on
		{"delete app --selector= --yes", "", 2},
		{"get apps -l a=b=c;", "", 2},
		{"logs", "", 2},
	} {
		out, said, code := r.run("", strings.Fields(tt.args)...)
		got := strings.Fields(out)
		slices.Sort(got)
		if code != tt.code || strings.Join(got, " ") != tt.want {
			t.Errorf("treeline %s: exit %d, want %d; prints %q, want %q; says %s", tt.args, code, tt.code, got, tt.want, said)
		}
	}

	version := r.must("", "get", "services", "shop.prod.front", "-o", "jsonpath={.items[0].spec_revision}{.spec_revision}")
	r.file("labelled.json", strings.ReplaceAll(labelled, `"team":"web","env":"prod"`, `"team":"sales","env":"prod"`))
	if plan, _, code := r.run("", "plan", "-f", sla); code != 1 || !strings.Contains(plan, "labels") {
		t.Errorf("plan of changed labels: exit %d, want 1 and the change: %s", code, plan)
	}
	r.must("", "apply", "-f", sla, "--detach")
	if got := r.must("", "get", "services", "-o", "name", "-l", "team=sales"); strings.TrimSpace(got) != "acme/shop.prod.front.v1" {
		t.Errorf("services of team sales: %q", got)
	}
	if now := r.must("", "get", "services", "shop.prod.front", "-o", "jsonpath={.items[0].spec_revision}{.spec_revision}"); now != version {
		t.Errorf("a change of labels made version %s of %s", now, version)
	}

	_, said, code := r.run("", "delete", "app", "-l", "env=test", "--yes")
	if code != 0 || !strings.Contains(said, "-l env=test selects 2 of the applications: acme/blog.test, acme/shop.test") {
		t.Errorf("delete by labels: exit %d and %s", code, said)
	}
	for _, name := range []string{"blog.test", "shop.test"} {
		r.must("", "wait", name, "--for=deleted")
	}
	if got := r.must("", "get", "apps", "-o", "name"); strings.TrimSpace(got) != "acme/shop.prod" {
		t.Errorf("left are %q, want acme/shop.prod only", got)
	}
}

// TestSelectorsSelectNodes has what -l does to nodes. If a cluster does not answer, the commands act on the others
// and fail.
func TestSelectorsSelectNodes(t *testing.T) {
	var done []string
	away := false
	r := canned(t, func(w http.ResponseWriter, req *http.Request) {
		node := func(id, rack string) api.Node {
			return api.Node{NodeInfo: api.NodeInfo{ID: api.NodeID(id), Labels: map[string]string{"rack": rack}}, Cluster: "munich", Status: api.NodeReady}
		}
		switch path := req.URL.Path; {
		case path == "/v1/clusters":
			say(t, w, api.Page[api.Cluster]{Items: []api.Cluster{{ClusterInfo: api.ClusterInfo{ID: "munich"}}, {ClusterInfo: api.ClusterInfo{ID: "oslo"}}}})
		case path == "/v1/clusters/munich/nodes":
			say(t, w, api.Page[api.Node]{Items: []api.Node{node("n1", "r1"), node("n2", "r2"), node("n3", "r1")}})
		case path == "/v1/clusters/oslo/nodes" && away:
			w.WriteHeader(http.StatusServiceUnavailable)
		case path == "/v1/clusters/oslo/nodes":
			say(t, w, api.Page[api.Node]{})
		case req.Method == http.MethodPost:
			done = append(done, path)
			say(t, w, node("n1", "r1"))
		default:
			t.Errorf("unexpected request %s %s", req.Method, path)
		}
	})
	for _, tt := range []struct {
		args, says string
		away       bool
		code, acts int
	}{
		{"cordon -l rack=r1", "selects 2 of the nodes: munich/n1, munich/n3", false, 0, 2},
		{"cordon -l rack=r9", "no nodes with the labels rack=r9", false, 6, 0},
		{"cordon n1 -l rack=r1", "not both", false, 2, 0},
		{"cordon -l rack=r1", "oslo", true, 8, 2},
		{"get nodes -l !rack -o name", "", false, 0, 0},
		{"get nodes -l rack!=r1 -o name", "oslo", true, 8, 0},
	} {
		done, away = nil, tt.away
		_, said, code := r.run("", strings.Fields(tt.args)...)
		if code != tt.code || len(done) != tt.acts || !strings.Contains(said, tt.says) {
			t.Errorf("treeline %s: exit %d, want %d; did %v, want %d of them; says %s", tt.args, code, tt.code, done, tt.acts, said)
		}
	}
}

// TestFiltersNameThingsThatExist fails if a flag or argument with the name of a thing that does not exist gives an
// empty list.
func TestFiltersNameThingsThatExist(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.joinCluster("munich")
	for _, args := range []string{
		"get instances --cluster typo", "ps --cluster typo", "get instances --node munich/typo", "get nodes --cluster typo",
		"top instances --cluster typo", "top instances --node munich/typo", "top nodes --cluster typo", "events --cluster typo",
		"token list --cluster typo", "get apps --tenant acme/typo", "get services --tenant acme/typo", "get instances --tenant acme/typo",
		"get volumes --tenant acme/typo", "get snapshots --tenant acme/typo", "get configs --tenant acme/typo", "get kinds --tenant acme/typo", "events --tenant acme/typo",
		"webhook list --tenant acme/typo", "top instances --tenant acme/typo", "user list --tenant acme/typo", "token list --tenant acme/typo",
		"get apps typo", "get services typo", "get instances typo", "get runs typo", "get volumes typo", "get clusters typo", "get configs typo", "events typo", "logs typo", "top instances typo",
		"user list acme/typo",
	} {
		out, said, code := r.run("", strings.Fields(args)...)
		if code == 0 || !strings.Contains(said, "typo") {
			t.Errorf("treeline %s: exit %d, prints %q and says %s", args, code, out, said)
		}
	}
}

// TestADescriptionOfANodeThatIsAwayFails has a node whose cluster answers and whose netmanager does not.
func TestADescriptionOfANodeThatIsAwayFails(t *testing.T) {
	r := canned(t, func(w http.ResponseWriter, req *http.Request) {
		switch path := req.URL.Path; path {
		case "/v1/clusters/munich/nodes/n1":
			say(t, w, api.Node{NodeInfo: api.NodeInfo{ID: "n1", Network: api.NetworkOverlay}, Cluster: "munich", Status: api.NodeSilent})
		case "/v1/clusters/munich/nodes/n1/net/peers":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/v1/events":
			say(t, w, api.Page[api.Event]{})
		default:
			t.Errorf("unexpected request %s %s", req.Method, path)
		}
	})
	for _, format := range []string{"table", "json"} {
		out, said, code := r.run("", "describe", "node", "munich/n1", "-o", format)
		if code != 8 || !strings.Contains(out, "silent") || !strings.Contains(said, "peers of node n1") {
			t.Errorf("-o %s: exit %d, want 8; prints %s and says %s", format, code, out, said)
		}
	}
}
