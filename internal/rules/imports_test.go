package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The daemons' packages.
var daemons = []string{"root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager"}

// The packages that connect a daemon's core and adapters.
var wirings = []string{"root-orchestrator/wiring", "cluster-orchestrator/wiring", "node-engine/wiring", "netmanager/wiring"}

// The cores, which decide and do no I/O.
var cores = []string{"root-orchestrator/root", "cluster-orchestrator/cluster", "node-engine/node", "netmanager/overlay"}

// direction lists which packages of this module a directory may import, the most specific directory
// first. A directory may always import its own packages. "*" allows everything.
var direction = []struct {
	folder string
	may    []string
	reason string
}{
	{"api/client", []string{"api"}, "clients depend on the contract, not on the servers"},
	{"api", []string{"api"}, "every package imports the contract, so that what it imports is imported everywhere"},
	{"internal/wire", []string{"api"}, "messages between tiers are made of the types in api; senders and receivers import this package"},
	{"internal/lifecycle", []string{"api"}, "the table of states is independent of everything else"},
	{"internal/store", []string{"api", "internal/durable", "internal/store"}, "stores do not know the contents of documents"},
	{"internal/fairshare", []string{"api"}, "bounds are the same for all daemons and do not depend on what they bound"},
	{"internal/bus", []string{"api", "internal/bus", "internal/fairshare", "internal/gate", "internal/identity", "internal/refusals"}, "buses carry bytes; internal/identity decides who may connect"},
	{"internal/step", []string{"api", "internal/store", "internal/wire"}, "a core is defined by the contract and the documents of stores"},
	{"internal/cron", []string{"api"}, "root, cluster and CLI compute the same times; the computation is pure"},
	{"internal/probe", nil, "cores and probers agree on what may be probed"},
	{"internal/bounds", []string{"api", "internal/vivaldi", "internal/wire"}, "the bounds of a lower tier's messages are independent of their readers"},
	{"internal/eventlog", []string{"api"}, "a core keeps events in it"},
	{"internal/records", []string{"api", "internal/fairshare"}, "root and cluster record operations alike; each stores records in its own way"},
	{"internal/vivaldi", []string{"api"}, "cores compute with round trips; the geometry is pure"},
	{"internal/yaml", []string{"api"}, "the package converts YAML to JSON and does not interpret it"},
	{"deploy", nil, "the files of an installation, which programs embed"},
	{"internal", []string{"api", "internal"}, "shared packages do not depend on daemons"},
	{"scheduler-plugins/sched", []string{"api", "internal/vivaldi"}, "placement is pure and the same at both tiers"},
	{"scheduler-plugins/extsched", []string{"api", "internal/step", "scheduler-plugins"}, "the exchange with an external scheduler is part of both cores; its clients know no core"},
	{"scheduler-plugins", []string{"api", "scheduler-plugins"}, "a plugin scores candidates; it needs the contract and sched only"},
	{"root-orchestrator/root", coreMay, coreReason},
	{"cluster-orchestrator/cluster", coreMay, coreReason},
	{"node-engine/node", coreMay, coreReason},
	{"netmanager/overlay", coreMay, coreReason},
	{"root-orchestrator", daemonMay, daemonReason},
	{"cluster-orchestrator", daemonMay, daemonReason},
	{"node-engine", daemonMay, daemonReason},
	{"netmanager", daemonMay, daemonReason},
	{"web", []string{"."}, "the dashboard calls the REST API as any client does; its Go code serves files, and the embedded pages of documentation"},
	{"testbed", []string{"*"}, ""},
	{"cli", []string{"api", "deploy", "internal", "cli"}, "the CLI talks to daemons over their APIs; `treeline dev` starts them as processes"},
}

var (
	// rom is the default plugin of the cores.
	coreMay      = []string{"api", "internal/bounds", "internal/cron", "internal/eventlog", "internal/fairshare", "internal/interest", "internal/ipam", "internal/lifecycle", "internal/probe", "internal/step", "internal/store", "internal/vivaldi", "internal/wire", "scheduler-plugins/sched", "scheduler-plugins/extsched", "scheduler-plugins/rom"}
	daemonMay    = []string{"api", "deploy", "internal", "scheduler-plugins", "web"}
	daemonReason = "a daemon consists of its core, its adapters and shared packages; it does not depend on clients or other daemons"
	coreReason   = "imports run one way, main → wiring → adapters → cores → lifecycle, sched, step, store types, api; the simulator could not run a core that imports an adapter"
)

func TestImportsRunOneWay(t *testing.T) {
	all := sources(t)
	for _, rule := range direction {
		var bad []string
		for _, s := range all {
			if s.test || ruleOf(s.pkg) != rule.folder {
				continue
			}
			for p := range s.imports() {
				to := inside(p)
				if to == "" || in(to, s.pkg) || in(to, rule.folder) || allowed(rule.folder, to, rule.may) {
					continue
				}
				bad = append(bad, fmt.Sprintf("%s imports %s", s.path, to))
			}
		}
		report(t, rule.reason, bad)
	}
}

