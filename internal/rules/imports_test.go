package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The daemons' rooms: they meet in api and in testbed.
var daemons = []string{"root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager"}

// The rooms that put a daemon together of its core and adapters.
var wirings = []string{"root-orchestrator/wiring", "cluster-orchestrator/wiring", "node-engine/wiring", "netmanager/wiring"}

// The cores: what decides and does nothing else.
var cores = []string{"root-orchestrator/root", "cluster-orchestrator/cluster", "node-engine/node", "netmanager/overlay"}

// direction says what of our own a room may import, the most particular room
// first. A room may always import what is within itself. "*" is anything that
// the later rules leave.
var direction = []struct {
	room   string
	may    []string
	reason string
}{
	{"api/client", []string{"api"}, "clients know the contract and nothing of who serves it"},
	{"api", []string{"api"}, "the contract is below everything: whatever it imported, everybody would import"},
	{"internal/lifecycle", []string{"api"}, "the table of states decides nothing else"},
	{"internal/store", []string{"api", "internal/store"}, "stores keep documents and know nothing of what is in them"},
	{"internal/fairshare", []string{"api"}, "bounds are the same for all daemons and know what none of them bounds"},
	{"internal/bus", []string{"api", "internal/bus", "internal/fairshare", "internal/gate", "internal/identity", "internal/refusals"}, "buses carry bytes; who may connect is identity's to say"},
	{"internal/step", []string{"api", "internal/store"}, "what a core is, is said in terms of the contract and the store's documents"},
	{"internal/probe", nil, "what may be probed is the same for cores and for those who send"},
	{"internal/bounds", []string{"api", "internal/vivaldi"}, "what a lower tier may say is decided without knowing who reads it"},
	{"internal/vivaldi", []string{"api"}, "geometry of round trips, for cores"},
	{"internal/yaml", []string{"api"}, "YAML becomes JSON and is understood elsewhere"},
	{"internal", []string{"api", "internal"}, "shared rooms serve the daemons and know none of them"},
	{"scheduler-plugins/sched", []string{"api", "internal/vivaldi"}, "placing is pure and the same at both levels"},
	{"scheduler-plugins", []string{"api", "scheduler-plugins"}, "a plugin scores; it sees the contract and sched"},
	{"root-orchestrator/root", coreMay, coreReason},
	{"cluster-orchestrator/cluster", coreMay, coreReason},
	{"node-engine/node", coreMay, coreReason},
	{"netmanager/overlay", coreMay, coreReason},
	{"root-orchestrator", daemonMay, daemonReason},
	{"cluster-orchestrator", daemonMay, daemonReason},
	{"node-engine", daemonMay, daemonReason},
	{"netmanager", daemonMay, daemonReason},
	{"testbed", []string{"*"}, ""},
	{"cli", []string{"api", "internal", "cli"}, "the terminal speaks to the daemons over their APIs; `treeline dev` starts them as processes"},
}

var (
	// rom is pure, and what the cores place with when the wiring names no other plugin.
	coreMay      = []string{"api", "internal/bounds", "internal/interest", "internal/ipam", "internal/lifecycle", "internal/probe", "internal/step", "internal/store", "internal/vivaldi", "scheduler-plugins/sched", "scheduler-plugins/rom"}
	daemonMay    = []string{"api", "internal", "scheduler-plugins"}
	daemonReason = "a daemon is its own core and adapters over the shared rooms; it knows no face and no other daemon"
	coreReason   = "imports run one way, main → wiring → adapters → cores → lifecycle, sched, step, store types, api; a core that knew an adapter could not be simulated"
)

func TestImportsRunOneWay(t *testing.T) {
	all := sources(t)
	for _, rule := range direction {
		var bad []string
		for _, s := range all {
			if s.test || ruleOf(s.pkg) != rule.room {
				continue
			}
			for p := range s.imports() {
				to := inside(p)
				if to == "" || in(to, s.pkg) || in(to, rule.room) || allowed(rule.room, to, rule.may) {
					continue
				}
				bad = append(bad, fmt.Sprintf("%s imports %s", s.path, to))
			}
		}
		report(t, rule.reason, bad)
	}
}

