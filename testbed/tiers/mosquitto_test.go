package tiers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/trust"
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
	c.cfg.Broker.URL = []string{"mqtts://" + addr}
	c.run(t)
	return c, bustest.StartMosquittoAt(t, shipped, addr, filepath.Join(c.cfg.Data, cluster.BrokerDir))
}

// One of two Mosquittos is enough, for joins too: nodes go on at the other one when theirs ends or does not answer, and what ran
// is not touched. A broker that comes back is used again. At neither has a node rights over another one.
func TestClusterGoesOnWithOneOfTwoMosquittos(t *testing.T) {
	root := newRoot(t)
	c := newCluster(t, root.ca.Root(), root.token())
	c.cfg.Dead = 2 * time.Minute // no re-placement, however long the machine stalls
	var addrs [2]string
	for i := range addrs {
		var err error
		addrs[i], err = freeport.Addr()
		check(t, err)
		c.cfg.Broker.URL = append(c.cfg.Broker.URL, "mqtts://"+addrs[i])
	}
	c.run(t)
	start := func(i int) *bustest.Mosquitto {
		return bustest.StartMosquittoAt(t, shipped, addrs[i], filepath.Join(c.cfg.Data, cluster.BrokerDir))
	}
	connected := func(what string, first, second bool) {
		t.Helper()
		read := func(token, path string) string {
			resp, err := c.raw(token, "GET", path, nil)
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			return string(text)
		}
		eventually(t, what, func() bool {
			ready, metrics := read("", "/readyz?verbose"), read(c.token, "/metrics")
			for i, up := range []bool{first, second} {
				value := map[bool]int{true: 1}[up]
				if strings.Contains(ready, fmt.Sprintf("[+] broker %d ok", i+1)) != up ||
					!strings.Contains(metrics, fmt.Sprintf("treeline_broker_connected{broker=%q} %d\n", "mqtts://"+addrs[i], value)) {
					return false
				}
			}
			return true
		})
	}
	n := 0
	run := func(began time.Time) {
		t.Helper()
		c.heard(t, began, "n1", "n2")
		n++
		all := make([]wire.Assignment, n)
		for i := range all {
			all[i] = web(i)
		}
		root.set(all...)
		root.observed(web(n-1).Instance, api.Running)
	}

	second := start(1)
	began := time.Now()
	_, one := c.startNode(t, "n1")
	_, two := c.startNode(t, "n2")
	run(began)
	first := start(0)
	connected("the cluster is connected to both brokers", true, true)
	c.know(t, c.cfg.Broker.URL, "n1", "n2")

	// n2's certificate, at the broker to which n2 is not connected.
	creds, k := credentialsOfNode(t, two.Data)
	thief, err := mqtt.Dial(mqtt.Options{Addr: addrs[0], ClientID: "n2", TLS: trust.New(creds.Pair.Root()).Client(identity.OfCluster("munich"), k.GetClientCertificate), Log: quiet(t)})
	check(t, err)
	defer thief.Close()
	var foreign atomic.Pointer[string]
	for _, filter := range []string{"#", "nodes/#", topic.Desired.Of("n1"), topic.Observed.Of("n1")} {
		_ = thief.Subscribe(t.Context(), filter, 1, func(m bus.Message) {
			if !strings.HasPrefix(m.Topic, "nodes/n2/") {
				foreign.Store(&m.Topic)
			}
		})
	}
	eventually(t, "the thief is connected", thief.Connected)
	lie, err := json.Marshal(wire.NodeReport{Boot: wire.MaxBoot - 1, Seq: 1, Whole: true, Info: &api.NodeInfo{Hostname: "forged"}})
	check(t, err)
	_ = thief.Publish(t.Context(), bus.Message{Topic: topic.Observed.Of("n1"), QoS: 1, Payload: lie}) // dropped or refused
	run(time.Now())
	if what := foreign.Load(); what != nil {
		t.Errorf("n2 received a message of %s", *what)
	}
	var n1 api.Node
	check(t, c.do(c.token, "GET", "/v1/nodes/n1", nil, &n1))
	if n1.Hostname == "forged" {
		t.Error("n2 reported for n1")
	}
	check(t, thief.Close()) // n2 is about to connect to this broker

	second.Kill()
	run(time.Now())
	connected("the cluster is connected to the first broker", true, false)
	second.Start(t)
	connected("the cluster is connected to the second broker again", true, true)
	first.Pause(t)
	run(time.Now())
	for _, cfg := range []node.Config{one, two} {
		rt := cfg.Fake.(*fakeRuntime)
		creates, stops := rt.counts()
		if stops != 0 || creates != len(rt.running()) {
			t.Errorf("node %s: %d creations, %d stops and %d run, want no stops and as many creations as run", cfg.Name, creates, stops, len(rt.running()))
		}
	}
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