// ruleOf returns the first entry of direction that contains the package.
func ruleOf(pkg string) string {
	for _, r := range direction {
		if in(pkg, r.folder) {
			return r.folder
		}
	}
	return ""
}

func allowed(folder, to string, may []string) bool {
	if slices.Contains(may, "*") {
		return true
	}
	if inAny(folder, cores) { // the types of package store, but no implementation
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
	report(t, "daemons run on different machines with different owners and versions: they share api and internal/wire, and only testbed imports several", bad)
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
	report(t, "test code is not part of the daemons", bad)
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
	report(t, "other people's programs import api, so that it must not add dependencies", bad)
}

// modules lists where each external module may be imported, and why it is used. "tests" means test files,
// suites and testbed, which may import all other modules too.
var modules = []struct {
	path    string
	folders []string
	reason  string
}{
	{"github.com/goccy/go-yaml", []string{"internal/daemon"}, "YAML with struct tags; configuration"},
	{"github.com/robfig/cron/v3", []string{"internal/cron"}, "cron expressions; what happens when clocks change is decided beside it"},
	{"github.com/rogpeppe/go-internal", []string{"cli"}, "the difference of two texts"},
	{"k8s.io/client-go", []string{"cli/output"}, "the JSONPath of kubectl; only its package util/jsonpath"},
	{"go.yaml.in/yaml/v3", []string{"internal/yaml"}, "YAML in linear time; SLAs"},
	{"github.com/spf13/pflag", []string{"internal/daemon", "cli"}, "flags as people write them"},
	{"github.com/spf13/cobra", []string{"cli"}, "commands, help, completion"},
	{"golang.org/x/mod", []string{"internal/addon"}, "compares semantic versions"},
	{"golang.org/x/sync", []string{"internal", "root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager", "cli"}, "errgroup: one group of lives per daemon"},
	{"golang.org/x/sys", []string{"internal", "node-engine", "netmanager", "cli"}, "the kernel, where the standard library ends"},
	{"golang.org/x/time", []string{"internal/fairshare", "netmanager", "cluster-orchestrator/relay"}, "token buckets; how keys share the memory for them is ours"},
	{"golang.org/x/term", []string{"internal/daemon", "cli"}, "whether a person reads the output; passwords unseen"},
	{"golang.org/x/crypto", []string{"internal/identity", "netmanager/tunnel/session"}, "argon2id; ChaCha20-Poly1305 and BLAKE2s"},
	{"filippo.io/age", []string{"internal/seal", "internal/snapshot"}, "encrypts values at rest, and snapshots of the control plane; no own cryptography"},
	{"github.com/flynn/noise", []string{"netmanager/tunnel/session"}, "the tunnel's handshake"},
	{"golang.org/x/net", nil, "HTTP/2 frames of a hostile client, in tests"},
	{"github.com/golang-jwt/jwt", []string{"internal/identity"}, "JWTs; one package pins the algorithms"},
	{"github.com/prometheus/client_golang", append([]string{"internal/daemon"}, wirings...), "metrics, registered where a daemon is put together"},
	{"github.com/prometheus/common", []string{"node-engine/usage"}, "the text format of metrics, of a counter of a workload"},
	{"github.com/prometheus/prometheus", []string{"internal/promexpr"}, "the parser of expressions, which are restricted to their tenant's series"},
	{"github.com/yuin/goldmark", []string{"web/docs"}, "Markdown, for the pages of documentation"},
	{"go.etcd.io/bbolt", []string{"internal/store/embedded"}, "the embedded store"},
	{"go.mongodb.org/mongo-driver", []string{"internal/store/mongo"}, "the external store"},
	{"github.com/mochi-mqtt/server", []string{"internal/bus/broker"}, "the embedded broker"},
	{"github.com/eclipse/paho.mqtt.golang", []string{"internal/bus/mqtt"}, "the MQTT client"},
	{"github.com/go-chi/chi", []string{"root-orchestrator/httpapi", "cluster-orchestrator/httpapi", "internal/rest"}, "the router under huma"},
	{"github.com/danielgtaylor/huma", []string{"root-orchestrator/httpapi", "cluster-orchestrator/httpapi", "internal/problem", "internal/rest"}, "OpenAPI from the handlers"},
	{"github.com/containerd", []string{"node-engine/runtime", "node-engine/volume", "cli/artifact"}, "containers, and mounts through loop devices; artifacts in registries"},
	{"github.com/container-storage-interface/spec", []string{"internal/csi"}, "the messages of CSI drivers"},
	{"github.com/kubernetes-csi/csi-test", nil, "checks of CSI drivers, in a test"},
	{"github.com/onsi/ginkgo", nil, "the results of csi-test, in a test"},
	{"github.com/moby/sys", []string{"node-engine/volume", "node-engine/csi"}, "reads the mount table"},
	{"github.com/coder/websocket", []string{"internal/access", "cli/remote"}, "WebSockets, which browsers can open too, for streams to workloads"},
	{"github.com/santhosh-tekuri/jsonschema", []string{"internal/jsonschema"}, "JSON Schemas of tenants; what they may have is restricted beside it"},
	{"golang.org/x/text", []string{"internal/jsonschema"}, "the language of the library's messages"},
	{"github.com/minio/minio-go", []string{"internal/s3"}, "objects of S3-compatible servers; uploads in parts"},
	{"github.com/anishathalye/porcupine", nil, "checks of histories for linearizability, in tests"},
	{"github.com/johannesboyne/gofakes3", nil, "an S3-compatible server, in tests"},
	{"github.com/hashicorp/serf", []string{"internal/membership"}, "gossip among replicas; tests compare internal/vivaldi with its coordinates"},
	{"github.com/hashicorp/memberlist", []string{"internal/membership"}, "the transport under serf, whose connections are bounded"},
	{"github.com/hashicorp/yamux", []string{"internal/forward"}, "many connections over one stream, each with its own flow control"},
	{"github.com/creack/pty", []string{"node-engine/runtime/process"}, "terminals of execs"},
	{"github.com/distribution/reference", []string{"node-engine/runtime/containerd", "cli/artifact"}, "parses image references as containerd does"},
	{"google.golang.org/grpc", []string{"node-engine/checks", "internal/csi"}, "health checks by gRPC, and CSI drivers; containerd's client requires it"},
	{"google.golang.org/protobuf", []string{"node-engine/runtime/containerd"}, "containerd encodes the extensions of containers with it"},
	{"github.com/opencontainers", []string{"node-engine/runtime", "node-engine/devices", "cli/artifact"}, "the formats of images and containers"},
	{"tags.cncf.io/container-device-interface", []string{"node-engine/devices"}, "CDI: vendors' descriptions of devices for containers"},
	{"github.com/fsnotify/fsnotify", []string{"node-engine/devices", "node-engine/runtime/logs"}, "watches for new CDI specifications, which the CDI library requires too, and for output of workloads"},
	{"github.com/songgao/water", []string{"netmanager/tunnel/tun"}, "plain TUN devices, for kernels without vnet headers and for the benchmarks' forwarder"},
	{"golang.zx2c4.com/wireguard", nil, "the benchmarks compare tunnels with wireguard-go"},
	{"github.com/miekg/dns", []string{"netmanager/resolver"}, "DNS messages, servers and clients"},
	{"github.com/cilium/ebpf", []string{"netmanager/dataplane/ebpf"}, "loads the data plane's programs and reads their maps, without a C library"},
	{"github.com/google/nftables", []string{"netmanager/dataplane"}, "the kernel's packet filter by netlink: a change is a few set elements in one transaction"},
	{"github.com/vishvananda/netlink", []string{"netmanager/link", "netmanager/dataplane", "netmanager/host", "netmanager/tunnel/tun", "node-engine/runtime/qemu"}, "devices, routes, neighbours, shaping and connection tracking by netlink"},
	{"github.com/vishvananda/netns", []string{"netmanager/link", "node-engine/runtime/qemu"}, "vishvananda/netlink needs it for namespaces"},
	{"github.com/tetratelabs/wazero", []string{"scheduler-plugins/extsched/wasm"}, "WebAssembly without a C library, with limits of memory and time"},
	{"github.com/CycloneDX/cyclonedx-go", nil, "the bill of materials of a release, in testbed/release"},
	{"github.com/gomodule/redigo", nil, "the example shop's client of its database, in testbed/shop"},
	{"github.com/evanw/esbuild", nil, "bundles the dashboard, in the test that keeps the bundle fresh"},
	{"github.com/chromedp/chromedp", nil, "drives a browser in the tests of the dashboard"},
	{"github.com/chromedp/cdproto", nil, "the protocol of the browser, for chromedp"},
	{"github.com/quic-go/quic-go", nil, "QUIC over the overlay network, in tests"},
	{"golang.org/x/tools", nil, "type-checks the programs for other systems, in a test"},
	{"pgregory.net/rapid", nil, "property tests"},
	{"go.uber.org/goleak", nil, "detects leaked goroutines in tests"},
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
	report(t, "add a new module to this table with its folders and the reason for it", strange)
	for _, m := range modules {
		var bad []string
		for _, s := range all {
			if s.test || in(s.pkg, "testbed") || inAny(s.pkg, m.folders) {
				continue
			}
			for p := range s.imports() {
				if in(p, m.path) {
					bad = append(bad, fmt.Sprintf("%s imports %s", s.path, p))
				}
			}
		}
		folders := "tests"
		if len(m.folders) > 0 {
			folders = strings.Join(m.folders, ", ")
		}
		report(t, fmt.Sprintf("%s (%s) is imported in %s only, so that it can be replaced", m.path, m.reason, folders), bad)
	}
}
