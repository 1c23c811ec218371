package tiers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
	rootwiring "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// tally counts the messages in a daemon's log, with their key "of".
type tally struct {
	of string
	*counts
}

type counts struct {
	mu sync.Mutex // guards n
	n  map[string]int
}

func newTally() tally { return tally{counts: &counts{n: map[string]int{}}} }

func (c tally) Enabled(context.Context, slog.Level) bool { return true }
func (c tally) WithGroup(string) slog.Handler            { return c }

func (c tally) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == "of" {
			c.of = " " + a.Value.String()
		}
	}
	return c
}

func (c tally) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[r.Message+c.of]++
	return nil
}

func (c tally) said(message string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[message]
}

// ofShortLife runs a trial with certificates that expire soon, and up to two further ones with
// longer-lived certificates: they are renewed in the last third of their lifetime, and expire if
// the machine stalls for that long.
func ofShortLife(t *testing.T, trial func(t *testing.T, life time.Duration) error) {
	t.Helper()
	for _, life := range []time.Duration{6 * time.Second, 20 * time.Second, time.Minute} {
		err := trial(t, life)
		if err == nil {
			return
		}
		if life == time.Minute {
			t.Fatal(err)
		}
		t.Logf("with certificates of %s: %v", life, err)
	}
}

// within polls until ok returns true, at most for four lifetimes of a certificate.
func within(life time.Duration, what string, ok func() bool) error {
	for deadline := time.Now().Add(4 * life); !ok(); time.Sleep(20 * time.Millisecond) { // logs have no events
		if time.Now().After(deadline) {
			return fmt.Errorf("the state was not reached in time: %s", what)
		}
	}
	return nil
}

// Every certificate is replaced more than once and expires, while the stream from the root and the
// connection to the broker stay open, and messages and requests continue.
func TestCertificatesAreRenewedUnderOpenConnections(t *testing.T) {
	ofShortLife(t, func(t *testing.T, life time.Duration) error {
		root := newRoot(t)
		root.ca = root.ca.WithLife(2 * life)
		c := newCluster(t, root.ca.Root(), root.token())
		c.cfg.CertLife = life * 3 / 2
		clusterLog := newTally()
		c.log = slog.New(clusterLog)
		c.run(t)
		defer c.stop()
		nodeLog := newTally()
		cfg := c.nodeConfig(t, "n1", c.nodeToken(api.TokenRequest{}))
		defer begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, slog.New(nodeLog)) }).stop()
		err := within(2*life, "everything was renewed twice", func() bool {
			root.mu.Lock()
			defer root.mu.Unlock()
			return root.renewals >= 2 && clusterLog.said("certificate renewed authority") >= 2 &&
				clusterLog.said("certificate renewed server") >= 2 && nodeLog.said("certificate renewed") >= 2
		})
		if err != nil {
			return err
		}
		// All first certificates have expired.
		root.mu.Lock()
		opened := root.opened
		root.mu.Unlock()
		if connects := nodeLog.said("connected to the broker"); opened != 1 || connects != 1 {
			return fmt.Errorf("%d streams from the root and %d connections to the broker, want one each", opened, connects)
		}
		root.set(web(0))
		err = within(2*life, "what the root asks for runs", func() bool {
			root.mu.Lock()
			defer root.mu.Unlock()
			return slices.ContainsFunc(root.reports, func(r wire.Report) bool {
				return slices.ContainsFunc(r.Observed, func(o api.Observed) bool { return o.State == api.Running })
			})
		})
		if err != nil {
			return err
		}
		logs := root.as(wire.StreamRequest{Kind: "logs", Instance: web(0).Instance, Tail: 5}, "acme/alice", "acme", rights.ApplicationProvider)
		if text, err := root.ask(t.Context(), logs); err != nil || !strings.HasPrefix(string(text), "tail 5") {
			return fmt.Errorf("logs after the renewals: %q, %v", text, err)
		}
		if n := clusterLog.said("report not taken by the root; it will be repeated") + clusterLog.said("certificate not renewed authority") + nodeLog.said("certificate not renewed"); n > 0 {
			return fmt.Errorf("%d reports or renewals failed", n)
		}
		return nil
	})
}

// A removed node is refused with its certificate, also after a restart of the cluster, until it
// joins again.
func TestARemovedNodeStaysOutOverARestart(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	n, cfg := c.startNode(t, "n1")
	check(t, c.do(c.token, "DELETE", "/v1/nodes/n1", nil, nil))
	c.stop()
	c.cfg.Token = ""
	c.run(t)
	refusedEverywhere(t, c, cfg.Data)
	// The token that it joined with is refused, too, although a node may repeat a join whose answer was
	// lost.
	dir, err := os.OpenRoot(cfg.Data)
	check(t, err)
	defer dir.Close()
	pair, err := ca.LoadPair(dir, "node.pem")
	check(t, err)
	csr, err := ca.Request(pair.Key)
	check(t, err)
	again := call.JSON(t.Context(), c.http, c.url+"/v1/join/node", wire.JoinNode{
		Token: cfg.Token.Reveal(), CSR: enrol.EncodeRequest(csr), Info: api.NodeInfo{ID: "n1", Runtimes: []string{"container"}, Arch: "amd64"},
	}, nil)
	if !errors.Is(again, api.ErrUnauthenticated) {
		t.Errorf("join of a removed node with its old token: %v, want it refused", again)
	}
	var page api.Page[api.Node]
	check(t, c.do(c.token, "GET", "/v1/nodes", nil, &page))
	if len(page.Items) != 0 {
		t.Errorf("the cluster has the nodes %+v, want none", page.Items)
	}

	// The name may be used again, but the old certificate stays refused.
	n.stop()
	for second := time.Now().Unix(); time.Now().Unix() == second; {
		time.Sleep(10 * time.Millisecond) // times in certificates have a resolution of a second
	}
	c.startNode(t, "n1")
	refusedEverywhere(t, c, cfg.Data)
}

