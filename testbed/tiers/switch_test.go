package tiers

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/wire"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
)

// reconfigure restarts the cluster with another broker.
func (c *tier) reconfigure(t *testing.T, b cluster.BrokerConfig) {
	t.Helper()
	c.stop()
	c.cfg.Broker = b
	c.run(t)
}

// know waits until the nodes have acknowledged these brokers.
func (c *tier) know(t *testing.T, brokers []string, nodes ...api.NodeID) {
	t.Helper()
	for _, id := range nodes {
		c.untilNode(t, id, "knows the brokers", func(n api.Node) bool { return slices.Equal(n.Brokers, brokers) })
	}
}

// heard waits until the nodes are ready and have sent a heartbeat after the given time.
func (c *tier) heard(t *testing.T, since time.Time, nodes ...api.NodeID) {
	t.Helper()
	for _, id := range nodes {
		c.untilNode(t, id, "is heard", func(n api.Node) bool { return n.Status == api.NodeReady && n.Heard.After(since) })
	}
}

func (c *tier) untilNode(t *testing.T, id api.NodeID, what string, ok func(api.Node) bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var v api.Node
		err := c.do(c.token, "GET", "/v1/nodes/"+string(id), nil, &v)
		if err == nil && ok(v) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %s: state not reached in time: %s; the node is %+v (%v)", id, what, v, err)
		}
		time.Sleep(50 * time.Millisecond) // the API has no watch
	}
}

// TestBrokerIsSwitched follows the procedure in docs/how-to/operator.md from the embedded broker to
// Mosquitto and back. All nodes follow, also one that was off during the switch, and no workload is
// affected.
func TestBrokerIsSwitched(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	_, one := c.startNode(t, "n1")
	life, two := c.startNode(t, "n2")
	creates := func() int {
		a, _ := one.Fake.(*fakeRuntime).counts()
		b, _ := two.Fake.(*fakeRuntime).counts()
		return a + b
	}
	root.set(web(0), web(1))
	root.observed(web(0).Instance, api.Running)
	root.observed(web(1).Instance, api.Running)

	addr, err := freeport.Addr()
	check(t, err)
	outer := "mqtts://" + addr
	life.stop() // n2 is off while the others receive the brokers
	c.reconfigure(t, cluster.BrokerConfig{Next: outer})
	c.know(t, []string{wire.EmbeddedBroker, outer}, "n1")
	broker := bustest.StartMosquittoAt(t, shipped, addr, filepath.Join(c.cfg.Data, cluster.BrokerDir))

	began := time.Now()
	c.reconfigure(t, cluster.BrokerConfig{URL: []string{outer}, Next: wire.EmbeddedBroker})
	c.heard(t, began, "n1")
	begin(t, func(ctx context.Context) error { return node.Run(ctx, two, quiet(t)) })
	c.heard(t, began, "n2") // it has requested the brokers from the cluster
	c.know(t, []string{outer, wire.EmbeddedBroker}, "n1", "n2")
	root.set(web(0), web(1), web(2))
	root.observed(web(2).Instance, api.Running)

	began = time.Now()
	c.reconfigure(t, cluster.BrokerConfig{})
	broker.Stop(t)
	c.heard(t, began, "n1", "n2")
	root.set(web(0), web(1), web(2), web(3))
	root.observed(web(3).Instance, api.Running)
	if n := creates(); n != 4 {
		t.Errorf("%d creations for four instances, want 4: a switch restarted workloads", n)
	}
}

// TestNewTokenOfANodeThatHasJoined gives a joined node another token: the node uses it, or refuses it
// with an error, and keeps its workloads.
func TestNewTokenOfANodeThatHasJoined(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	life, cfg := c.startNode(t, "n1")
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)
	life.stop()

	// The token that it joined with has no effect, however often it starts.
	again := begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	began := time.Now()
	c.heard(t, began, "n1")
	again.stop()

	// The cluster moves to another address: the node needs a new token.
	c.stop()
	addr, err := freeport.Addr()
	check(t, err)
	c.cfg.Listen = addr
	c.run(t)
	cfg.Token = daemon.Secret(c.nodeToken(api.TokenRequest{}))
	began = time.Now()
	moved := begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.heard(t, began, "n1")
	moved.stop()

	// A token of another cluster keeps the node from starting.
	tok, err := jointoken.Parse(c.nodeToken(api.TokenRequest{}))
	check(t, err)
	tok.Cluster = "oslo"
	cfg.Token = daemon.Secret(tok.Line())
	if err := node.Run(t.Context(), cfg, quiet(t)); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a token of another cluster: %v, want a conflict", err)
	}

	// A token that another node has used is refused; the node continues.
	spent := c.nodeToken(api.TokenRequest{})
	other := c.nodeConfig(t, "n2", spent)
	_, err = node.Join(t.Context(), other, quiet(t))
	check(t, err)
	cfg.Token = daemon.Secret(spent)
	began = time.Now()
	begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.heard(t, began, "n1")
	if n, _ := cfg.Fake.(*fakeRuntime).counts(); n != 1 {
		t.Errorf("%d creations of one instance, want 1: joining again restarted it", n)
	}
}
