package wiring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// testTime bounds the wait for an event. Other load may delay test machines for minutes.
const testTime = 4 * time.Minute

// The test binary is also the daemon that it tests.
const asDaemon = "TREELINE_TEST_NETMANAGER"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		daemon.Main("netmanager", Defaults(), Run)
	}
	os.Exit(m.Run())
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// world is a cluster whose hosts are network namespaces with a netmanager each.
type world struct {
	t     *testing.T
	tag   string
	root  *ca.Authority
	ca    *ca.Authority
	hosts []*testHost

	mu     sync.Mutex // guards the fields below, and the marked fields of hosts
	routes map[api.ServiceID]api.Route
	rev    uint64
}

const clusterID = api.ClusterID("munich")

// newWorld returns a world of n hosts on one link, whose netmanagers have leases.
func newWorld(t *testing.T, n int, args ...string) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
			t.Fatal("network namespaces need root")
		}
		t.Skip("network namespaces need root")
	}
	programtest.Need(t, "ip", "nft", "nsenter", "sysctl")
	now := time.Now()
	root := must[*ca.Authority](t)(ca.NewRoot(now))
	key, csr, err := ca.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := root.SignCluster(now, csr, clusterID)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, tag: fmt.Sprintf("tlw%x-%s", os.Getpid(), strings.ToLower(fmt.Sprintf("%p", &key)[6:])), root: root,
		ca: must[*ca.Authority](t)(ca.New(ca.Pair{Chain: chain, Key: key})), routes: map[api.ServiceID]api.Route{},
	}
	sw := w.netns("sw")
	w.sh("ip", "-n", sw, "link", "add", "name", "br0", "type", "bridge")
	w.sh("ip", "-n", sw, "link", "set", "br0", "up")
	for i := range n {
		w.host(i, sw, args)
	}
	for _, h := range w.hosts {
		h.start()
	}
	return w
}

func (w *world) sh(args ...string) {
	w.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// netns creates a network namespace that is deleted with the test.
func (w *world) netns(name string) string {
	w.t.Helper()
	name = w.tag + "-" + name
	w.sh("ip", "netns", "add", name)
	w.t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", name).Run() })
	w.sh("ip", "-n", name, "link", "set", "lo", "up")
	return name
}

func nsPath(name string) string { return "/run/netns/" + name }

// within runs fn on a thread in the network namespace.
func within[T any](ns string, fn func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		f, e := os.Open(nsPath(ns))
		if e != nil {
			err = e
			return
		}
		defer f.Close()
		if err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err == nil {
			v, err = fn()
		}
	}()
	<-done
	return v, err
}

// testHost is a machine with a netmanager and the part of a node engine that it needs.
type testHost struct {
	w      *world
	id     api.NodeID
	ns     string
	addr   netip.Addr
	dir    string
	args   []string
	sock   *netsock.Client
	lease  wire.NetLease
	cmd    *exec.Cmd
	ended  chan struct{}
	stop   context.CancelFunc         // of the node engine's part
	gone   chan struct{}              // closed when that has ended
	ready  chan struct{}              // closed when the netmanager is ready, per start
	self   *wire.NetSelf              // guarded by world.mu
	wants  map[wire.Subscription]bool // guarded by world.mu
	boot   uint64                     // guarded by world.mu
	seq    uint64                     // guarded by world.mu
	log    string
	socket string
}

