package lab_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestBadInput sends invalid input to every interface. Each is refused with a clear error and
// changes nothing else.
func TestBadInput(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", steady())
	a, b := c.Node("a", lab.NodeOptions{}), c.Node("b", lab.NodeOptions{})
	l.Wait("both nodes take work", lab.Nodes("munich", 2))
	l.Apply(lab.App("shop", lab.On(l.Process("web", 1), "munich", "b")))
	l.Wait("web runs", l.Running("shop", "web", 1))
	web := l.ID("shop", "web", 0)
	was := l.Workload(web)

	sub(t, l, "SLA", func(t *testing.T) {
		for _, bad := range []struct {
			name, text string
			kind       error
			say        string
		}{
			{"no JSON", `{"sla_version":`, api.ErrInvalid, ""},
			{"misspelt", `{"sla_version":"v2.0","applications":[{"application_name":"x","application_namespace":"y","microservices":[
				{"microservice_name":"a","microservice_namespace":"b","virtualization":"process","code":"/bin/true","cpus":1}]}]}`, api.ErrInvalid, "vcpus"},
			{"several faults", `{"sla_version":"v9","applications":[{"application_name":"x!","application_namespace":"y","microservices":[]}]}`, api.ErrInvalid, "/sla_version"},
			{"deep", strings.Repeat("[", 100_000), api.ErrInvalid, ""},
			{"giant", `{"sla_version":"v2.0","customerID":"` + strings.Repeat("x", 2<<20) + `"}`, api.ErrTooLarge, ""},
		} {
			err := l.TryApply([]byte(bad.text))
			if !errors.Is(err, bad.kind) || !strings.Contains(fmt.Sprint(err), bad.say) {
				t.Errorf("%s: %v, want %v that names %q", bad.name, err, bad.kind, bad.say)
			}
		}
		var p *api.Problem
		if err := l.TryApply(nil); !errors.As(err, &p) || p.Status != http.StatusBadRequest {
			t.Errorf("an empty document: %v, want status 400", err)
		}
		apps, _, err := l.API.Apps(l.Context(), client.ListOptions{Tenant: l.Tenant})
		if err != nil || len(apps) != 1 {
			t.Errorf("after the invalid documents there are %d applications (%v), want the 1 from before", len(apps), err)
		}
	})

	sub(t, l, "token of a person", func(t *testing.T) {
		good := l.Access()
		head, rest, _ := strings.Cut(good, ".")
		body, sig, _ := strings.Cut(rest, ".")
		text, err := os.ReadFile(filepath.Join(l.Dir, "root", "token-keys.json"))
		if err != nil {
			t.Fatal(err)
		}
		ring, err := jwt.ParseRing(text)
		if err != nil {
			t.Fatal(err)
		}
		expired, _, err := jwt.Signer{Ring: ring, Issuer: api.TokenIssuer, Now: func() time.Time { return time.Now().Add(-2 * time.Hour) }}.
			Sign(jwt.Claims{Subject: "admin", Roles: []rights.Role{rights.Admin}}, []string{api.TokenAudience}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := base64.RawURLEncoding.DecodeString(sig)
		raw[0] ^= 1
		none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`))
		for name, token := range map[string]string{
			"bad signature": head + "." + body + "." + base64.RawURLEncoding.EncodeToString(raw),
			"no algorithm":  none + "." + body + ".",
			"expired":       expired,
			"nonsense":      "let me in please, I am the admin",
		} {
			if _, _, err := l.Client(client.Static(token)).Apps(l.Context(), client.ListOptions{}); !errors.Is(err, api.ErrUnauthenticated) {
				t.Errorf("%s at the root: %v, want it refused", name, err)
			}
			if _, _, err := client.List[api.Node](l.Context(), c.As(client.Static(token)), "/v1/nodes", client.ListOptions{}); !errors.Is(err, api.ErrUnauthenticated) {
				t.Errorf("%s at the cluster: %v, want it refused", name, err)
			}
		}
		if _, _, err := client.List[api.Node](l.Context(), c.As(client.Static(good)), "/v1/nodes", client.ListOptions{}); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("the root's valid token at the cluster: %v, want it refused", err)
		}
		var exchanged api.ClusterAccess
		_, err = l.API.Do(l.Context(), client.Request{Method: http.MethodPost, Path: "/v1/clusters/" + string(c.ID) + "/access"}, &exchanged)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := client.List[api.Node](l.Context(), c.As(client.Static(exchanged.Token)), "/v1/nodes", client.ListOptions{}); err != nil {
			t.Errorf("the token that the root exchanged for it, at the cluster: %v, want it accepted", err)
		}
	})

	sub(t, l, "join token", func(t *testing.T) {
		again := c.NewNode("again", lab.NodeOptions{Token: a.Token})
		again.Launch()
		if code := again.WaitEnd(); code == 0 || !strings.Contains(again.Log(), "token") {
			t.Errorf("join with a used token: exit code %d, want a refusal that names the token\n%s", code, again.Log())
		}
		thief := c.NewNode("thief", lab.NodeOptions{Args: []string{"--name", "b"}})
		thief.Launch()
		if code := thief.WaitEnd(); code == 0 {
			t.Errorf("join of a second node as b: exit code %d, want a refusal\n%s", code, thief.Log())
		}
		nodes, _, err := client.List[api.Node](l.Context(), c.API, "/v1/nodes", client.ListOptions{})
		if err != nil || len(nodes) != 2 {
			t.Errorf("the cluster has %d nodes (%v), want 2", len(nodes), err)
		}
	})

	sub(t, l, "node that claims another's id", func(t *testing.T) {
		a.Kill9()
		conn := impostor(t, a)
		failed := api.Observed{Instance: web, Epoch: was.Epoch, State: api.Failed, Reason: api.ReasonExited, Node: "b"}
		report := wire.NodeReport{Node: "b", Boot: 1 << 40, Seq: 1 << 40, Whole: true, Observed: []api.Observed{failed}}
		text, _ := json.Marshal(report)
		sign, _ := wire.Alive{Boot: 1 << 40, Seq: 1 << 40, Gen: 1 << 40}.MarshalBinary()
		// It may report anything about itself, which affects only itself.
		report.Boot = 1
		mine, _ := json.Marshal(report)
		if err := conn.Publish(l.Context(), bus.Message{Topic: topic.Observed.Of("a"), Payload: mine, QoS: 1}); err != nil {
			t.Errorf("publish on its own topic: %v", err)
		}
		if err := conn.Subscribe(l.Context(), topic.Desired.Of("b"), 1, func(bus.Message) { t.Error("the impostor received the desired set of b") }); !errors.Is(err, bus.ErrRefused) {
			t.Errorf("subscribe to b's desired set: %v, want refused", err)
		}
		for leaf, payload := range map[topic.Leaf][]byte{topic.Observed: text, topic.Alive: sign, topic.Will: nil} {
			_ = conn.Publish(l.Context(), bus.Message{Topic: leaf.Of("b"), Payload: payload, QoS: 1})
		}
		one{t, l, web}.works("shop", "web", lab.Stopwatch()) // b's own reports are still accepted
		one{t, l, web}.unharmed(was, api.Instance{Epoch: was.Epoch})
		for _, i := range l.History(web) {
			if i.State == api.Failed {
				t.Errorf("the root shows the instance as failed after a forged report: %+v", i)
			}
		}
		node, err := c.NodeOf("b")
		if err != nil || node.Status != api.NodeReady {
			t.Errorf("node b is %s (%v) after forged messages", node.Status, err)
		}
		_ = conn.Close()
		a.Start()
		l.Wait("the real node a is back", lab.Nodes("munich", 2))
	})
	_ = b
}

// impostor is a connection with a node's own certificate, for messages that its engine never
// sends.
func impostor(t *testing.T, n *lab.Node) bus.Bus {
	t.Helper()
	dir, err := os.OpenRoot(n.Data)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	creds, err := clusterlink.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	k, err := keeper.New(keeper.Options{Pair: creds.Pair})
	if err != nil {
		t.Fatal(err)
	}
	conf := trust.New(creds.Pair.Root()).Client(identity.OfCluster(creds.Cluster), k.GetClientCertificate)
	conf.NextProtos = []string{"mqtt"}
	conn, err := mqtt.Dial(mqtt.Options{Addr: n.Link.Addr(), ClientID: string(creds.ID), TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for up := range conn.Up() {
		if up {
			break
		}
	}
	return conn
}

// TestImages requests images that do not exist, from a registry that answers and from one
// that does not.
func TestImages(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
	}))
	defer registry.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	host, dead := strings.TrimPrefix(registry.URL, "http://"), strings.TrimPrefix(gone.URL, "http://")
	config := filepath.Join(l.Dir, "registries.yaml")
	text := fmt.Sprintf("containerd:\n  registries:\n  - {host: %q, plain_http: true}\n  - {host: %q, plain_http: true}\n", host, dead)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := l.Cluster("munich", steady())
	node := containers(t)
	node.Args = []string{"--config", config}
	c.Node("n1", node)
	l.Wait("the node takes work", lab.Nodes("munich", 1))
	for name, want := range map[string]struct {
		code   string
		reason api.Reason
	}{
		"unknown": {host + "/nobody/knows:1", api.ReasonImageNotFound},
		"dead":    {dead + "/nobody/answers:1", api.ReasonRegistryDown},
	} {
		sub(t, l, name, func(t *testing.T) {
			m := l.Container("web", 1)
			m.Code = want.code
			l.Apply(lab.App(name, m))
			id := l.ID(name, "web", 0)
			l.Wait("it fails for that reason", lab.Is(id, func(i api.Instance) bool { return i.State == api.Failed && i.Reason == want.reason }))
			if i := l.Instance(id); !strings.Contains(i.Detail, want.code) {
				t.Errorf("the detail does not name the image: %q", i.Detail)
			}
			why, err := l.API.Why(l.Context(), id)
			if err != nil || !strings.Contains(why.Summary, want.code) {
				t.Errorf("why does not name the image: %q (%v)", why.Summary, err)
			}
			l.Delete(name)
		})
	}
}

// TestFullDisk fills the disk of each daemon's store in turn. Writes fail with an error, reads
// and workloads continue, and all acknowledged data exists when there is space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	l := open(t, lab.Options{RootDisk: size})
	c := l.Cluster("munich", lab.ClusterOptions{Disk: size, Args: steady().Args})
	n := c.Node("n1", lab.NodeOptions{Disk: size, CPUs: 4})
	l.Wait("the node takes work", lab.Nodes("munich", 1))
	l.Apply(lab.App("shop", l.Process("web", 1)))
	l.Wait("web runs", l.Running("shop", "web", 1))
	web := one{t, l, l.ID("shop", "web", 0)}
	w, was := l.Workload(web.id), l.Instance(web.id)
	// A service that takes much space in every store.
	fat := func(app string, replicas int) api.SLA {
		m := l.Process("fat", replicas)
		for i := range 8 {
			m.Environment = append(m.Environment, fmt.Sprintf("FAT%d=%s", i, bytes.Repeat([]byte("x"), 12<<10)))
		}
		return lab.App(app, m)
	}

	sub(t, l, "root", func(t *testing.T) {
		l.RootDisk.Fill()
		var acknowledged []string
		for i := 0; ; i++ {
			name := fmt.Sprintf("full%d", i)
			err := l.TryApply(lab.Encode(fat(name, 0)))
			if errors.Is(err, api.ErrFull) {
				var p *api.Problem
				if !errors.As(err, &p) || p.Status != 507 || p.Detail == "" {
					t.Errorf("the error for a full disk is %+v", p)
				}
				t.Logf("after %d applications: %v", i, err)
				break
			}
			if err != nil || i > 1000 {
				t.Fatalf("application %d on a full disk: %v", i, err)
			}
			acknowledged = append(acknowledged, name)
		}
		if _, err := l.API.Scale(l.Context(), l.ServiceID("shop", "web"), 3, 0); err != nil && !errors.Is(err, api.ErrFull) {
			t.Errorf("scale on a full disk: %v, want ErrFull or success", err)
		}
		if _, err := l.API.App(l.Context(), l.Tenant.App("shop", lab.Namespace)); err != nil {
			t.Errorf("read with a full disk: %v", err)
		}
		l.RootDisk.Free()
		took := lab.Stopwatch()
		for {
			err := l.TryApply(lab.Encode(lab.App("after", l.Process("web", 1))))
			if err == nil {
				break
			}
			if !errors.Is(err, api.ErrFull) && !errors.Is(err, api.ErrUnavailable) || took() > time.Minute {
				t.Fatalf("apply after the disk has space again: %v", err)
			}
			time.Sleep(20 * time.Millisecond) // there is no event when a store can write again
		}
		l.Measured("root_disk_freed_writes_again", took())
		l.Scale("shop", "web", 1)
		l.Root.Kill9()
		l.StartRoot()
		for _, name := range append(acknowledged, "shop", "after") {
			if _, err := l.API.App(l.Context(), l.Tenant.App(name, lab.Namespace)); err != nil {
				t.Errorf("get %s, which was acknowledged: %v", name, err)
			}
		}
		l.Wait("what came after the flood runs", l.Running("after", "web", 1))
		l.Delete("after")
		l.Wait("web has one instance", l.Running("shop", "web", 1))
		web.unharmed(w, was)
	})

	for _, tier := range []struct {
		name string
		disk *lab.Disk
		proc interface{ Restart() }
		why  func() error
	}{
		{"cluster", c.Disk, c, func() error {
			_, err := c.API.Do(l.Context(), client.Request{Method: http.MethodPost, Path: "/v1/tokens", Body: api.TokenRequest{}}, nil)
			if err != nil && !errors.Is(err, api.ErrFull) {
				t.Errorf("write with a full disk: %v, want ErrFull or success", err)
			}
			return err
		}},
		{"node", n.Disk, n, func() (err error) {
			l.Look(func(v lab.View) {
				for _, i := range v.Instances {
					if i.Reason == api.ReasonDiskFull {
						err = errors.New(i.Detail)
					}
				}
			})
			return errors.Join(err, n.Ready())
		}},
	} {
		sub(t, l, tier.name, func(t *testing.T) {
			tier.disk.Fill()
			l.Apply(fat(tier.name, 8))
			took := lab.Stopwatch()
			for tier.why() == nil {
				if took() > time.Minute {
					t.Fatal("the daemon does not report that its disk is full")
				}
				time.Sleep(20 * time.Millisecond) // there is no event when a store refuses
			}
			t.Logf("it reports: %v", tier.why())
			if nodes, _, err := client.List[api.Node](l.Context(), c.API, "/v1/nodes", client.ListOptions{}); err != nil || len(nodes) != 1 {
				t.Errorf("read with a full disk: %v", err)
			}
			tier.disk.Free()
			took = lab.Stopwatch()
			l.Wait("all run when there is room", l.Running(tier.name, "fat", 8))
			l.Measured(tier.name+"_disk_freed_running", took())
			tier.proc.Restart()
			l.Scale(tier.name, "fat", 9)
			l.Wait("and one more after a restart", l.Running(tier.name, "fat", 9))
			l.Delete(tier.name)
			web.unharmed(w, was)
		})
	}
}
