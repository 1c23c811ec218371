package tiers

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	roots "github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
	rootwiring "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// joinForRotation joins a cluster with the node n1 to the root, and a node n2 that is off again, whose configuration is away. The
// logs of the cluster and of n1 are counted.
func joinForRotation(t *testing.T, r *realRoot) (c *tier, away node.Config, clusterLog, nodeLog tally) {
	t.Helper()
	tok, err := r.admin.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c = newCluster(t, r.anchor(t), tok.Token)
	clusterLog, nodeLog = newTally(), newTally()
	c.log = slog.New(clusterLog)
	c.run(t)
	t.Cleanup(func() { c.stop() })
	cfg := c.nodeConfig(t, "n1", c.nodeToken(api.TokenRequest{}))
	n1 := begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, slog.New(nodeLog)) })
	t.Cleanup(n1.stop)
	c.until(t, "n1", api.NodeReady)
	off, away := c.startNode(t, "n2")
	off.stop()
	return c, away, clusterLog, nodeLog
}

// A cluster replaces the key of its authority while its node and its root stay connected, and is killed in between. Afterwards a
// stolen copy of the earlier key is refused, and a node that was away is told what to do.
func TestAClusterRotatesItsAuthority(t *testing.T) {
	r := startRoot(t, func(*rootwiring.Config) {})
	defer r.stop()
	c, away, clusterLog, nodeLog := joinForRotation(t, r)
	stolen := credentialsOf(t, c.cfg.Data)

	const path = "/v1/system/authority"
	status := func(what string, ok func(api.Authority) bool) {
		t.Helper()
		eventually(t, what, func() bool {
			time.Sleep(200 * time.Millisecond) // the rate of requests is limited
			var s api.Authority
			return c.do(c.token, "GET", path, nil, &s) == nil && ok(s)
		})
	}
	onlyAway := func(s api.Authority) bool { return len(s.Behind) == 1 && s.Behind[0].Node == "n2" }
	check(t, c.do(c.token, "POST", path, api.RotateAuthority{}, nil))
	status("n1 has renewed", func(s api.Authority) bool { return s.State == api.AuthoritySigning && s.Generation == 1 && onlyAway(s) })
	if root, broker := clusterLog.said("connected to the root"), nodeLog.said("connected to the broker"); root != 1 || broker != 1 {
		t.Errorf("connected to the root %d times, and the node to the broker %d times, want once each", root, broker)
	}
	if err := c.do(c.token, "POST", path, api.RotateAuthority{Retire: true}, nil); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "n2") {
		t.Errorf("retire while n2 is behind: %v, want a conflict that names it", err)
	}
	c.stop()
	c.cfg.Token = ""
	c.run(t)
	since := time.Now()
	retire := api.RotateAuthority{Retire: true, LeaveBehind: []api.NodeID{"n2"}}
	eventually(t, "the earlier key is retired", func() bool {
		time.Sleep(200 * time.Millisecond)
		return c.do(c.token, "POST", path, retire, nil) == nil
	})
	status("the certificate of n1 says so", func(s api.Authority) bool { return s.State == api.AuthorityRetired && onlyAway(s) })
	c.heard(t, since, "n1")

	// A stolen copy of the earlier key.
	authority, err := ca.New(stolen.Pair)
	check(t, err)
	key, csr, err := ca.NewRequest()
	check(t, err)
	chain, err := authority.SignOwn(time.Now(), csr)
	check(t, err)
	own, err := keeper.New(keeper.Options{Pair: ca.Pair{Chain: chain, Key: key}})
	check(t, err)
	asCluster := rootlink.Client(trust.New(r.anchor(t)), own.GetClientCertificate, roots.New(r.url))
	defer asCluster.CloseIdleConnections()
	if _, _, err := stolen.FetchKeys(t.Context(), asCluster); err == nil {
		t.Error("the root served the holder of a retired key")
	}
	if chain, err = authority.SignNode(time.Now(), csr, "n1"); err != nil {
		t.Fatal(err)
	}
	forged := (ca.Pair{Chain: chain, Key: key}).TLS(false)
	tr := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{*forged}, InsecureSkipVerify: true}} // it checks nothing
	defer tr.CloseIdleConnections()
	if resp, err := (&http.Client{Transport: tr}).Post(c.url+"/v1/node/brokers", "application/json", strings.NewReader("{}")); err == nil {
		resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("the cluster answered a node with a forged certificate with %s", resp.Status)
		}
	}

	// A node that was away.
	creds, k := credentialsOfNode(t, away.Data)
	cluster := clusterlink.NewCluster(trust.New(creds.Pair.Root()), creds, k.GetClientCertificate)
	defer cluster.HTTP.CloseIdleConnections()
	if _, err := cluster.Renew(t.Context(), csr); err == nil || !strings.Contains(err.Error(), "join again with a new token") {
		t.Errorf("renewal by a node that was away: %v, want an error that names the fix", err)
	}
}

func credentialsOf(t *testing.T, data string) rootlink.Credentials {
	t.Helper()
	dir, err := os.OpenRoot(data)
	check(t, err)
	defer dir.Close()
	c, err := rootlink.Load(dir)
	check(t, err)
	return c
}