// dir returns a directory with a short name: a socket's path is limited to 107 bytes.
func (w *world) dir() string {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "nm")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (w *world) host(i int, sw string, args []string) {
	w.t.Helper()
	id := api.NodeID(fmt.Sprintf("n%d", i+1))
	h := &testHost{
		w: w, id: id, ns: w.netns(string(id)), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}),
		dir: w.dir(), args: args, wants: map[wire.Subscription]bool{},
	}
	h.log, h.socket = filepath.Join(h.dir, "log"), filepath.Join(h.dir, "net.sock")
	h.sock = netsock.New(h.socket)
	r := wire.DefaultNetRanges()
	h.lease = wire.NetLease{
		Rev: 1, Node: id, Cluster: clusterID, Ranges: r,
		Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, byte(i), 0}), 26),
	}
	w.sh("ip", "-n", h.ns, "link", "add", "eth0", "type", "veth", "peer", "name", string(id), "netns", sw)
	w.sh("ip", "-n", sw, "link", "set", string(id), "master", "br0", "up")
	w.sh("ip", "-n", h.ns, "address", "add", h.addr.String()+"/24", "dev", "eth0")
	w.sh("ip", "-n", h.ns, "link", "set", "eth0", "up")
	now := time.Now()
	key, csr, err := ca.NewRequest()
	if err != nil {
		w.t.Fatal(err)
	}
	chain, err := w.ca.SignNode(now, csr, id)
	if err != nil {
		w.t.Fatal(err)
	}
	dir := must[*os.Root](w.t)(os.OpenRoot(h.dir))
	defer dir.Close()
	meta, _ := json.Marshal(map[string]any{"id": id, "cluster": clusterID, "url": "https://192.0.2.254:1"})
	if err := errors.Join(ca.SavePair(dir, "node.pem", ca.Pair{Chain: chain, Key: key}), dir.WriteFile("node.json", meta, 0o600)); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.hosts = append(w.hosts, h)
	w.mu.Unlock()
	w.t.Cleanup(func() {
		h.kill()
		if w.t.Failed() {
			text, _ := os.ReadFile(h.log)
			w.t.Logf("log of %s:\n%s", id, tailOf(string(text), 40))
		}
	})
}

