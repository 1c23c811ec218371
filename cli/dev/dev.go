//go:build linux

// Package dev runs a whole installation on one machine, for development. The daemons are child
// processes with a data directory each, which are restarted when they exit. They join with tokens,
// as on separate machines.
//
//	err := dev.Run(ctx, dev.Config{Bin: "bin", Data: dir, Clusters: 2, Nodes: 3}, dev.Hooks{…})
package dev

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

type Config struct {
	Bin      string // directory of the daemons' binaries
	Data     string
	Listen   string // host:port of the root; port 0 selects a free port, which later starts reuse
	Clusters int
	Nodes    int // distributed over the clusters

	Runtime    string   // "auto", "containerd" or "process"
	Containerd string   // its socket
	Network    string   // of containers: "overlay", "host", "none" or "auto" (overlay if possible, else host)
	ImageDirs  []string // directories with OCI archives
	Allow      []string // directories below which the process runtime may start programs
	Tenant     api.Tenant
	// HA runs two replicas of the root and of each cluster, which share FerretDB, the program at that path.
	HA       bool
	FerretDB string
	Remove   bool // at the end: delete the applications, then the data

	mosquitto string // the program
}

// Hooks are called during Run.
type Hooks struct {
	Step func(format string, args ...any) // reports a completed step
	// Up is called once, when the installation is ready. If it returns an error, the daemons are
	// stopped.
	Up func(ctx context.Context, up Up) error
}

// Up describes a running installation.
type Up struct {
	URL     string
	CA      []byte
	Session api.Session // of the installation's admin
	Daemons []Daemon
	Join    api.JoinToken // for another node of the first cluster

	JoinFile string // file with the token of Join, mode 0600
}

// Daemon is a running process.
type Daemon struct {
	Name, Kind string // Kind: root, cluster, node, net, store, broker
	PID        int
	Address    string // host:port, empty if it does not listen; for a netmanager the node's address
	Data, Log  string
}

const (
	startTime = time.Minute      // for a daemon to be ready
	stopTime  = 15 * time.Second // for a daemon to end after SIGTERM
	stepTime  = 30 * time.Second // for one request to the root
)

// state is stored for later starts.
type state struct {
	Listen map[string]string `json:"listen"` // address by daemon; certificates and tokens contain it
	Joined map[string]bool   `json:"joined"`
	// Network is the network of containers. It does not change, because addresses depend on it.
	Network string `json:"network,omitempty"`
	HA      bool   `json:"ha,omitempty"` // replicas have another store than daemons without
	// Hosts is the network between the nodes' hosts and this machine.
	Hosts netip.Prefix `json:"hosts,omitzero"`
}

const stateFile = "dev.json"

type installation struct {
	cfg   Config
	hooks Hooks
	sup   *supervisor
	hosts hosts

	mu    sync.Mutex // guards state
	state state
}

// Validate checks the configuration. ErrInvalid: a value is out of range; ErrNotFound: a binary is
// missing.
func (c Config) Validate() error {
	switch {
	case c.Clusters < 1 || c.Clusters > 50:
		return fmt.Errorf("%d clusters: want 1 to 50: %w", c.Clusters, api.ErrInvalid)
	case c.Nodes < 0 || c.Nodes > 200:
		return fmt.Errorf("%d nodes: want 0 to 200: %w", c.Nodes, api.ErrInvalid)
	case !slices.Contains([]string{networkAuto, api.NetworkOverlay, api.NetworkHost, api.NetworkNone}, c.Network):
		return fmt.Errorf("workload network %q: want auto, overlay, host or none: %w", c.Network, api.ErrInvalid)
	case c.Network == api.NetworkOverlay && c.Runtime == "process":
		return fmt.Errorf("workload network overlay: processes use this machine's network: %w", api.ErrInvalid)
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen address %q: want host:port: %w", c.Listen, api.ErrInvalid)
	}
	for _, b := range []string{rootBinary, clusterBinary, nodeBinary} {
		if _, err := exec.LookPath(filepath.Join(c.Bin, b)); err != nil {
			return fmt.Errorf("%s is not in %s: build it (go build -o %s/%s ./%s), or name another directory with --bin-dir: %w", b, c.Bin, c.Bin, b, b, api.ErrNotFound)
		}
	}
	return nil
}

