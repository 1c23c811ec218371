package tiers

import (
	"errors"
	"net/http"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/store/mongo/mongotest"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

const shop = `{"sla_version":"v2.0","applications":[{"application_name":"shop","application_namespace":"prod","microservices":[
	{"microservice_name":"web","microservice_namespace":"v1","virtualization":"container","network":"any","code":"example.org/web:1","memory":64,"vcpus":0.5}]}]}`

func TestMongoKeepsRootAndCluster(t *testing.T) {
	db := mongotest.Start(t)
	uri := "mongodb://" + db.Addr + "/treeline"
	r := startRoot(t, func(cfg *root.Config) { cfg.Store = daemon.Secret(uri) })
	ctx := t.Context()
	check(t, r.admin.CreateTenant(ctx, "acme", "Acme"))
	tok, err := r.admin.CreateJoinToken(ctx, api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c := newCluster(t, r.anchor(t), tok.Token)
	c.cfg.Store = daemon.Secret(uri)
	c.run(t)
	_, cfg := c.startNode(t, "n1")
	rt := cfg.Fake.(*fakeRuntime)
	web := api.ServiceID("acme/shop.prod.web.v1")
	settled := func(n int) bool {
		page, _, err := r.admin.Instances(ctx, client.ListOptions{})
		running := 0
		for _, i := range page {
			if i.State == api.Running {
				running++
			}
		}
		return err == nil && running == n && len(rt.running()) == n
	}
	_, err = r.admin.Apply(ctx, []byte(shop), client.ApplyOptions{Tenant: "acme"})
	check(t, err)
	eventually(t, "one instance runs", func() bool { return settled(1) })

	// The store becomes unavailable. Changes are not confirmed, but may take effect when the store is
	// back. Workloads and reads continue.
	db.Stop()
	_, err = r.admin.Scale(ctx, web, 2, 0)
	if !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("scale without a store: %v, want an error", err)
	}
	err = c.do(c.token, "POST", "/v1/nodes/n1/uncordon", nil, nil)
	if !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("uncordon without a store: %v, want an error", err)
	}
	for what, d := range map[string]func() (*http.Response, error){
		"root": func() (*http.Response, error) {
			return r.admin.Raw(ctx, client.Request{Method: "GET", Path: "/readyz"})
		},
		"cluster": func() (*http.Response, error) { return c.http.Get(c.url + "/readyz") },
	} {
		// The answer to the refused request arrives a moment before the state changes.
		eventually(t, "the "+what+" is not ready without its store", func() bool {
			resp, err := d()
			if err == nil {
				_ = resp.Body.Close()
			}
			return errors.Is(err, api.ErrUnavailable) || resp != nil && resp.StatusCode == http.StatusServiceUnavailable
		})
	}
	if page, _, err := r.admin.Instances(ctx, client.ListOptions{}); err != nil || len(page) == 0 || len(rt.running()) != 1 {
		t.Errorf("without a store %d instances are shown (%v) and %d run, want 2 and 2", len(page), err, len(rt.running()))
	}

	// The store is back: refused requests may be repeated.
	db.Restart(t)
	eventually(t, "the service is scaled", func() bool {
		_, err := r.admin.Scale(ctx, web, 2, 0)
		return err == nil
	})
	eventually(t, "two instances run", func() bool { return settled(2) })
	if creates, stops := rt.counts(); creates != 2 || stops != 0 {
		t.Errorf("%d creations and %d stops, want 2 and 0", creates, stops)
	}

	// After a restart everything is in the store.
	c.stop()
	c.cfg.Token = ""
	c.run(t)
	c.until(t, "n1", api.NodeReady)
	_, err = r.admin.DeleteApp(ctx, "acme/shop.prod", 0)
	check(t, err)
	eventually(t, "all is gone", func() bool { return settled(0) })
}