// ruleOf is the first room of the table that the package is in.
func ruleOf(pkg string) string {
	for _, r := range direction {
		if in(pkg, r.room) {
			return r.room
		}
	}
	return ""
}

func allowed(room, to string, may []string) bool {
	if slices.Contains(may, "*") {
		return true
	}
	if inAny(room, cores) { // the store's types, and no store
		return slices.Contains(may, to) || in(to, "api") && to != "api/client"
	}
	return inAny(to, may)
}

func TestDaemonsNeverImportOneAnother(t *testing.T) {
	var bad []string
	for _, s := range sources(t) {
		for _, d := range daemons {
			if !in(s.pkg, d) {
				continue
			}
			for p := range s.imports() {
				if to := inside(p); to != "" && !in(to, d) && inAny(to, daemons) {
					bad = append(bad, fmt.Sprintf("%s imports %s", s.path, to))
				}
			}
		}
	}
	report(t, "daemons run on different machines, of different owners and versions: they meet in api, and in testbed", bad)
}

func TestTestHelpersStayInTests(t *testing.T) {
	var bad []string
	for _, s := range sources(t) {
		if s.test || in(s.pkg, "testbed") {
			continue
		}
		for p := range s.imports() {
			if to := inside(p); to != "" && (isSuite(to) || in(to, "testbed")) || p == "testing" {
				bad = append(bad, fmt.Sprintf("%s imports %s", s.path, p))
			}
		}
	}
	report(t, "what proves the daemons is no part of them", bad)
}

func TestTheContractImportsTheStandardLibraryOnly(t *testing.T) {
	var bad []string
	for _, s := range sources(t) {
		if !in(s.pkg, "api") || s.test {
			continue
		}
		for p := range s.imports() {
			if outside(p) {
				bad = append(bad, fmt.Sprintf("%s imports %s", s.path, p))
			}
		}
	}
	report(t, "anything may import api, also other people's programs; it brings nothing along", bad)
}