const (
	rootBinary    = "root-orchestrator"
	clusterBinary = "cluster-orchestrator"
	nodeBinary    = "node-engine"
	netBinary     = "netmanager" // needed only for the overlay
)

const networkAuto = "auto"

// Run runs the installation until ctx is done or an error is permanent. Then it stops the daemons;
// workloads keep running unless Remove is set. ErrConflict: another Run uses the data directory.
func Run(ctx context.Context, cfg Config, hooks Hooks) error {
	var err error
	if cfg.Data, err = filepath.Abs(cfg.Data); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := cmp.Or(cfg.Validate(), cfg.checkHA()); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(cfg.Data, "logs"), 0o700); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	lock, err := lockData(cfg.Data)
	if err != nil {
		return err
	}
	defer lock.Close()
	in := &installation{cfg: cfg, hooks: hooks, state: state{Listen: map[string]string{}, Joined: map[string]bool{}}}
	if err := in.load(); err != nil {
		return err
	}
	if len(in.state.Listen) > 0 && in.state.HA != cfg.HA {
		return fmt.Errorf("the installation in %s was started with --ha=%t; start it with the same value, or use another --data: %w", cfg.Data, in.state.HA, api.ErrConflict)
	}
	in.state.HA = cfg.HA
	in.hosts = newHosts(in.tag(), cfg.Data, in.state.Hosts)
	if err := in.chooseNetwork(); err != nil {
		return err
	}
	in.sup = newSupervisor(func(format string, args ...any) { hooks.Step(format, args...) })
	err = in.live(ctx)
	if cfg.Remove {
		err = errors.Join(err, in.withdraw())
	}
	hooks.Step("stopping the daemons")
	in.sup.end()
	if cfg.Remove && err == nil {
		in.removeCgroups()
		if err = errors.Join(in.hosts.down(), unmountBelow(cfg.Data)); err == nil {
			err = os.RemoveAll(cfg.Data)
		}
	}
	return err
}

// unmountBelow unmounts the file systems of nodes below dir, the deepest first.
func unmountBelow(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var errs []error
	for _, line := range slices.Backward(slices.Collect(strings.Lines(string(mounts)))) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
			errs = append(errs, syscall.Unmount(at, syscall.MNT_DETACH))
		}
	}
	return errors.Join(errs...)
}

// chooseNetwork chooses the network of containers. An installation keeps its choice. If it is not
// the overlay, it reports why.
func (in *installation) chooseNetwork() error {
	was, want := in.state.Network, in.cfg.Network
	if was == "" && len(in.state.Joined) > 0 {
		was = api.NetworkHost // stored by a release without other networks
	}
	switch {
	case want == networkAuto && was != "":
		want = was
	case want == networkAuto:
		want = api.NetworkOverlay
		if why := in.noOverlay(); why != nil {
			want = api.NetworkHost
			if in.cfg.Runtime != "process" {
				in.hooks.Step("overlay network unavailable, containers use this machine's network: %v", why)
			}
		}
	case was != "" && was != want && (was == api.NetworkOverlay || want == api.NetworkOverlay):
		return fmt.Errorf("the installation in %s has the workload network %s; for another one use another --data: %w", in.cfg.Data, was, api.ErrConflict)
	}
	if want == api.NetworkOverlay {
		if err := in.noOverlay(); err != nil {
			return fmt.Errorf("overlay network: %w", err)
		}
	}
	in.cfg.Network = want
	return in.update(func(s *state) { s.Network = want })
}

