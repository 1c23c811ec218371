package command_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/wire"
)

// joinCluster lets a cluster of the tenant acme join the root.
func (r *rig) joinCluster(name string) {
	r.t.Helper()
	token := strings.TrimSpace(r.must("", "token", "create", "--cluster", name, "--token-only"))
	dir, err := os.OpenRoot(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	defer dir.Close()
	c, err := enrol.Open(dir, token, jointoken.ForCluster)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := enrol.RemoveKey(dir); err != nil { // each cluster needs its own key
		r.t.Fatal(err)
	}
	body, err := json.Marshal(wire.JoinCluster{Token: token, CSR: c.CSR, Info: api.ClusterInfo{ID: api.ClusterID(name)}})
	if err != nil {
		r.t.Fatal(err)
	}
	pem, err := os.ReadFile(r.ca())
	if err != nil {
		r.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	via := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	defer via.CloseIdleConnections()
	res, err := via.Post(r.url+"/v1/join/cluster", "application/json", bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		r.t.Fatalf("join cluster %s: %s", name, res.Status)
	}
}

// grant returns the cluster's grant at the root.
func (r *rig) grant(name string) api.Grant {
	r.t.Helper()
	var list struct {
		Items []api.Cluster `json:"items"`
	}
	text := r.must("", "get", "clusters", "-o", "json")
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Items) == 0 {
		r.t.Fatalf("read clusters: %v\n%s", err, text)
	}
	for _, c := range list.Items {
		if string(c.ID) == name {
			return c.Grant
		}
	}
	r.t.Fatalf("no cluster %s in %s", name, text)
	return api.Grant{}
}

// TestOpenAndCloseAndCapACluster runs the commands in order, as an admin, and compares the
// cluster's grant after each.
func TestOpenAndCloseAndCapACluster(t *testing.T) {
	r := newRig(t)
	r.signIn()
	for _, t := range []string{"beta", "gamma", "gamma/one"} {
		r.must("", "tenant", "create", t)
	}
	r.joinCluster("munich")
	if g := r.grant("munich"); !reflect.DeepEqual(g, api.Grant{}) {
		t.Fatalf("a tenant's cluster joins with %+v, want it closed", g)
	}
	caps := api.Caps{MilliCPU: 2500, MemoryMB: 4096, StorageMB: 100, Nodes: 3, Devices: map[string]int{"gpu": 2, "tpu": 0}, NoPrivileged: true}
	only := func(t ...api.Tenant) api.Grant { return api.Grant{Tenants: t} }
	capped := func(change func(*api.Caps)) api.Grant {
		c := caps
		change(&c)
		return api.Grant{Caps: c}
	}
	for _, step := range []struct {
		line string
		want api.Grant
		says string
	}{
		{"open cluster munich", api.Grant{Open: true}, "cluster munich is open to all tenants"},
		{"open cluster munich --to beta", api.Grant{Open: true, Tenants: []api.Tenant{"beta"}}, "open to all tenants"},
		{"close cluster munich", api.Grant{}, "cluster munich is open to acme"},
		{"open cluster munich --to beta --to gamma/one", only("beta", "gamma/one"), "open to acme, beta, gamma/one"},
		{"open clusters munich --to beta", only("beta", "gamma/one"), "open to acme, beta, gamma/one"},
		{"close cluster munich --to beta", only("gamma/one"), "open to acme, gamma/one"},
		{"close cluster munich --to gamma/one", api.Grant{}, "open to acme"},
		{
			"cap cluster munich --vcpus 2.5 --memory 4096 --storage 100 --nodes 3 --device gpu=2,tpu=0 --privileged=false",
			api.Grant{Caps: caps},
			"limited to 2.5 vCPU, 4096 MiB, 100 MiB disk, 3 nodes, 2 gpu, 0 tpu, no privileged workloads",
		},
		{"cap cluster munich --nodes 4", capped(func(c *api.Caps) { c.Nodes = 4 }), "4 nodes"},
		{"cap cluster munich --memory 0 --nodes 3 --privileged", capped(func(c *api.Caps) { c.MemoryMB, c.NoPrivileged = 0, false }), "2.5 vCPU, 100 MiB disk"},
		{
			"cap cluster munich --device gpu=-1",
			capped(func(c *api.Caps) { c.MemoryMB, c.NoPrivileged, c.Devices = 0, false, map[string]int{"tpu": 0} }),
			"limited to 2.5 vCPU, 100 MiB disk, 3 nodes, 0 tpu",
		},
		{"cap cluster munich --device gpu=2", capped(func(c *api.Caps) { c.MemoryMB, c.NoPrivileged = 0, false }), "2 gpu, 0 tpu"},
	} {
		_, said, code := r.run("", strings.Fields(step.line)...)
		if code != 0 || !strings.Contains(said, step.says) {
			t.Fatalf("%s: exit %d, says %q, want %q", step.line, code, said, step.says)
		}
		if g := r.grant("munich"); !reflect.DeepEqual(g, step.want) {
			t.Errorf("%s: the grant is %+v, want %+v", step.line, g, step.want)
		}
	}
	if text := r.must("", "describe", "cluster", "munich"); !strings.Contains(text, "2 gpu") || !strings.Contains(text, "open to acme") {
		t.Errorf("describe shows neither caps nor audience:\n%s", text)
	}
}

// Each invalid grant has an error message and an exit code, and changes nothing.
func TestGrantsThatCannotBeAreRefused(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.joinCluster("munich")
	r.must("", "cap", "cluster", "munich", "--nodes", "3")
	before := r.grant("munich")
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"open node munich":                    {2, `"node"`},
		"open cluster":                        {2, "1 arg"},
		"open cluster munich --to Acme!":      {2, `"Acme!"`},
		"close cluster munich --to beta":      {2, "beta"},
		"cap cluster munich":                  {2, "at least one limit"},
		"cap cluster munich --vcpus -1":       {2, "--vcpus -1, "},
		"cap cluster munich --vcpus 0.0001":   {2, "0.001"},
		"cap cluster munich --vcpus NaN":      {2, "--vcpus NaN, "},
		"cap cluster munich --memory -5":      {2, "--memory -5, "},
		"cap cluster munich --storage -5":     {2, "--storage -5: want 0 (no limit) or more"},
		"cap cluster munich --nodes -5":       {2, "--nodes -5: want 0 (no limit) or more"},
		"cap cluster munich --device gpu=few": {2, "gpu=few"},
		"cap cluster munich --device gpu=-2":  {1, "gpu"},
		"cap cluster oslo --nodes 1":          {6, "oslo"},
		"open cluster oslo":                   {6, "oslo"},
		"open cluster munich --to nobody":     {6, "nobody"},
	} {
		out, said, code := r.run("", strings.Fields(line)...)
		if code != want.code || !strings.Contains(said, want.says) || out != "" {
			t.Errorf("%s: exit %d, want %d; says %q, want %q in it", line, code, want.code, said, want.says)
		}
	}
	if g := r.grant("munich"); !reflect.DeepEqual(g, before) {
		t.Errorf("the grant is %+v, was %+v", g, before)
	}
}

// An infrastructure provider of the tenant may restrict the audience of a cluster, but may neither
// open it to all tenants nor change its caps.
func TestWhoRunsAClusterDoesNotOpenItToAll(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.joinCluster("munich")
	r.must("", "open", "cluster", "munich")
	line := r.must("", "user", "create", "acme/olga", "--role", "Infrastructure_Provider")
	olga := newTerminal(t)
	stdin, args := pasted(line)
	olga.must(stdin, args...)
	olga.must("", "close", "cluster", "munich")
	if g := r.grant("munich"); g.Open {
		t.Error("its operator cannot close it")
	}
	r.must("", "tenant", "create", "beta")
	for line, want := range map[string]int{
		"open cluster munich": 5, "cap cluster munich --nodes 9": 5,
		"open cluster munich --to beta": 6, // does not reveal that the tenant exists
	} {
		if _, said, code := olga.run("", strings.Fields(line)...); code != want {
			t.Errorf("its operator runs %s: exit %d, want %d: %s", line, code, want, said)
		}
	}
	if g := r.grant("munich"); !reflect.DeepEqual(g, api.Grant{}) {
		t.Errorf("the grant is %+v", g)
	}
}
