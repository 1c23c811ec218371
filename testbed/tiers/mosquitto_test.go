package tiers

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/wire"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
)

const shipped = "../../deploy/mosquitto"

// startWithMosquitto starts a cluster with Mosquitto as the broker, with the supplied configuration
// and the certificates that the cluster writes for it.
func startWithMosquitto(t *testing.T, root *fakeRoot) (*tier, *bustest.Mosquitto) {
	t.Helper()
	addr, err := freeport.Addr()
	check(t, err)
	c := newCluster(t, root.ca.Root(), root.token())
	c.cfg.Broker.URL = "mqtts://" + addr
	c.run(t)
	return c, bustest.StartMosquittoAt(t, shipped, addr, filepath.Join(c.cfg.Data, cluster.BrokerDir))
}

func TestMosquittoCarriesACluster(t *testing.T) {
	root := newRoot(t)
	c, broker := startWithMosquitto(t, root)
	_, one := c.startNode(t, "n1")
	_, two := c.startNode(t, "n2")
	running := func() int {
		return len(one.Fake.(*fakeRuntime).running()) + len(two.Fake.(*fakeRuntime).running())
	}
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)
	root.set()
	root.until("it is gone", func(r wire.Report) bool { return len(r.Observed) == 1 && r.Observed[0].Stopped })
	if running() != 0 {
		t.Errorf("%d instances run after the withdrawal, want 0", running())
	}

	// The broker loses all retained messages while the root adds and removes instances: heartbeats with
	// digests repair this.
	root.set(web(1), web(2))
	root.observed(web(1).Instance, api.Running)
	root.observed(web(2).Instance, api.Running)
	broker.Stop(t)
	broker.Lose(t)
	root.set(web(2), web(3))
	broker.Start(t)
	root.observed(web(3).Instance, api.Running)
	root.until("what was taken away is gone", func(r wire.Report) bool {
		for _, o := range r.Observed {
			if o.Instance == web(1).Instance && o.Stopped {
				return true
			}
		}
		return false
	})
	n1, _ := one.Fake.(*fakeRuntime).counts()
	n2, _ := two.Fake.(*fakeRuntime).counts()
	if running() != 2 || n1+n2 != 4 {
		t.Errorf("%d instances run after %d creations, want 2 after 4", running(), n1+n2)
	}

	// The cluster replaces the key of its authority: the new one signs when the broker trusts it, and nodes with the earlier
	// certificates stay. Each time the broker trusts others, it is restarted.
	const path = "/v1/system/authority"
	status := func(what string, ok func(api.Authority) bool) {
		t.Helper()
		eventually(t, what, func() bool {
			var s api.Authority
			return c.do(c.token, "GET", path, nil, &s) == nil && ok(s)
		})
	}
	restarted := func() {
		t.Helper()
		broker.Stop(t)
		broker.Copy(t, filepath.Join(c.cfg.Data, cluster.BrokerDir))
		since := time.Now()
		broker.Start(t)
		c.heard(t, since, "n1", "n2")
	}
	check(t, c.do(c.token, "POST", path, api.RotateAuthority{}, nil))
	status("the new key waits for the broker", func(s api.Authority) bool {
		return s.State == api.AuthorityAnnounced && s.Generation == 0 && strings.Contains(s.Waits, "does not accept certificates of the new key")
	})
	restarted()
	_ = c.do(c.token, "POST", path, api.RotateAuthority{}, nil) // tries at once; refused if the key signs already
	status("both nodes have renewed", func(s api.Authority) bool { return s.State == api.AuthoritySigning && len(s.Behind) == 0 })
	check(t, c.do(c.token, "POST", path, api.RotateAuthority{Retire: true}, nil))
	status("the nodes' certificates say so", func(s api.Authority) bool { return s.State == api.AuthorityRetired && len(s.Behind) == 0 })
	restarted()

	// With its CN it would have the rights of the cluster.
	cfg := c.nodeConfig(t, "cluster", c.nodeToken(api.TokenRequest{}))
	if _, err := node.Join(t.Context(), cfg, quiet(t)); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a node with the name cluster: %v, want it refused", err)
	}
}