// noOverlay returns why an overlay network is not possible, nil if it is.
func (in *installation) noOverlay() error {
	if err := networkTools(); err != nil {
		return err
	}
	if _, err := exec.LookPath(filepath.Join(in.cfg.Bin, netBinary)); err != nil {
		return fmt.Errorf("%s is not in %s: build it (go build -o %s/%s ./%s): %w", netBinary, in.cfg.Bin, in.cfg.Bin, netBinary, netBinary, api.ErrNotFound)
	}
	socket := cmp.Or(in.cfg.Containerd, "/run/containerd/containerd.sock")
	if _, err := os.Stat(socket); in.cfg.Runtime == "auto" && err != nil {
		return fmt.Errorf("no containerd at %s, and processes use this machine's network: %w", socket, api.ErrNotFound)
	}
	return nil
}

// removeCgroups removes the cgroups of the nodes' workloads in all hierarchies. The kernel refuses
// to remove those in use.
func (in *installation) removeCgroups() {
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		tops, _ := filepath.Glob(pattern + cgroupPrefix + in.tag())
		for _, top := range tops {
			var dirs []string
			_ = filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for _, dir := range slices.Backward(dirs) { // children before parents
				_ = os.Remove(dir)
			}
		}
	}
}

const cgroupPrefix = "treeline-dev-"

func lockData(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another treeline dev uses %s; stop it, or use another --data: %w", dir, api.ErrConflict)
	}
	return f, nil
}

// live starts the daemons and waits until ctx is done.
func (in *installation) live(ctx context.Context) error {
	up, err := in.bringUp(ctx)
	if err == nil && in.hooks.Up != nil {
		err = in.hooks.Up(ctx, up)
	}
	if ctx.Err() != nil {
		return nil // stopped by the caller
	}
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (in *installation) bringUp(ctx context.Context) (Up, error) {
	var up Up
	if in.overlay() {
		network, err := in.hosts.up(ctx)
		if err != nil {
			return up, err
		}
		in.hosts.net = network
		if err := in.update(func(s *state) { s.Hosts = network }); err != nil {
			return up, err
		}
	}
	root, err := in.startRoot(ctx)
	if err != nil {
		return up, err
	}
	a, session, err := in.signIn(ctx)
	if err != nil {
		return up, err
	}
	defer a.Close()
	if err := a.CreateTenant(ctx, in.cfg.Tenant, "treeline dev"); err != nil && !errors.Is(err, api.ErrConflict) {
		return up, fmt.Errorf("create tenant %s: %w", in.cfg.Tenant, err)
	}
	if err := in.startClusters(ctx, a); err != nil {
		return up, err
	}
	if err := in.startNodes(ctx, a); err != nil {
		return up, err
	}
	if err := in.ready(ctx, a); err != nil {
		return up, err
	}
	ca, err := in.ca()
	if err != nil {
		return up, err
	}
	join, err := a.CreateJoinToken(ctx, api.TokenRequest{Kind: "node", Cluster: api.ClusterID(clusterName(0)), Uses: 1})
	if err != nil {
		return up, fmt.Errorf("create a join token: %w", err)
	}
	// Use a file, because the output may go to a log that others can read.
	file := filepath.Join(in.cfg.Data, "join-token")
	if err := os.WriteFile(file, []byte(join.Token+"\n"), 0o600); err != nil {
		return up, fmt.Errorf("store the join token: %w", err)
	}
	return Up{URL: "https://" + root, CA: ca, Session: session, Daemons: in.daemons(), Join: join, JoinFile: file}, nil
}

func clusterName(i int) string { return fmt.Sprintf("c%d", i+1) }

// nodeName returns the name of node number i. Nodes are assigned to clusters in turn.
func (in *installation) nodeName(i int) string {
	return fmt.Sprintf("%s-n%d", clusterName(i%in.cfg.Clusters), i/in.cfg.Clusters+1)
}

func (in *installation) dir(daemon string) string { return filepath.Join(in.cfg.Data, daemon) }

func (in *installation) startRoot(ctx context.Context) (string, error) {
	if in.cfg.HA {
		if err := in.startStore(ctx); err != nil {
			return "", err
		}
	}
	args, err := in.haArgs("root")
	if err != nil {
		return "", err
	}
	root, err := in.serve(ctx, "root", rootBinary, "", args)
	if err != nil {
		return "", err
	}
	if in.cfg.HA && !in.hasPassword() { // a standby has no code for the first sign-in
		if err := in.awaitFile(ctx, "root", filepath.Join(in.dir("root"), signInFile)); err != nil {
			return "", err
		}
	}
	in.hooks.Step("(root) serves at https://%s", root)
	return root, in.startSecond(ctx, "root", rootBinary, rootKeys, args)
}

// serve starts a daemon that listens, and returns its address.
func (in *installation) serve(ctx context.Context, name, binary, token string, args []string) (string, error) {
	file := filepath.Join(in.dir(name), "address")
	// Remove the address file of an earlier start, so that it is not read.
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	gossip, err := in.gossipArgs(name)
	if err != nil {
		return "", err
	}
	d := in.sup.start(child{
		name: name, binary: filepath.Join(in.cfg.Bin, binary), token: token, log: in.log(name),
		args: func() []string {
			return slices.Concat([]string{"--data", in.dir(name), "--listen", in.listen(name)}, gossip, args)
		},
	})
	addr, err := d.awaitFile(ctx, file)
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("%s reports the address %q: %w", name, addr, err)
	}
	return addr, in.update(func(s *state) { s.Listen[name] = net.JoinHostPort(in.host(name), port) })
}

