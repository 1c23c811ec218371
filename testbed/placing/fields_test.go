package placing_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/testbed/placing"
)

// Every field of an SLA that placement enforces is tested alone: between two nodes that differ only
// in the required property it decides, and if it cannot be met `why` names it.
func TestEachFieldDecidesAloneAndIsNamedWhereItCannotBeMet(t *testing.T) {
	type change = func(*api.NodeInfo)
	for _, tt := range []struct {
		field  string
		with   change    // property of the right node
		ask    string    // requirement that only it meets
		cannot string    // requirement that neither meets
		blames string    // the constraint that why names
		puts   []float64 // where n1 and n2 are in the latency space, ms from its origin
		both   change
		before string // services that are applied before it
	}{
		{field: "vcpus", with: func(n *api.NodeInfo) { n.Capacity.MilliCPU = 8000 }, ask: "vcpus: 6", cannot: "vcpus: 9", blames: "vcpus"},
		{field: "memory", with: func(n *api.NodeInfo) { n.Capacity.MemoryMB = 8192 }, ask: "memory: 6000", cannot: "memory: 9000", blames: "memory"},
		{field: "storage", both: features(api.FeatureStorage), with: func(n *api.NodeInfo) { n.Capacity.StorageMB = 20_000 }, ask: "storage: 15000", cannot: "storage: 25000", blames: "storage"},
		{field: "volumes", with: features("volume_local"), ask: "volumes: [{name: data, type: local, size: 64, mount_path: /data}]", cannot: "volumes: [{name: data, type: ephemeral, size: 64, mount_path: /data}]", blames: "features"},
		{field: "volumes, their size", both: features("volume_local"), with: func(n *api.NodeInfo) { n.Capacity.StorageMB = 20_000 }, ask: "volumes: [{name: data, type: local, size: 15000, mount_path: /data}]", cannot: "volumes: [{name: data, type: local, size: 25000, mount_path: /data}]", blames: "storage"},
		{field: "bandwidth_in", with: func(n *api.NodeInfo) { n.Capacity.InMbit = 2500 }, ask: "bandwidth_in: 2000Mbit", cannot: "bandwidth_in: 3000Mbit", blames: "bandwidth_in"},
		{field: "bandwidth_out", with: func(n *api.NodeInfo) { n.Capacity.OutMbit = 2500 }, ask: "bandwidth_out: 2000Mbit", cannot: "bandwidth_out: 3000Mbit", blames: "bandwidth_out"},
		{field: "vgpus", with: devices("gpu", 1), ask: "vgpus: 1", cannot: "vgpus: 2", blames: "device:gpu"},
		{field: "vtpus", with: devices("tpu", 1), ask: "vtpus: 1", cannot: "vtpus: 2", blames: "device:tpu"},
		{field: "devices", with: devices("acme.com/camera", 2), ask: "devices: [{name: acme.com/camera, count: 2}]", cannot: "devices: [{name: acme.com/camera, count: 3}]", blames: "device:acme.com/camera"},
		{field: "arch", with: func(n *api.NodeInfo) { n.Arch = "arm64" }, ask: "arch: [arm64]", cannot: "arch: [riscv64]", blames: "arch"},
		{field: "platform", with: func(n *api.NodeInfo) { n.Arch = "arm64" }, ask: "platform: linux/arm64", cannot: "platform: linux/riscv64", blames: "arch"},
		{field: "virtualization", with: func(n *api.NodeInfo) { n.Runtimes = []string{"container", "runsc"} }, ask: "virtualization: runsc", cannot: "virtualization: kata", blames: "virtualization"},
		{field: "privileged", with: func(n *api.NodeInfo) { n.Privileged = true }, ask: "privileged: true", cannot: "privileged: true, vcpus: 99", blames: "vcpus"},
		{field: "network, by default", both: onHost, with: onOverlay, ask: "one_shot: true", cannot: "constraints: [{type: direct, node: n1}]", blames: "network"},
		{field: "network, as it is written", both: onHost, with: onOverlay, ask: "network: overlay", cannot: "network: overlay, constraints: [{type: direct, node: n1}]", blames: "network"},
		{field: "network, any", both: onHost, ask: "network: any, constraints: [{type: direct, node: n2}]", cannot: "network: any, constraints: [{type: direct, node: n9}]", blames: "node"},
		{field: "port", ask: "port: \"9090\"", cannot: "port: \"9090\", constraints: [{type: direct, node: n1}]", blames: "port", before: "first: {port: \"9090\", constraints: [{type: direct, node: n1}]}"},
		{field: "direct.node", with: nil, ask: "constraints: [{type: direct, node: n2}]", cannot: "constraints: [{type: direct, node: n9}]", blames: "node"},
		{field: "direct.node, a list", with: nil, ask: "constraints: [{type: direct, node: n7;n2}]", cannot: "constraints: [{type: direct, node: n8;n9}]", blames: "node"},
		{field: "addons", with: func(n *api.NodeInfo) { n.Addons = []string{"camera", "flops"} }, ask: "constraints: [{type: addons, needs: [flops]}]", cannot: "constraints: [{type: addons, needs: [flops, lidar]}]", blames: "addons"},
		{field: "health", with: features(api.FeatureHealth), ask: "health: {liveness: {tcp: {port: 80}}}", cannot: "health: {liveness: {command: [check]}}", blames: "features"},
		{field: "health by a command", both: features(api.FeatureHealth), with: features(api.FeatureHealth, api.FeatureHealthCommand), ask: "health: {readiness: {command: [check]}}", cannot: "health: {readiness: {command: [check]}}, constraints: [{type: direct, node: n1}]", blames: "features"},
		{field: "stdin", with: features(api.FeatureInput), ask: "stdin: true", cannot: "stdin: true, constraints: [{type: direct, node: n1}]", blames: "features"},
		{field: "tty", with: features(api.FeatureInput), ask: "tty: true", cannot: "tty: true, constraints: [{type: direct, node: n1}]", blames: "features"},
		{field: "labels, equal", with: label("disk", "ssd"), ask: "constraints: [{type: labels, labels: [disk=ssd]}]", cannot: "constraints: [{type: labels, labels: [disk=tape]}]", blames: "labels"},
		{field: "labels, not", both: label("old", "yes"), with: func(n *api.NodeInfo) { delete(n.Labels, "old") }, ask: "constraints: [{type: labels, labels: [\"!old\"]}]", cannot: "constraints: [{type: labels, labels: [old=no]}]", blames: "labels"},
		{field: "geo, a circle", both: at(52.52, 13.4), with: at(48.14, 11.58), ask: "constraints: [{type: geo, location: \"48.1N,11.5E\", threshold: 50}]", cannot: "constraints: [{type: geo, location: \"40N,0E\", threshold: 50}]", blames: "geo"},
		{field: "geo, an area", both: area("berlin", "de"), with: area("de", "munich"), ask: "constraints: [{type: geo, area: Munich}]", cannot: "constraints: [{type: geo, area: fr}]", blames: "area"},
		{field: "geo, a polygon", both: at(52.52, 13.4), with: at(48.14, 11.58), ask: "constraints: [{type: geo, polygon: [\"47N,10E\", \"47N,13E\", \"49N,13E\", \"49N,10E\"]}]", cannot: "constraints: [{type: geo, polygon: [\"0N,0E\", \"0N,1E\", \"1N,1E\"]}]", blames: "geo"},
		{field: "latency to a service", ask: "constraints: [{type: latency, service: pre, threshold: 20}]", cannot: "constraints: [{type: latency, service: pre, threshold: 20}, {type: direct, node: n1}]", blames: "latency", puts: []float64{0, 100}, before: "pre: {constraints: [{type: direct, node: n2}], memory: 4096}", both: func(n *api.NodeInfo) { n.Capacity.MemoryMB = 8192 }},
		{field: "latency to an area", both: area("berlin"), with: area("munich"), ask: "constraints: [{type: latency, area: munich, threshold: 20}]", cannot: "constraints: [{type: latency, area: munich, threshold: 20}, {type: direct, node: n1}]", blames: "latency", puts: []float64{0, 100}},
		{field: "latency to a user", ask: "constraints: [{type: latency, target: 8.8.8.8, threshold: 20}]", cannot: "constraints: [{type: latency, target: 8.8.8.8, threshold: 1}]", blames: "latency", puts: []float64{0, 100}},
		{field: "connectivity, latency", ask: "connectivity: [{target_microservice_id: pre.prod, con_constraints: [{type: latency, threshold: 20, tolerate: 10s, convergence_time: 5}]}]", puts: []float64{0, 100}, before: "pre: {constraints: [{type: direct, node: n2}]}"},
		{field: "connectivity, bandwidth", with: func(n *api.NodeInfo) { n.Capacity.InMbit, n.Capacity.OutMbit = 5000, 5000 }, ask: "connectivity: [{target_microservice_id: pre, con_constraints: [{type: bandwidth, threshold: 2000Mbit}]}]", cannot: "connectivity: [{target_microservice_id: pre, con_constraints: [{type: bandwidth, threshold: 6000Mbit}]}]", blames: "bandwidth_in", before: "pre: {}"},
		{field: "spread", ask: "constraints: [{type: spread}, {type: direct, node: n1;n2}], replicas: 2", cannot: "constraints: [{type: spread}], replicas: 3", blames: "spread"},
		{field: "apart", ask: "constraints: [{type: apart, services: [pre.prod]}]", cannot: "constraints: [{type: apart, services: [pre]}, {type: direct, node: n1}]", blames: "apart", before: "pre: {constraints: [{type: direct, node: n1}]}"},
	} {
		t.Run(tt.field, func(t *testing.T) {
			t.Parallel()
			for _, possible := range []bool{true, false} {
				var changes, all []change
				if tt.both != nil {
					all = append(all, tt.both)
				}
				changes = all
				if tt.with != nil {
					changes = append(slices.Clone(all), tt.with)
				}
				w := placing.New()
				w.RTT = func(n api.NodeID, _ string) time.Duration {
					return map[api.NodeID]time.Duration{"n1": 103 * time.Millisecond, "n2": 5 * time.Millisecond}[n] + time.Duration(len(n)-2)*60*time.Millisecond
				}
				w.Cluster(cluster.Config{ID: "c1"}, placing.Node("n1", all...), placing.Node("n2", changes...))
				if tt.puts != nil {
					w.Put("n1", place(tt.puts[0]))
					w.Put("n2", place(tt.puts[1]))
				}
				if strings.Contains(tt.field, "user") { // locating a user needs three nodes that measure
					w.Join("c1", placing.Node("n30", all...))
					w.Put("n30", place(160))
					w.Pass(time.Second)
				}
				if !possible && tt.cannot == "" {
					continue // it is placed with a violation
				}
				ask := tt.ask
				if !possible {
					ask = tt.cannot
				}
				if err := w.Apply(tt.before + "\nsvc: {" + ask + "}"); err != nil {
					t.Fatal(err)
				}
				w.Pass(8 * time.Second)
				replicas := 1
				if i := strings.Index(ask, "replicas: "); i >= 0 {
					replicas = int(ask[i+len("replicas: ")] - '0')
				}
				nodes := map[api.NodeID]bool{}
				for i := range replicas {
					_, n := w.Place("svc", i)
					nodes[n] = true
				}
				last := placing.ID("svc", replicas-1)
				why, _ := w.Root.Why(last, w.Now)
				switch {
				case possible && tt.field == "spread":
					if !nodes["n1"] || !nodes["n2"] {
						t.Errorf("the two instances are on %v: %s", nodes, why.Summary)
					}
				case possible:
					if !nodes["n2"] || len(nodes) != 1 {
						t.Errorf("the instance is on %v, want n2: %s", nodes, why.Summary)
					}
				case !nodes[""]:
					t.Errorf("the instance is on %v, want it not placed", nodes)
				default:
					if said := blamed(why); !slices.Contains(said, tt.blames) {
						t.Errorf("why names %v, want %s: %s", said, tt.blames, why.Summary)
					}
					checkCounts(t, why)
				}
			}
		})
	}
}