func tailOf(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (h *testHost) command(more ...string) *exec.Cmd {
	args := append([]string{
		"--data", filepath.Join(h.dir, "net"), "--credentials", h.dir, "--socket", h.socket, "--log-level", "debug",
	}, h.args...)
	cmd := exec.Command("/proc/self/exe", append(args, more...)...)
	cmd.Env = []string{asDaemon + "=1", "PATH=" + os.Getenv("PATH")}
	return cmd
}

// start starts the netmanager and waits until it is ready.
func (h *testHost) start() {
	t := h.w.t
	t.Helper()
	log := must[*os.File](t)(os.OpenFile(h.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer log.Close()
	h.cmd = h.command()
	h.cmd.Stdout, h.cmd.Stderr = log, log
	if _, err := within(h.ns, func() (any, error) { return nil, h.cmd.Start() }); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	cmd := h.cmd
	go func() { _ = cmd.Wait(); close(ended) }()
	h.ended = ended
	ctx, cancel := context.WithCancel(context.Background())
	h.stop, h.gone, h.ready = cancel, make(chan struct{}), make(chan struct{})
	go h.engine(ctx, h.gone, h.ready)
	select {
	case <-h.ready:
	case <-h.ended:
		t.Fatalf("%s's netmanager ended: %s", h.id, h.cmd.ProcessState)
	case <-time.After(testTime):
		t.Fatalf("%s's netmanager is not ready after %v", h.id, testTime)
	}
}

// engine acts as a node engine: it reads events, and passes the cluster's messages on.
func (h *testHost) engine(ctx context.Context, gone, ready chan struct{}) {
	defer close(gone)
	once := sync.OnceFunc(func() { close(ready) })
	for ctx.Err() == nil {
		first := true
		_ = h.sock.Events(ctx, func(e wire.NetEvent) error {
			if first {
				first = false
				if err := h.sock.Link(ctx, true); err != nil {
					return err
				}
			}
			if e.Ready != nil && e.Ready.Ready {
				once()
			}
			if e.Up == nil {
				return nil
			}
			var up wire.NetUp
			if err := json.Unmarshal(e.Up, &up); err != nil {
				return err
			}
			return h.w.receive(ctx, h, up)
		})
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// kill ends the netmanager with SIGKILL, and the node engine's part.
func (h *testHost) kill() { h.end(syscall.SIGKILL) }

func (h *testHost) end(s syscall.Signal) {
	if h.cmd == nil {
		return
	}
	_ = h.cmd.Process.Signal(s)
	<-h.ended
	h.stop()
	<-h.gone
	h.cmd = nil
}

// receive acts as the cluster: it handles a node's message, and answers the nodes that it concerns.
func (w *world) receive(ctx context.Context, h *testHost, up wire.NetUp) error {
	w.mu.Lock()
	moved := false
	if up.Self != nil {
		moved = h.self == nil || !slices.Equal(h.self.Endpoints, up.Self.Endpoints)
		h.self = up.Self
		w.rev++
	}
	if up.Whole {
		clear(h.wants)
	}
	for _, x := range up.Subscribe {
		h.wants[x] = true
	}
	for _, x := range up.Unsubscribe {
		delete(h.wants, x)
	}
	h.boot, h.seq = up.Boot, up.Seq
	hosts := slices.Clone(w.hosts)
	w.mu.Unlock()
	if moved {
		for _, o := range hosts {
			if o != h {
				_ = w.sendDown(ctx, o) // a node that is disconnected requests it later
			}
		}
	}
	return w.sendDown(ctx, h)
}

// unencrypted allows some hosts to send without encryption on their network.
func (w *world) unencrypted(hosts ...*testHost) {
	w.t.Helper()
	w.mu.Lock()
	for _, h := range hosts {
		h.lease.Rev++
		h.lease.Unencrypted = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	}
	w.mu.Unlock()
	w.sendDownAll()
}

// tell sends a node all resources that it subscribes to.
func (w *world) sendDown(ctx context.Context, h *testHost) error {
	text, err := json.Marshal(w.answer(h))
	if err != nil {
		return err
	}
	return h.sock.Down(ctx, text)
}

// sendDownAll sends every node its state, after the test has changed something.
func (w *world) sendDownAll() {
	w.t.Helper()
	for _, h := range w.hosts {
		if h.cmd == nil {
			continue
		}
		if err := w.sendDown(w.t.Context(), h); err != nil {
			w.t.Fatalf("tell %s: %v", h.id, err)
		}
	}
}

func (w *world) answer(h *testHost) wire.NetDown {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rev++
	d := wire.NetDown{Boot: h.boot, Seq: h.seq, Rev: w.rev, Lease: &h.lease, Whole: true}
	for x := range h.wants {
		switch {
		case x.Service != "" && w.routes[x.Service].Service != "":
			d.Routes = append(d.Routes, w.filled(w.routes[x.Service]))
		case x.Address.IsValid():
			if r, ok := w.owner(x.Address); ok {
				d.Routes = append(d.Routes, w.filled(r))
				continue
			}
			if p := w.peer(x.Address); p != nil {
				d.Peers = append(d.Peers, *p)
				continue
			}
			d.Refused = append(d.Refused, wire.Refusal{Subscription: x})
		default:
			d.Refused = append(d.Refused, wire.Refusal{Subscription: x})
		}
	}
	slices.SortFunc(d.Routes, func(a, b api.Route) int { return strings.Compare(string(a.Service), string(b.Service)) })
	d.Routes = slices.CompactFunc(d.Routes, func(a, b api.Route) bool { return a.Service == b.Service })
	return d
}

func (w *world) owner(a netip.Addr) (api.Route, bool) {
	for _, r := range w.routes {
		if r.Addresses.RoundRobin == a || slices.ContainsFunc(r.Backends, func(b api.Backend) bool { return b.Address == a }) {
			return r, true
		}
	}
	return api.Route{}, false
}

// filled returns a route with the current peers of its backends.
func (w *world) filled(r api.Route) api.Route {
	r.Rev = w.rev
	r.Backends = slices.Clone(r.Backends)
	seen := map[api.PeerKey]bool{}
	for i, b := range r.Backends {
		if p := w.peer(b.Address); p != nil {
			r.Backends[i].Peer = p.Key
			if !seen[p.Key] {
				seen[p.Key] = true
				r.Peers = append(r.Peers, *p)
			}
		}
	}
	return r
}

// peer returns the node that has an instance's address.
func (w *world) peer(a netip.Addr) *api.Peer {
	for _, h := range w.hosts {
		if h.lease.Subnet.Contains(a) && h.self != nil {
			return &api.Peer{
				Key: h.self.Key, Cluster: clusterID, Node: h.id, Subnets: []netip.Prefix{h.lease.Subnet},
				Endpoints: h.self.Endpoints, Chain: h.self.Chain, Proof: h.self.Proof, Rev: w.rev,
			}
		}
	}
	return nil
}

// container is a network namespace that acts as an instance.
type container struct {
	host *testHost
	key  wire.Key
	ns   string
	as   wire.Attach
	at   wire.Attached
}

const tenant = api.Tenant("acme")

func service(name string) api.ServiceID { return tenant.App("shop", "prod").Service(name, "prod") }

// vip returns the round-robin address of service number n.
func vip(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, 0, byte(n)}) }

// run attaches an instance and adds it to the backends of its service at vip(n).
func (h *testHost) run(name string, number, n int, change ...func(*wire.Attach)) *container {
	t := h.w.t
	t.Helper()
	c := &container{host: h, key: wire.Key{Instance: service(name).Instance(number), Epoch: 1}, ns: h.w.netns(fmt.Sprintf("%s%d", name, number))}
	c.attach(change...)
	w := h.w
	w.mu.Lock()
	r := w.routes[service(name)]
	r.Service, r.Addresses.RoundRobin = service(name), vip(n)
	r.Backends = append(r.Backends, api.Backend{Instance: c.key.Instance, Epoch: c.key.Epoch, Address: c.at.Address, State: api.BackendUp})
	w.routes[service(name)] = r
	w.mu.Unlock()
	w.sendDownAll()
	return c
}

func (c *container) attach(change ...func(*wire.Attach)) {
	t := c.host.w.t
	t.Helper()
	a := wire.Attach{Key: c.key, NetNS: nsPath(c.ns)}
	for _, f := range change {
		f(&a)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTime)
	defer cancel()
	at, err := c.host.sock.Attach(ctx, a)
	if err != nil {
		t.Fatalf("attach %s: %v", c.key, err)
	}
	c.as, c.at = a, at
}

// ready waits until the netmanager has detected that the container listens, and the kernel is in
// sync.
func (c *container) ready() {
	t := c.host.w.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTime)
	defer cancel()
	for !c.at.Ready {
		at, err := c.host.sock.Attach(ctx, c.as)
		if err != nil {
			t.Fatalf("wait for %s to be ready: %v", c.key, err)
		}
		if c.at = at; !at.Ready {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// serve answers each connection with the container's name and echoes. It returns when others
// reach it.
func (c *container) serve(port int) {
	t := c.host.w.t
	t.Helper()
	ln, err := within(c.ns, func() (net.Listener, error) { return net.Listen("tcp", fmt.Sprintf(":%d", port)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, string(c.key.Instance)+"\n")
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	c.ready()
}

// dial connects from the container. A service refuses connections until one of its instances
// listens.
func (c *container) dial(to netip.Addr, port int) (conn net.Conn, err error) {
	for end := time.Now().Add(testTime); ; time.Sleep(10 * time.Millisecond) {
		conn, err = within(c.ns, func() (net.Conn, error) {
			return (&net.Dialer{Timeout: testTime}).Dial("tcp", netip.AddrPortFrom(to, uint16(port)).String())
		})
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(end) {
			return conn, err
		}
	}
}

// ask returns the name of the instance that answers at an address.
func (c *container) ask(to netip.Addr, port int) string {
	t := c.host.w.t
	t.Helper()
	conn, err := c.dial(to, port)
	if err != nil {
		t.Fatalf("%s to %s: %v", c.key, to, err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testTime))
	buf := make([]byte, 256)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatalf("%s to %s: %v", c.key, to, err)
	}
	return strings.TrimSpace(string(buf[:n]))
}
