package command_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/command"
)

// name is replaced by the output of -o name.
const name = "NAME"

// named lists, for each command with -o, the commands that accept the names that it prints. If
// there are none, -o name is refused. The order is that of the test.
var named = []struct {
	prints string // the command that prints names
	takes  []string
}{
	{"apply -f shop.yaml --detach", []string{"describe app NAME", "get apps NAME"}},
	{"plan -f shop.yaml", nil}, // nothing changes, so it prints no name
	{"get apps", []string{"get apps NAME", "describe app NAME", "events NAME", "get services NAME", "get instances NAME", "wait NAME --for=deleted --timeout 1ms"}},
	{"get services", []string{"get services NAME", "describe service NAME", "events NAME", "scale NAME 1", "get instances NAME"}},
	{"get instances", []string{"get instances NAME", "describe instance NAME", "why NAME", "events NAME"}},
	{"ps", []string{"ps NAME", "why NAME"}},
	{"get clusters", []string{"get clusters NAME", "describe cluster NAME", "cap cluster NAME --nodes 9", "open cluster NAME"}},
	{"describe app shop", []string{"describe app NAME"}},
	{"describe service shop/web", []string{"describe service NAME"}},
	{"describe instance shop/web#0", []string{"describe instance NAME"}},
	{"describe cluster munich", []string{"describe cluster NAME"}},
	{"why shop/web#0", []string{"why NAME"}},
	{"scale shop/web 2", []string{"scale NAME 1"}},
	{"rollout status shop/web --watch=false", []string{"rollout status NAME --watch=false", "describe service NAME"}},
	{"rollout history shop/web", nil},
	{"token create --cluster oslo", []string{"token revoke NAME"}},
	{"token list", []string{"token revoke NAME"}},
	{"ctx list", []string{"ctx use NAME", "ctx show NAME"}},
	{"ctx show", []string{"ctx use NAME", "ctx show NAME"}},
	{"whoami", []string{"user invite NAME"}},
	{"get nodes", []string{"get nodes NAME", "describe node NAME", "cordon NAME", "uncordon NAME", "drain NAME --detach", "cap node NAME --memory 5", "net routes NAME", "delete node NAME --yes"}},
	{"describe node n1", []string{"describe node NAME"}},
	{"net routes n1", []string{"describe service NAME"}},
	{"create config web --from-file a=-", []string{"get configs NAME"}},
	{"create secret db --from-file a=-", []string{"get secrets NAME"}},
	{"get configs", []string{"describe config NAME"}},
	{"get secrets", []string{"describe secret NAME"}},
	{"describe config web", []string{"delete config NAME --yes"}},
	{"describe secret db", []string{"delete secret NAME --yes"}},
	{"top instances", []string{"get instances NAME", "top instances NAME"}},
	{"top nodes", []string{"get nodes NAME", "top nodes NAME"}},
	{"get volumes", []string{"get volumes NAME", "describe volume NAME", "delete volume NAME --yes"}},
	{"get snapshots", []string{"delete snapshot NAME --yes"}},
	{"describe volume shop/web#0:data", []string{"describe volume NAME"}},
	{"get runs shop/web", nil},
	{"doctor", nil},
	{"snapshot schedule", nil},
	{"user list", []string{"user list NAME", "user invite NAME"}},
	{"tenant list", []string{"get apps --tenant NAME"}},
	{"webhook list", []string{"webhook dead NAME", "webhook retry NAME", "webhook delete NAME"}},
	{"addon list", []string{"addon show NAME"}},
	{"addon show mqtt", []string{"addon remove NAME --yes"}},
	{"get replicas", []string{"get replicas NAME"}},
	{"get kinds", []string{"get kinds NAME", "describe kind NAME"}},
	{"get resources", []string{"get resources NAME", "describe resource NAME"}},
	{"get sensor", []string{"get resources NAME"}},
	{"describe kind sensor", []string{"get kinds NAME"}},
	{"describe resource sensor:roof", []string{"describe resource NAME"}},
	{"describe sensor roof", []string{"delete resource NAME --yes"}},
	{"events", nil},
	{"version", nil},
	{"net status n1", nil},
	{"net peers n1", nil},
	{"net trace shop/web#0 job", nil},
}