// Constraints on clusters, which decide before a node is chosen.
func TestWhatDecidesAmongClusters(t *testing.T) {
	for _, tt := range []struct {
		field, ask, cannot, blames string
		with                       func(*api.NodeInfo)
		both                       func(*api.NodeInfo)
	}{
		{field: "direct.cluster", ask: "constraints: [{type: direct, cluster: c2}]", cannot: "constraints: [{type: direct, cluster: c9}]", blames: "cluster"},
		{field: "direct.cluster, a list", ask: "constraints: [{type: direct, cluster: c7;c2}]", cannot: "constraints: [{type: direct, cluster: c8;c9}]", blames: "cluster"},
		{field: "clusters", ask: "constraints: [{type: clusters, allowed: [c2]}]", cannot: "constraints: [{type: clusters, allowed: [c3]}]", blames: "cluster"},
		{field: "the hull", both: at(52.52, 13.4), with: at(48.14, 11.58), ask: "constraints: [{type: geo, location: \"48.1N,11.5E\", threshold: 50}]", cannot: "constraints: [{type: geo, location: \"40N,0E\", threshold: 50}]", blames: "geo"},
		{field: "the areas", both: area("berlin"), with: area("munich"), ask: "constraints: [{type: geo, area: munich}]", cannot: "constraints: [{type: geo, area: oslo}]", blames: "area"},
		{field: "the devices", with: devices("gpu", 1), ask: "vgpus: 1", cannot: "vgpus: 2", blames: "device:gpu"},
		{field: "the addons", with: func(n *api.NodeInfo) { n.Addons = []string{"flops"} }, ask: "constraints: [{type: addons, needs: [flops]}]", cannot: "constraints: [{type: addons, needs: [lidar]}]", blames: "addons"},
		{field: "the release, by health", with: features(api.FeatureHealth), ask: "health: {liveness: {tcp: {port: 80}}}", cannot: "health: {liveness: {command: [check]}}", blames: "features"},
		{field: "the disk", both: features(api.FeatureStorage), with: func(n *api.NodeInfo) { n.Capacity.StorageMB = 20_000 }, ask: "storage: 15000", cannot: "storage: 25000", blames: "storage"},
	} {
		t.Run(tt.field, func(t *testing.T) {
			t.Parallel()
			for _, possible := range []bool{true, false} {
				one := placing.Node("n1")
				two := placing.Node("n2")
				if tt.both != nil {
					tt.both(&one)
					tt.both(&two)
				}
				if tt.with != nil {
					tt.with(&two)
				}
				w := placing.New()
				w.Cluster(cluster.Config{ID: "c1"}, one)
				w.Cluster(cluster.Config{ID: "c2"}, two)
				ask := tt.ask
				if !possible {
					ask = tt.cannot
				}
				if err := w.Apply("svc: {" + ask + "}"); err != nil {
					t.Fatal(err)
				}
				c, n := w.Place("svc", 0)
				why, _ := w.Root.Why(placing.ID("svc", 0), w.Now)
				if possible && (c != "c2" || n != "n2") {
					t.Errorf("the instance is on %s of %s: %s", n, c, why.Summary)
				}
				if said := blamed(why); !possible && (c != "" || !slices.Contains(said, tt.blames)) {
					t.Errorf("the instance is on %q and why names %v, want %s: %s", c, said, tt.blames, why.Summary)
				}
				checkCounts(t, why)
			}
		})
	}
}