func (in *installation) overlay() bool { return in.cfg.Network == api.NetworkOverlay }

// host returns the host that a daemon listens on: the configured one, or for clusters an address
// that their nodes' network namespaces can reach.
func (in *installation) host(name string) string {
	host, _, _ := net.SplitHostPort(in.cfg.Listen)
	name = strings.TrimSuffix(name, gossipOf)
	if ip := net.ParseIP(host); name != "root" && name != "root"+secondOf && in.overlay() && (host == "localhost" || ip != nil && ip.IsLoopback()) {
		return in.hosts.gateway().String()
	}
	return host
}

func (in *installation) log(name string) string {
	return filepath.Join(in.cfg.Data, "logs", name+".log")
}

// listen returns the address that a daemon listens on: that of earlier starts, so that certificates
// and tokens stay valid. The configured port is for the root only.
func (in *installation) listen(name string) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	if at := in.state.Listen[name]; at != "" {
		return at
	}
	if name == "root" {
		return in.cfg.Listen
	}
	return net.JoinHostPort(in.host(name), "0")
}

func (in *installation) joined(name string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.state.Joined[name]
}

func (in *installation) startClusters(ctx context.Context, a *client.Client) error {
	return all(in.cfg.Clusters, func(i int) error {
		name, token := clusterName(i), ""
		if !in.joined(name) {
			t, err := a.CreateJoinToken(ctx, api.TokenRequest{Kind: "cluster", Cluster: api.ClusterID(name), Tenant: in.cfg.Tenant, Uses: 1})
			if err != nil {
				return fmt.Errorf("create a join token for cluster %s: %w", name, err)
			}
			token = t.Token
		}
		args, err := in.haArgs(name)
		if err != nil {
			return err
		}
		args = append(args, "--name", name)
		if in.cfg.HA {
			broker, err := in.address(name + brokerOf)
			if err != nil {
				return err
			}
			args = append(args, "--broker-url", "mqtts://"+broker)
		}
		addr, err := in.serve(ctx, name, clusterBinary, token, args)
		if err != nil {
			return err
		}
		in.hooks.Step("(cluster %s) serves at https://%s", name, addr)
		if in.cfg.HA {
			if err := in.startBroker(ctx, name); err != nil {
				return err
			}
		}
		if err := in.startSecond(ctx, name, clusterBinary, clusterKeys, args); err != nil {
			return err
		}
		return in.update(func(s *state) { s.Joined[name] = true })
	})
}