// TestWhatIsPrintedAsANameIsAccepted runs every command with -o. It fails for a command that is not
// in the table.
func TestWhatIsPrintedAsANameIsAccepted(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.file("shop.yaml", shop)
	t.Chdir(r.dir)
	r.must("", "apply", "-f", "shop.yaml", "--detach")
	r.joinCluster("munich")
	r.must("", "webhook", "create", "https://example.com/", "--kind", "volume")
	r.must("", "addon", "install", addonDir(t, ""))
	r.file("sensor.yaml", sensors)
	r.must("", "apply", "-f", "sensor.yaml")
	web := api.ServiceID("acme/shop.prod.web.v1")
	// The answers of clusters are fixed.
	nodes := canned(t, func(w http.ResponseWriter, req *http.Request) {
		node := api.Node{NodeInfo: api.NodeInfo{ID: "n1"}, Cluster: "munich", Status: api.NodeReady}
		switch path := req.URL.Path; {
		case path == "/v1/clusters":
			say(t, w, api.Page[api.Cluster]{Items: []api.Cluster{{ClusterInfo: api.ClusterInfo{ID: "munich"}}}})
		case path == "/v1/services/"+api.PathOf(web):
			say(t, w, api.Service{ID: web})
		case path == "/v1/clusters/munich/nodes":
			say(t, w, api.Page[api.Node]{Items: []api.Node{node}})
		case strings.HasSuffix(path, "/net/routes"):
			say(t, w, api.Page[api.RouteStatus]{Items: []api.RouteStatus{{Route: api.Route{Service: web}}}})
		case strings.HasPrefix(path, "/v1/clusters/munich/nodes/n1"):
			say(t, w, node)
		case path == "/v1/volumes":
			say(t, w, api.Page[api.VolumeStatus]{Items: []api.VolumeStatus{{ID: web.Instance(0).Volume("data"), Tenant: "acme"}}})
		case path == "/v1/snapshots":
			say(t, w, api.Page[api.VolumeSnapshot]{Items: []api.VolumeSnapshot{{ID: web.Instance(0).Volume("data").Snapshot("monday"), Tenant: "acme"}}})
		case req.Method == http.MethodDelete && (strings.HasPrefix(path, "/v1/volumes/") || strings.HasPrefix(path, "/v1/snapshots/")):
		case path == "/v1/replicas":
			say(t, w, api.Page[api.Replica]{Items: []api.Replica{{Name: "10.0.0.5:7443", Role: api.ReplicaActive, State: api.ReplicaAlive}}})
		case path == "/v1/usage/instances":
			say(t, w, api.Usages[api.InstanceUsage]{Items: []api.InstanceUsage{{Instance: web.Instance(0)}}})
		case path == "/v1/clusters/munich/usage/nodes":
			say(t, w, api.Usages[api.NodeUsage]{Items: []api.NodeUsage{{Node: "n1", Cluster: "munich"}}})
		case path == "/v1/instances":
			say(t, w, api.Page[api.Instance]{Items: []api.Instance{{ID: web.Instance(0), Service: web, State: api.Running}}})
		case path == "/v1/events":
			say(t, w, api.Page[api.Event]{})
		default:
			t.Errorf("nobody answers %s", path)
		}
	})
	missing := map[string]bool{}
	for _, path := range command.Showing() {
		missing[path] = true
	}
	for _, tt := range named {
		at := r
		if strings.Contains(tt.prints, "node") || strings.Contains(tt.prints, "n1") || strings.Contains(tt.prints, "volume") || strings.Contains(tt.prints, "snapshot") || strings.Contains(tt.prints, "replicas") || strings.HasPrefix(tt.prints, "top ") {
			at = nodes
		}
		for path := range missing {
			if tt.prints == path || strings.HasPrefix(tt.prints, path+" ") {
				delete(missing, path)
			}
		}
		out, said, code := at.run("", append(strings.Fields(tt.prints), "-o", "name")...)
		if tt.takes == nil {
			refused := code == 2 && strings.Contains(said, "does not support -o name")
			if !refused && !strings.HasPrefix(tt.prints, "plan") || out != "" {
				t.Errorf("treeline %s -o name: exit %d, prints %q and says %q; want it refused", tt.prints, code, out, said)
			}
			continue
		}
		if code != 0 || out == "" {
			t.Errorf("treeline %s -o name: exit %d, prints %q and says %q", tt.prints, code, out, said)
		}
		if strings.HasPrefix(tt.prints, "create ") { // not twice
		} else if out, said, code := at.run("", append(strings.Fields(tt.prints), "-o", "jsonpath={..id}{'.'}")...); !strings.HasSuffix(strings.TrimSpace(out), ".") {
			t.Errorf("treeline %s -o jsonpath: exit %d, prints %q and says %q", tt.prints, code, out, said)
		}
		for _, printed := range strings.Fields(out) {
			for _, line := range tt.takes {
				line = strings.ReplaceAll(line, name, printed)
				if _, said, code := at.run("", strings.Fields(line)...); code != 0 && (code != 4 || !strings.HasPrefix(line, "wait")) {
					t.Errorf("treeline %s -o name prints %s; treeline %s: exit %d: %s", tt.prints, printed, line, code, said)
				}
			}
		}
	}
	for path := range missing {
		t.Errorf("treeline %s has -o, and no line in the test's table", path)
	}
}