func features(names ...string) func(*api.NodeInfo) {
	return func(n *api.NodeInfo) { n.Features = names }
}

func onHost(n *api.NodeInfo)    { n.Network = api.NetworkHost }
func onOverlay(n *api.NodeInfo) { n.Network = api.NetworkOverlay }

// Services that call each other by name and publish no port are placed only on nodes with the overlay
// network, at both tiers, however much capacity others have. If there is no such node, why says so
// and how to opt out.
func TestServicesThatCallEachOtherAreOnTheOverlayNetwork(t *testing.T) {
	for _, kind := range []func(*api.NodeInfo){
		onHost, func(n *api.NodeInfo) { n.Network = api.NetworkNone }, func(n *api.NodeInfo) { n.Network = "" },
		func(n *api.NodeInfo) { n.Network, n.Runtimes = api.NetworkHost, []string{"process"} },
	} {
		w := placing.New()
		plain := placing.Node("plain", kind, func(n *api.NodeInfo) { n.Capacity.MilliCPU, n.Capacity.MemoryMB = 64_000, 65_536 })
		w.Cluster(cluster.Config{ID: "c1"}, plain)
		w.Cluster(cluster.Config{ID: "c2"}, placing.Node("n1"), placing.Node("plain2", kind))
		if err := w.Apply("front: {replicas: 3, environment: [\"ASK=http://back\"]}\nback: {replicas: 3}"); err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"front", "back"} {
			for i := range 3 {
				if c, n := w.Place(s, i); c != "c2" || n != "n1" {
					t.Errorf("%s#%d is on %q of %q, want a node with the overlay network", s, i, n, c)
				}
			}
		}

		w = placing.New()
		w.Cluster(cluster.Config{ID: "c1"}, plain)
		if err := w.Apply("stuck: {}"); err != nil {
			t.Fatal(err)
		}
		why, _ := w.Root.Why(placing.ID("stuck", 0), w.Now)
		blames, helps := "network", "network: any"
		if slices.Contains(plain.Runtimes, "process") {
			blames, helps = "virtualization", "virtualization container"
		}
		if !slices.Contains(blamed(why), blames) || !slices.ContainsFunc(why.WouldHelp, func(s string) bool { return strings.Contains(s, helps) }) {
			t.Errorf("why names %v and advises %q", blamed(why), why.WouldHelp)
		}
		if blames != "network" {
			continue
		}
		if err := w.Apply("stuck: {network: any}"); err != nil {
			t.Fatal(err)
		}
		if c, n := w.Place("stuck", 0); c != "c1" || n != "plain" {
			t.Errorf("the service that opted out is on %q of %q", n, c)
		}
	}
}

