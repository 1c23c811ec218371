package tiers

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	roots "github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// The root replaces the key of its authority under a cluster with a node and a client. Nobody loses a connection while both keys are
// valid. Afterwards a stolen copy of the earlier key is refused, and those that were away are told what to do.
func TestTheRootRotatesItsAuthority(t *testing.T) {
	r := startRoot(t, func(*root.Config) {})
	defer func() { r.stop() }()
	r.cfg.Listen = strings.TrimPrefix(r.url, "https://")
	keyFile, caFile := filepath.Join(r.cfg.Data, "root-ca.pem"), filepath.Join(r.cfg.Data, root.CAFile)
	oldCA, oldKey := wait(t, caFile), wait(t, keyFile)
	unused, err := r.admin.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c, _, clusterLog, nodeLog := joinForRotation(t, r)

	// A context of the CLI, which connects anew for each command and saves what it learns.
	var pinned atomic.Pointer[string]
	pinned.Store(&oldCA)
	command := func(ca, method string, in, out any) error {
		a, err := client.New(client.Options{URL: r.url, CA: []byte(ca), Tokens: client.Static(r.token), Followed: func(ca []byte) {
			text := string(ca)
			pinned.Store(&text)
		}})
		check(t, err)
		defer a.Close()
		_, err = a.Do(t.Context(), client.Request{Method: method, Path: "/v1/system/authority", Body: in}, out)
		return err
	}
	certs := func() int { return strings.Count(*pinned.Load(), "BEGIN CERTIFICATE") }
	until := func(what string, ok func(api.RootAuthority) bool) (s api.RootAuthority) {
		t.Helper()
		eventually(t, what, func() bool {
			time.Sleep(200 * time.Millisecond) // the rate of requests is limited
			s = api.RootAuthority{}
			return command(*pinned.Load(), "GET", nil, &s) == nil && ok(s)
		})
		return s
	}
	onlyN2 := func(s api.RootAuthority) bool {
		return len(s.Behind) == 1 && s.Behind[0].Generation == 1 && slices.Equal(s.Behind[0].Names, []api.NodeID{"n2"})
	}
	check(t, command(oldCA, "POST", api.RotateRootAuthority{}, nil))
	s := until("all but n2 have renewed", func(s api.RootAuthority) bool { return s.State == api.AuthoritySigning && onlyN2(s) })
	if root, broker := clusterLog.said("connected to the root"), nodeLog.said("connected to the broker"); root != 1 || broker != 1 {
		t.Errorf("connected to the root %d times, and the node to the broker %d times, want once each", root, broker)
	}
	if certs() != 2 || s.Generation != 1 {
		t.Errorf("the client trusts %d root certificates in generation %d, want 2 in 1", certs(), s.Generation)
	}
	if err := command(*pinned.Load(), "POST", api.RotateRootAuthority{}, nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a second rotation: %v, want a conflict", err)
	}
	if err := command(*pinned.Load(), "POST", api.RotateRootAuthority{Retire: true}, nil); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "munich") {
		t.Errorf("retire while n2 is behind: %v, want a conflict that names its cluster", err)
	}

	// A process that has the earlier key in its file, as after a crash or at another replica, takes the new one from the store.
	r.stop()
	check(t, os.WriteFile(keyFile, []byte(oldKey), 0o600))
	check(t, os.Remove(filepath.Join(r.cfg.Data, root.AddressFile)))
	r.life = begin(t, func(ctx context.Context) error { return root.Run(ctx, r.cfg, quiet(t)) })
	wait(t, filepath.Join(r.cfg.Data, root.AddressFile))
	until("the cluster is connected again", onlyN2)

	since := time.Now()
	check(t, command(*pinned.Load(), "POST", api.RotateRootAuthority{Retire: true, LeaveBehind: []api.ClusterID{"munich"}}, nil))
	until("all but n2 know that the earlier key is retired", func(s api.RootAuthority) bool { return s.State == api.AuthorityRetired && onlyN2(s) })
	c.heard(t, since, "n1")
	if certs() != 1 || strings.Contains(oldCA, *pinned.Load()) {
		t.Errorf("the client trusts %d root certificates, want the new one only", certs())
	}
	if err := command(oldCA, "GET", nil, nil); err == nil || !strings.Contains(err.Error(), "treeline login --pin") {
		t.Errorf("a client that was away: %v, want an error that names the fix", err)
	}

	// What is saved is enough after a restart, and new machines can join.
	c.stop()
	c.cfg.Token, c.ca = "", r.anchor(t)
	since = time.Now()
	c.run(t)
	c.heard(t, since, "n1")
	c.startNode(t, "n3")
	dir, err := os.OpenRoot(t.TempDir())
	check(t, err)
	defer dir.Close()
	if _, err := rootlink.Join(t.Context(), dir, unused.Token, api.ClusterInfo{ID: "rome"}); err == nil || !strings.Contains(err.Error(), "a new token is needed") {
		t.Errorf("a join token from before: %v, want an error that names the fix", err)
	}

	// A stolen copy of the earlier key.
	stolen, err := ca.ParsePair([]byte(oldKey))
	check(t, err)
	thief, err := ca.New(stolen)
	check(t, err)
	key, csr, err := ca.NewRequest()
	check(t, err)
	chain, err := thief.SignCluster(time.Now(), csr, "munich")
	check(t, err)
	munich := ca.Pair{Chain: chain, Key: key}
	authority, err := ca.New(munich)
	check(t, err)
	chain, err = authority.SignOwn(time.Now(), csr)
	check(t, err)
	k, err := keeper.New(keeper.Options{Pair: ca.Pair{Chain: chain, Key: key}})
	check(t, err)
	asCluster := rootlink.Client(trust.New(r.anchor(t)), k.GetClientCertificate, roots.New(r.url))
	defer asCluster.CloseIdleConnections()
	if _, _, err := (rootlink.Credentials{URL: r.url, Pair: munich}).FetchKeys(t.Context(), asCluster); err == nil {
		t.Error("the root served a cluster with a certificate of the retired key")
	}
	chain, err = authority.SignNode(time.Now(), csr, "n1")
	check(t, err)
	forged := (ca.Pair{Chain: chain, Key: key}).TLS(true)
	tr := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{*forged}, InsecureSkipVerify: true}} // it checks nothing
	defer tr.CloseIdleConnections()
	if resp, err := (&http.Client{Transport: tr}).Post(c.url+"/v1/node/brokers", "application/json", strings.NewReader("{}")); err == nil {
		resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("the cluster answered a node with a forged certificate with %s", resp.Status)
		}
	}
}