func (in *installation) startNodes(ctx context.Context, a *client.Client) error {
	args, err := in.nodeArgs()
	if err != nil {
		return err
	}
	return all(in.cfg.Nodes, func(i int) error {
		cluster := clusterName(i % in.cfg.Clusters)
		name := in.nodeName(i)
		token := ""
		if !in.joined(name) {
			t, err := in.nodeToken(ctx, a, cluster)
			if err != nil {
				return fmt.Errorf("create a join token for node %s: %w", name, err)
			}
			token = t.Token
		}
		mine := append([]string{
			"--data", in.dir(name), "--name", name, "--files-dir", filepath.Join(in.dir(name), "files"),
			"--containerd-namespace", "treeline-dev-" + in.tag() + "-" + name,
			"--process-cgroup-parent", "/" + cgroupPrefix + in.tag() + "/" + name,
		}, args...)
		if in.overlay() {
			socket, err := in.startNet(ctx, name, i)
			if err != nil {
				return err
			}
			mine = append(mine, "--netmanager-socket", socket)
		}
		in.sup.start(child{
			name: name, binary: filepath.Join(in.cfg.Bin, nodeBinary), token: token, log: in.log(name),
			args: func() []string { return mine },
		})
		return nil
	})
}

// startNet starts the netmanager of node number i in the network namespace of the node, and returns
// the path of its socket.
func (in *installation) startNet(ctx context.Context, node string, i int) (string, error) {
	netns, err := in.hosts.host(ctx, node, i)
	if err != nil {
		return "", fmt.Errorf("create a network namespace for node %s: %w", node, err)
	}
	name := node + "-net"
	socket := filepath.Join(in.dir(name), "net.sock")
	if len(socket) > maxSockPath {
		socket = filepath.Join("/run", hostsPrefix+in.tag()+"-"+node+".sock")
	}
	args := []string{"--data", in.dir(name), "--credentials", in.dir(node), "--socket", socket}
	in.sup.start(child{
		name: name, binary: filepath.Join(in.cfg.Bin, netBinary), log: in.log(name), netns: netns, host: in.hosts.address(i).String(),
		args: func() []string { return args },
	})
	return socket, nil
}

// nodeToken creates a join token for a node. It retries, because a new cluster may not be connected
// to the root yet.
func (in *installation) nodeToken(ctx context.Context, a *client.Client, cluster string) (t api.JoinToken, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		t, err = a.CreateJoinToken(ctx, api.TokenRequest{Kind: "node", Cluster: api.ClusterID(cluster), Uses: 1})
		if !errors.Is(err, api.ErrUnavailable) {
			return t, err
		}
		select {
		case <-ctx.Done():
			return t, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tag identifies an installation in the names of containerd namespaces and cgroups. It is a hash of
// the data directory.
func (in *installation) tag() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(in.cfg.Data))
	return strconv.FormatUint(uint64(h.Sum32()), 36)
}

// offeredVCPUs returns the number of vCPUs that each node offers: all processors of the machine,
// and at least two, so that a workload of one vCPU, which most Oakestra documents request, fits in
// addition to the services of an example. All nodes together offer more than the machine has.
func offeredVCPUs(processors int) int { return max(2, processors) }