// refusedEverywhere requires that renewal and broker refuse a node's credentials.
func refusedEverywhere(t *testing.T, c *tier, data string) {
	t.Helper()
	creds, k := credentialsOfNode(t, data)
	v := trust.New(creds.Pair.Root())
	cluster := clusterlink.NewCluster(v, creds, k.GetClientCertificate)
	defer cluster.HTTP.CloseIdleConnections()
	_, csr, err := ca.NewRequest()
	check(t, err)
	if _, err := cluster.Renew(t.Context(), csr); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("renewal by a removed node: %v, want it refused", err)
	}
	conf := v.Client(identity.OfCluster("munich"), k.GetClientCertificate)
	conf.NextProtos = []string{"mqtt"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(c.url, "https://"), conf)
	check(t, err)
	defer conn.Close()
	if greeted(conn, "n1") {
		t.Error("the broker accepted a removed node")
	}
}

// A cluster requests the keys of the root when it starts, and once more for tokens with keys that it does not know.
func TestNewTokenKeysAreFetched(t *testing.T) {
	root := newRoot(t)
	asked := func(want int, when string) {
		t.Helper()
		var keys, renewals int
		eventually(t, fmt.Sprintf("the root received %d requests for keys %s", want, when), func() bool {
			root.mu.Lock()
			defer root.mu.Unlock()
			keys, renewals = root.keyAsks, root.renewals
			return keys >= want
		})
		if keys != want || renewals != 0 {
			t.Errorf("%s the root received %d requests for keys and %d for renewals, want %d and 0", when, keys, renewals, want)
		}
	}
	c := startCluster(t, root)
	asked(1, "after the start") // otherwise this request already returns the new key
	ring := jwt.NewRing(time.Now())
	root.mu.Lock()
	root.ring, root.signer.Ring = ring, ring
	root.mu.Unlock()
	otto := root.bearer("acme/otto", "acme", rights.InfrastructureProvider)
	stranger := newRoot(t).bearer("acme/otto", "acme", rights.InfrastructureProvider)
	if err := c.do(otto, "GET", "/v1/nodes", nil, nil); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a token with a new key: %v, want it refused until the key is known", err)
	}
	eventually(t, "the new key counts", func() bool { return c.do(otto, "GET", "/v1/nodes", nil, nil) == nil })
	for range 20 {
		if err := c.do(stranger, "GET", "/v1/nodes", nil, nil); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("a token with an unknown key: %v, want it refused", err)
		}
	}
	asked(2, "after tokens with unknown keys")
	c.stop()
	c.cfg.Token = ""
	c.run(t)
	eventually(t, "the cluster hears from the root what is revoked", func() bool {
		return !errors.Is(c.do(otto, "GET", "/v1/nodes", nil, nil), api.ErrUnavailable)
	})
	if err := c.do(otto, "GET", "/v1/nodes", nil, nil); err != nil {
		t.Errorf("a token with the new key after a restart: %v, want it accepted", err)
	}
	asked(3, "after a restart")
}

// The root issues short-lived certificates to clusters, and renews them on the existing
// connection.
func TestTheRootRenewsAClustersAuthority(t *testing.T) {
	ofShortLife(t, func(t *testing.T, life time.Duration) error {
		r := startRoot(t, func(cfg *rootwiring.Config) { cfg.CertLife = life })
		defer r.stop()
		tok, err := r.admin.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"})
		check(t, err)
		c := newCluster(t, r.anchor(t), tok.Token)
		log := newTally()
		c.log = slog.New(log)
		c.run(t)
		defer c.stop()
		err = within(life, "the authority was renewed twice", func() bool {
			return log.said("certificate renewed authority") >= 2 && log.said("certificate renewed server") >= 2
		})
		if n := log.said("connected to the root"); err != nil || n != 1 {
			return fmt.Errorf("connected %d times, %v", n, err)
		}
		// Nodes can join with the new certificates.
		cfg := c.nodeConfig(t, "n1", c.nodeToken(api.TokenRequest{}))
		defer begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) }).stop()
		err = within(life, "the root hears of the node", func() bool {
			m, err := r.admin.Cluster(t.Context(), "munich")
			return err == nil && m.Aggregate.Nodes == 1
		})
		if err != nil {
			return err
		}

		// After its removal at the root it cannot renew, although its certificate is still valid.
		check(t, r.admin.RemoveCluster(t.Context(), "munich", 0))
		err = within(life, "a renewal is refused", func() bool { return log.said("certificate not renewed authority") > 0 })
		if n := log.said("connected to the root"); err != nil || n != 1 {
			return fmt.Errorf("the removed cluster connected %d times (%v), want no new connection", n, err)
		}
		return nil
	})
}