// blamed returns the constraints that an explanation names, at either tier.
func blamed(w api.Why) (out []string) {
	for _, c := range w.Root.Causes {
		out = append(out, c.Constraint)
	}
	for _, cl := range w.Clusters {
		for _, c := range cl.Answer.Causes {
			out = append(out, c.Constraint)
		}
	}
	return out
}

func checkCounts(t *testing.T, w api.Why) {
	t.Helper()
	check := func(who string, e api.Explanation) {
		sum := 0
		for _, c := range e.Causes {
			sum += c.Count
		}
		if sum != e.Considered {
			t.Errorf("%s: the counts of the explanation add up to %d, want %d: %+v", who, sum, e.Considered, e.Causes)
		}
	}
	check("root", w.Root)
	for _, c := range w.Clusters {
		check(string(c.Cluster), c.Answer)
	}
}

func devices(kind string, n int) func(*api.NodeInfo) {
	return func(info *api.NodeInfo) {
		for i := range n {
			info.Devices = append(info.Devices, api.NodeDevice{ID: kind + "=" + string(rune('0'+i)), Kinds: []string{kind}})
		}
	}
}

func label(key, value string) func(*api.NodeInfo) {
	return func(n *api.NodeInfo) { n.Labels = map[string]string{key: value} }
}

func at(lat, lon float64) func(*api.NodeInfo) {
	return func(n *api.NodeInfo) { n.Location = &api.Geo{Lat: lat, Lon: lon} }
}

func area(names ...string) func(*api.NodeInfo) {
	return func(n *api.NodeInfo) { n.Areas = names }
}

// place returns the coordinate that many milliseconds from the origin of the latency space, on its
// first axis, with a height of 1 ms.
func place(ms float64) api.Coordinate {
	c := vivaldi.New()
	c.Vec = append([]float64{}, c.Vec...)
	c.Vec[0], c.Height, c.Error = ms/1000, 0.0005, 0.05
	return c
}