// nodeArgs returns the flags of all nodes. Each node offers an equal part of the machine's
// memory.
func (in *installation) nodeArgs() ([]string, error) {
	args := []string{"--runtime", in.cfg.Runtime, "--containerd-network", in.cfg.Network}
	if in.cfg.Containerd != "" {
		args = append(args, "--containerd-address", in.cfg.Containerd)
	}
	for _, d := range in.cfg.ImageDirs {
		args = append(args, "--containerd-image-dirs", d)
	}
	for _, d := range in.cfg.Allow {
		args = append(args, "--process-allow", d)
	}
	memory, err := machineMemory()
	if err != nil || in.cfg.Nodes == 0 {
		return args, err
	}
	offer, have := offeredVCPUs(runtime.NumCPU()), runtime.NumCPU()
	if offer*in.cfg.Nodes > have {
		in.hooks.Step("(nodes) each node offers %d vCPUs; the %d nodes share the %d processors of this machine", offer, in.cfg.Nodes, have)
	}
	return append(args, "--cpus", strconv.Itoa(offer), "--memory", strconv.FormatInt(memory/int64(in.cfg.Nodes), 10)), nil
}

func machineMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("measure the machine's memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("measure the machine's memory: /proc/meminfo has no MemTotal: %w", api.ErrNotFound)
}

// ready waits until the root's aggregates contain all nodes of each cluster.
func (in *installation) ready(ctx context.Context, a *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	missing := map[string]int{}
	for i := range in.cfg.Clusters {
		missing[clusterName(i)] = 0
	}
	for i := range in.cfg.Nodes {
		missing[clusterName(i%in.cfg.Clusters)]++
	}
	update := func(c api.Cluster) {
		if n, ok := missing[string(c.ID)]; ok && c.Status == api.ClusterReady && c.Aggregate.Nodes >= n {
			in.hooks.Step("(cluster %s) is ready, %d nodes", c.ID, c.Aggregate.Nodes)
			delete(missing, string(c.ID))
		}
	}
	clusters, rev, err := a.Clusters(ctx, client.ListOptions{})
	if err != nil {
		return err
	}
	for _, c := range clusters {
		update(c)
	}
	if len(missing) > 0 {
		for change, err := range client.Watch[api.Cluster](ctx, a, client.Clusters, client.WatchOptions{Since: rev}) {
			if err != nil {
				return err
			}
			if change.Object != nil {
				update(*change.Object)
			}
			if len(missing) == 0 {
				break
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d of %d clusters do not have all their nodes after %s; see the logs in %s: %w",
			len(missing), in.cfg.Clusters, startTime, filepath.Join(in.cfg.Data, "logs"), api.ErrTimeout)
	}
	return in.update(func(s *state) {
		for i := range in.cfg.Nodes {
			s.Joined[in.nodeName(i)] = true
		}
	})
}

func (in *installation) daemons() (out []Daemon) {
	for _, d := range in.sup.children() {
		kind := "node"
		switch {
		case strings.HasSuffix(d.binary, rootBinary):
			kind = "root"
		case d.name == storeName:
			kind = "store"
		case strings.HasSuffix(d.name, brokerOf):
			kind = "broker"
		case strings.HasSuffix(d.binary, clusterBinary):
			kind = "cluster"
		case strings.HasSuffix(d.binary, netBinary):
			kind = "net"
		}
		in.mu.Lock()
		addr := in.state.Listen[d.name]
		in.mu.Unlock()
		if kind == "net" {
			addr = d.host
		}
		out = append(out, Daemon{Name: d.name, Kind: kind, PID: d.PID(), Address: addr, Data: in.dir(d.name), Log: d.log})
	}
	return out
}

func (in *installation) load() error {
	text, err := os.ReadFile(filepath.Join(in.cfg.Data, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &in.state)
	}
	if err != nil {
		return fmt.Errorf("read the state of an earlier treeline dev: %w", err)
	}
	return nil
}

func (in *installation) update(fn func(*state)) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	fn(&in.state)
	text, err := json.MarshalIndent(in.state, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(in.cfg.Data, "."+stateFile)
	if err = os.WriteFile(tmp, append(text, '\n'), 0o600); err == nil {
		err = os.Rename(tmp, filepath.Join(in.cfg.Data, stateFile))
	}
	if err != nil {
		return fmt.Errorf("store the state: %w", err)
	}
	return nil
}

// all calls fn concurrently with 0 to n-1, and joins the errors.
func all(n int, fn func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