// A node's name is refused if several clusters have, or may have, a node of that name.
func TestANameOfSeveralNodesIsRefused(t *testing.T) {
	var away map[string]bool // clusters that do not answer
	var changed []string
	r := canned(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			changed = append(changed, req.URL.Path)
		}
		rest, _ := strings.CutPrefix(req.URL.Path, "/v1/clusters/")
		cluster, _, _ := strings.Cut(rest, "/")
		nodes := []api.Node{{NodeInfo: api.NodeInfo{ID: "n1"}, Cluster: "elsewhere"}} // reported by a hostile cluster
		if cluster == "oslo" {
			nodes = append(nodes, api.Node{NodeInfo: api.NodeInfo{ID: "n2"}})
		}
		switch {
		case req.URL.Path == "/v1/clusters":
			say(t, w, api.Page[api.Cluster]{Items: []api.Cluster{{ClusterInfo: api.ClusterInfo{ID: "munich"}}, {ClusterInfo: api.ClusterInfo{ID: "oslo"}}}})
		case away[cluster]:
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasSuffix(req.URL.Path, "/nodes"):
			say(t, w, api.Page[api.Node]{Items: nodes})
		case req.URL.Path == "/v1/events":
			say(t, w, api.Page[api.Event]{})
		default:
			say(t, w, nodes[len(nodes)-1])
		}
	})
	verbs := []string{
		"get node", "describe node", "cordon", "uncordon", "drain --detach", "cap node --memory 5", "delete node --yes", "delete node --purge --yes", "net routes",
	}
	for _, verb := range verbs {
		_, said, code := r.run("", append(strings.Fields(verb), "n1")...)
		if code != 2 || !strings.Contains(said, "munich/n1") || !strings.Contains(said, "oslo/n1") || len(changed) > 0 {
			t.Errorf("treeline %s n1: exit %d, changes %v, says %s", verb, code, changed, said)
		}
	}
	for _, verb := range verbs[:7] { // not the last one: a purge waits for the node
		changed = nil
		if _, said, code := r.run("", append(strings.Fields(verb), "n2")...); code != 0 {
			t.Errorf("treeline %s n2, of which there is one: exit %d: %s", verb, code, said)
		}
		if _, said, code := r.run("", append(strings.Fields(verb), "n1", "--cluster", "munich")...); code != 0 {
			t.Errorf("treeline %s n1 --cluster munich: exit %d: %s", verb, code, said)
		}
		for _, path := range changed {
			if !strings.HasPrefix(path, "/v1/clusters/oslo/nodes/n2") && !strings.HasPrefix(path, "/v1/clusters/munich/nodes/n1") {
				t.Errorf("treeline %s changes %s", verb, path)
			}
		}
	}
	changed, away = nil, map[string]bool{"munich": true}
	for _, verb := range verbs {
		_, said, code := r.run("", append(strings.Fields(verb), "n1")...)
		if code != 8 || !strings.Contains(said, "oslo/n1") || !strings.Contains(said, "munich") || len(changed) > 0 {
			t.Errorf("munich is away, treeline %s n1: exit %d, changes %v, says %s", verb, code, changed, said)
		}
	}
	if _, said, code := r.run("", "cordon", "oslo/n1"); code != 0 {
		t.Errorf("the whole name: exit %d: %s", code, said)
	}
}