// modules says where each outside module may be imported, and why it came in.
// "tests" stands for test files, suites and testbed, which may use all others too.
var modules = []struct {
	path   string
	rooms  []string
	reason string
}{
	{"github.com/goccy/go-yaml", []string{"internal/daemon"}, "YAML with struct tags; configuration"},
	{"go.yaml.in/yaml/v3", []string{"internal/yaml"}, "YAML in linear time; SLAs"},
	{"github.com/spf13/pflag", []string{"internal/daemon", "cli"}, "flags as people write them"},
	{"github.com/spf13/cobra", []string{"cli"}, "commands, help, completion"},
	{"golang.org/x/sync", []string{"internal", "root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager", "cli"}, "errgroup: one group of lives per daemon"},
	{"golang.org/x/sys", []string{"internal", "node-engine", "netmanager", "cli"}, "the kernel, where the standard library ends"},
	{"golang.org/x/time", []string{"internal/fairshare"}, "token buckets; how keys share the memory for them is ours"},
	{"golang.org/x/term", []string{"internal/daemon", "cli"}, "whether a person reads the output; passwords unseen"},
	{"golang.org/x/crypto", []string{"internal/identity", "netmanager/tunnel/session"}, "argon2id; ChaCha20-Poly1305 and BLAKE2s"},
	{"github.com/flynn/noise", []string{"netmanager/tunnel/session"}, "the tunnel's handshake"},
	{"golang.org/x/net", nil, "HTTP/2 frames as a hostile client writes them, in tests"},
	{"github.com/golang-jwt/jwt", []string{"internal/identity"}, "tokens, in one place where algorithms are pinned"},
	{"github.com/prometheus", append([]string{"internal/daemon"}, wirings...), "metrics, registered where a daemon is put together"},
	{"go.etcd.io/bbolt", []string{"internal/store/embedded"}, "the embedded store"},
	{"go.mongodb.org/mongo-driver", []string{"internal/store/mongo"}, "the external store"},
	{"github.com/mochi-mqtt/server", []string{"internal/bus/broker"}, "the embedded broker"},
	{"github.com/eclipse/paho.mqtt.golang", []string{"internal/bus/mqtt"}, "the MQTT client"},
	{"github.com/go-chi/chi", []string{"root-orchestrator/httpapi", "cluster-orchestrator/httpapi"}, "the router under huma"},
	{"github.com/danielgtaylor/huma", []string{"root-orchestrator/httpapi", "cluster-orchestrator/httpapi", "internal/problem"}, "OpenAPI from the handlers"},
	{"github.com/containerd", []string{"node-engine/runtime"}, "containers"},
	{"github.com/distribution/reference", []string{"node-engine/runtime/containerd"}, "image references, read as containerd reads them"},
	{"google.golang.org/protobuf", []string{"node-engine/runtime/containerd"}, "containerd keeps a container's extensions in it"},
	{"github.com/opencontainers", []string{"node-engine/runtime", "node-engine/devices"}, "the formats of images and containers"},
	{"tags.cncf.io/container-device-interface", []string{"node-engine/devices"}, "CDI: how vendors describe devices to whoever makes containers"},
	{"github.com/fsnotify/fsnotify", []string{"node-engine/devices"}, "hears of new CDI specifications; the CDI library brings it along"},
	{"github.com/songgao/water", []string{"netmanager/tunnel/tun"}, "plain TUN devices, where the kernel gives no vnet headers; the one-packet-a-time forwarder of the benchmarks"},
	{"golang.zx2c4.com/wireguard", nil, "wireguard-go as it ships, beside which tunnels are measured"},
	{"github.com/miekg/dns", []string{"netmanager/resolver"}, "DNS messages, servers and clients"},
	{"github.com/cilium/ebpf", []string{"netmanager/dataplane/ebpf"}, "loads the data plane's programs and reads their maps, without a C library"},
	{"github.com/google/nftables", []string{"netmanager/dataplane"}, "the kernel's packet filter by netlink: a change is a few set elements in one transaction"},
	{"github.com/vishvananda/netlink", []string{"netmanager/link", "netmanager/dataplane", "netmanager/wiring"}, "devices, routes, neighbours, shaping and connection tracking by netlink"},
	{"github.com/vishvananda/netns", []string{"netmanager/link"}, "how vishvananda/netlink is told of a namespace"},
	{"github.com/tetratelabs/wazero", []string{"scheduler-plugins/outside/wasm"}, "WebAssembly without a C library, with bounds of memory and time"},
	{"github.com/hashicorp/serf", nil, "Vivaldi as serf ships it, beside which ours is run"},
	{"github.com/quic-go/quic-go", nil, "QUIC as it is spoken, over our network, in tests"},
	{"pgregory.net/rapid", nil, "properties, in tests"},
	{"go.uber.org/goleak", nil, "goroutines left behind, in tests"},
}

func TestOutsideModulesStayBehindTheirAdapters(t *testing.T) {
	all := sources(t)
	known := func(p string) bool {
		for _, m := range modules {
			if in(p, m.path) {
				return true
			}
		}
		return false
	}
	var strange []string
	for _, s := range all {
		for p := range s.imports() {
			if outside(p) && !known(p) {
				strange = append(strange, fmt.Sprintf("%s imports %s", s.path, p))
			}
		}
	}
	report(t, "dependencies are chosen: enter the module in this table, with its rooms and why it came in", strange)
	for _, m := range modules {
		var bad []string
		for _, s := range all {
			if s.test || in(s.pkg, "testbed") || inAny(s.pkg, m.rooms) {
				continue
			}
			for p := range s.imports() {
				if in(p, m.path) {
					bad = append(bad, fmt.Sprintf("%s imports %s", s.path, p))
				}
			}
		}
		rooms := "tests"
		if len(m.rooms) > 0 {
			rooms = strings.Join(m.rooms, ", ")
		}
		report(t, fmt.Sprintf("%s (%s) lives in %s, so that it can be replaced there", m.path, m.reason, rooms), bad)
	}
}
