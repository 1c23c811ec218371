package tiers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	urls "github.com/treeline-edge/treeline/api/replicas"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	daemons "github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store/mongo/mongotest"
	"github.com/treeline-edge/treeline/internal/wire"
)

func clusterReplicaConfig(uri, dir, brokers, token, listen string, all ...string) cluster.Config {
	cfg := cluster.Defaults()
	cfg.Data, cfg.Listen, cfg.Name, cfg.Token, cfg.Store, cfg.Replica = dir, listen, "munich", daemons.Secret(token), daemons.Secret(uri), true
	cfg.Broker.URL, cfg.GossipListen = strings.Fields(brokers), "127.0.0.1:0"
	cfg.Dead = 2 * time.Minute // no re-placement, however long the machine stalls
	for _, a := range all {
		cfg.Replicas = append(cfg.Replicas, "https://"+a)
	}
	slices.Sort(cfg.Replicas) // the same everywhere
	return cfg
}

// Two processes are one cluster: the second serves its role and forwards requests to the first, and takes
// over at both brokers when the first one is stopped or paused (TestReplicasSurviveKills in cli/dev kills it). The node and the root find the active one, and what
// runs is not touched. A replica that is resumed sends the node nothing.
func TestReplicasOfAClusterTakeOver(t *testing.T) {
	uri := mongotest.URI(t)
	root := newRoot(t)
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	var addr [4]string // of the replicas and the brokers
	for i := range addr {
		var err error
		addr[i], err = freeport.Addr()
		check(t, err)
	}
	brokers := "mqtts://" + addr[2] + " mqtts://" + addr[3]
	env := []string{replicaBroker + "=" + brokers, replicaToken + "=" + root.token()}
	p := &replicas{t: t, both: []*replica{startReplicaWith(t, env, uri, one, addr[0], addr[1])}}
	wait(t, filepath.Join(one, cluster.BrokerDir, "broker.crt")) // written last
	for _, at := range addr[2:] {
		bustest.StartMosquittoAt(t, shipped, at, filepath.Join(one, cluster.BrokerDir))
	}
	eventually(t, "the first replica is active", p.both[0].active)

	// The operator's client knows both addresses, the node the first one only.
	c := &tier{life: &life{t: t}, url: "https://" + addr[0], token: strings.TrimSpace(wait(t, filepath.Join(one, cluster.OperatorFile)))}
	v := trust.New(root.ca.Root())
	tr := &http.Transport{TLSClientConfig: v.Client(identity.OfCluster("munich"), nil), ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	known := urls.New(c.url, "https://"+addr[1])
	c.http = &http.Client{Transport: known.Transport(tr, 20*time.Second)}
	_, cfg := c.startNode(t, "n1")
	rt := cfg.Fake.(*fakeRuntime)
	if saved := wait(t, filepath.Join(cfg.Data, "node.json")); !strings.Contains(saved, "https://"+addr[1]) {
		t.Errorf("the node's credentials are %s, want them to have the address %s of the second replica", saved, addr[1])
	}

	// Without the keys, the second one would be another cluster after a takeover.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := cluster.Run(ctx, clusterReplicaConfig(uri, two, brokers, root.token(), addr[1]), slog.New(slog.DiscardHandler))
	if !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "copy cluster-ca.pem, cluster.json, secrets.key and operator-token") {
		t.Fatalf("a replica without keys: %v, want ErrNotFound that names the files", err)
	}
	copyKeys(t, one, two, func() error {
		return cluster.Run(ctx, clusterReplicaConfig(uri, two, brokers, root.token(), addr[1]), slog.New(slog.DiscardHandler))
	}, "cluster-ca.pem", "cluster.json", "secrets.key", cluster.OperatorFile)
	p.both = append(p.both, startReplicaWith(t, env, uri, two, addr[1], addr[0]))
	eventually(t, "a standby that names the active replica, forwards requests of people and refuses those of nodes", func() bool {
		_, standby := p.onlyActive()
		health, text := standby.get("/readyz")
		people, _ := standby.get("/v1/nodes")
		nodes, refused := standby.get("/v1/node/brokers")
		return health == http.StatusServiceUnavailable && strings.Contains(text, "role standby") && strings.Contains(text, "the active one is https://127.0.0.1:") &&
			people == http.StatusUnauthorized && nodes == http.StatusServiceUnavailable && strings.Contains(refused, "standby replica")
	})

	eventually(t, "the operator sees both replicas alive, one of them active", func() bool {
		var page api.Page[api.Replica]
		if err := c.do(c.token, "GET", "/v1/replicas", nil, &page); err != nil || len(page.Items) != 2 {
			return false
		}
		a, b := page.Items[0], page.Items[1]
		return a.State == api.ReplicaAlive && b.State == api.ReplicaAlive && a.Role != b.Role && (a.Role == api.ReplicaActive || b.Role == api.ReplicaActive)
	})

	var want []int // the instances
	run := func() {
		want = append(want, len(want))
		all := make([]wire.Assignment, len(want))
		for i, n := range want {
			all[i] = web(n)
		}
		root.set(all...)
		root.observed(web(len(want)-1).Instance, api.Running)
	}
	run()
	for _, stop := range []struct {
		signal syscall.Signal
		within time.Duration
	}{{syscall.SIGTERM, time.Second}, {syscall.SIGSTOP, 5 * time.Second}} {
		var slowest time.Duration // of requests that write
		for range 3 {
			began := time.Now()
			c.nodeToken(api.TokenRequest{})
			slowest = max(slowest, time.Since(began))
		}
		active, other := p.onlyActive()
		paused, gone := active.process()
		signal, late, ended := stop.signal, measureLateness(), time.Now()
		if signal == syscall.SIGSTOP {
			check(t, paused.Signal(signal))
		} else {
			active.end(signal)
		}
		eventually(t, "the other replica is active", other.active)
		// As in TestReplicasTakeOver.
		took, busy := time.Since(ended), late()+20*slowest
		t.Logf("after %v, the other replica was active in %v; the machine may have added %v", signal, took, busy)
		if took > stop.within+busy {
			t.Errorf("after %v, the other replica was active in %v, want at most %v and the %v of a busy machine", signal, took, stop.within, busy)
		}
		run()
		t.Logf("after %v, an instance of the root ran in %v", signal, time.Since(ended))
		known.Prefer("https://" + other.all[0]) // a paused replica does not answer
		text, err := c.logs(web(0).Instance)
		if err != nil || !strings.HasPrefix(text, "tail ") {
			t.Errorf("logs through the node's stream to the new active replica: %q, %v", text, err)
		}
		if signal == syscall.SIGSTOP {
			check(t, paused.Signal(syscall.SIGCONT))
			select {
			case <-gone: // it starts again as a standby
			case <-time.After(patience):
				t.Fatal("the resumed replica does not end")
			}
			said, err := os.ReadFile(other.log.Name())
			check(t, err)
			if strings.Contains(string(said), "connection lost") { // the broker ends the earlier of two connections
				t.Errorf("the paused replica connected to the broker when it went on:\n%s", said)
			}
		} else {
			active.start()
		}
		eventually(t, "the earlier one is a standby", func() bool {
			_, text := active.get("/readyz")
			return strings.Contains(text, "role standby")
		})
		if !other.active() {
			t.Errorf("after %v, the new active replica is not active any more", signal)
		}
	}
	run()
	if creates, stops := rt.counts(); creates != len(want) || stops != 0 || len(rt.running()) != len(want) {
		t.Errorf("%d creations, %d stops, and %d run; want %d, 0, %d", creates, stops, len(rt.running()), len(want), len(want))
	}
}

// logs returns the last lines of an instance.
func (c *tier) logs(id api.InstanceID) (string, error) {
	req, err := http.NewRequest(http.MethodGet, c.url+"/v1/instances/"+api.PathOf(id)+"/logs?tail=5", nil)
	check(c.t, err)
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// A broker inside the active replica would end with it.
func TestReplicasNeedAnExternalBroker(t *testing.T) {
	for _, set := range []func(*cluster.Config){
		func(c *cluster.Config) { c.Broker.URL = nil },
		func(c *cluster.Config) { c.Broker.Next = "embedded" },
	} {
		cfg := clusterReplicaConfig("mongodb://127.0.0.1/x", t.TempDir(), "mqtts://broker", "", ":7444")
		check(t, cfg.Validate())
		set(&cfg)
		if err := cfg.Validate(); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "external broker") {
			t.Errorf("with broker %+v: %v, want ErrInvalid that names the broker", cfg.Broker, err)
		}
	}
}
