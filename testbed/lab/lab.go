package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// T is the part of testing.TB that a lab needs. Benchmarks implement it too.
type T interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(fn func())
}

// Options configure a lab. The zero value is a root with its defaults.
type Options struct {
	RootDisk int64    // bytes of a separate disk for the root's data; 0: none
	RootArgs []string // further flags
	Bin      string   // directory of the daemons' programs; empty: Bin. See Proc.Upgrade
	// Replicas starts two roots that share a FerretDB, which FerretDB names, on a disk of StoreDisk bytes.
	Replicas  bool
	StoreDisk int64
}

// Lab is one installation.
type Lab struct {
	Dir      string     // contains all its files
	Tenant   api.Tenant // unique, to identify the lab's processes
	Program  string     // what Process runs
	Root     *Proc
	RootDisk *Disk          // the root's, if Options.RootDisk
	API      *client.Client // the admin's, over a link that does not change with the root's address
	RootLink *Link
	// Replicas and the disk of their store, if Options has them.
	Replicas  *Replicas
	StoreDisk *Disk

	t        T
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	bin      string
	ca       []byte
	admin    *session
	board    *board
	procs    []*Proc
	links    []*Link
	rootData string
	ctrd     *Containerd
}

const (
	adminPassword = "lab admin's password"
	operatorToken = "the-lab-operators-own-token"
)

// New starts a root and signs in. The lab ends with the test.
func New(t T, o Options) *Lab {
	t.Helper()
	bin := cmp.Or(o.Bin, Bin(t))
	dir, err := os.MkdirTemp("", "lab-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	// Workloads run as user nobody, and their shims access their files here.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the daemons protect their secrets
		t.Fatalf("%v", err)
	}
	var id [4]byte
	_, _ = rand.Read(id[:])
	l := &Lab{
		Dir: dir, Tenant: api.Tenant("lab" + hex.EncodeToString(id[:])), Program: filepath.Join(Bin(t), "workload"),
		t: t, bin: bin, board: newBoard(), rootData: filepath.Join(dir, "root"),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	j, err := startJanitor(dir, string(l.Tenant))
	if err != nil {
		t.Fatalf("start the janitor: %v", err)
	}
	t.Cleanup(func() { l.close(j) })

	if o.RootDisk > 0 {
		l.RootDisk = l.disk("root", o.RootDisk)
	}
	l.RootLink = l.link()
	args := o.RootArgs
	if o.Replicas {
		args = append(l.replicas(o.StoreDisk), args...)
	}
	l.Root = l.proc("root", append([]string{
		filepath.Join(bin, "root-orchestrator"), "--data", l.rootData, "--listen", "127.0.0.1:0",
		"--url", "https://" + l.RootLink.Addr(), "--log-level", "debug",
	}, args...)...)
	l.StartRoot()
	l.signIn()
	if o.Replicas {
		l.Replicas.second(o.RootArgs...)
	}
	if err := l.API.CreateTenant(l.ctx, l.Tenant, "lab"); err != nil {
		t.Fatalf("create the lab's tenant: %v", err)
	}
	l.board.watch(l.ctx, l.API, &l.wg)
	return l
}

// For reports failures to t, a subtest, until the returned function is called.
func (l *Lab) For(t T) (restore func()) {
	was := l.t
	l.t = t
	return func() { l.t = was }
}

// StartRoot starts the root, also after it has ended, and directs its link to it.
func (l *Lab) StartRoot() {
	l.t.Helper()
	l.Root.Start()
	l.RootLink.To(l.address(l.rootData))
}

// Replica starts a further root, which shares the store of the first one, and returns when it is a standby.
// Options.RootArgs has the replica and store flags.
func (l *Lab) Replica(name string, args ...string) *Proc {
	l.t.Helper()
	data := filepath.Join(l.Dir, name)
	if err := os.Mkdir(data, 0o700); err != nil {
		l.t.Fatalf("%v", err)
	}
	for _, key := range []string{"root-ca.pem", "token-keys.json", "secrets.key"} {
		text, err := os.ReadFile(filepath.Join(l.rootData, key))
		if err == nil {
			err = os.WriteFile(filepath.Join(data, key), text, 0o600)
		}
		if err != nil {
			l.t.Fatalf("copy the keys for %s: %v", name, err)
		}
	}
	p := l.proc(name, append([]string{
		filepath.Join(l.bin, "root-orchestrator"), "--data", data, "--url", "https://" + l.RootLink.Addr(), "--log-level", "debug",
	}, args...)...)
	p.Start()
	return p
}

// address returns the address that a daemon wrote to its data directory.
func (l *Lab) address(data string) string {
	l.t.Helper()
	text, err := os.ReadFile(filepath.Join(data, "address"))
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	return strings.TrimSpace(string(text))
}

func (l *Lab) link() *Link { return l.linkBetween(nil, nil) }

// linkBetween returns a link from one host's network to another's; nil is this machine.
func (l *Lab) linkBetween(from, to *netlab.Host) *Link {
	l.t.Helper()
	ln, err := l.spaceOf(from).listen()
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	far := l.spaceOf(to)
	k := newLinkAt(ln, far.dial)
	l.links = append(l.links, k)
	return k
}

func (l *Lab) signIn() {
	l.t.Helper()
	text, err := os.ReadFile(filepath.Join(l.rootData, "first-sign-in"))
	for end := time.Now().Add(patience); os.IsNotExist(err) && time.Now().Before(end); { // a replica is ready before it is active
		time.Sleep(10 * time.Millisecond)
		text, err = os.ReadFile(filepath.Join(l.rootData, "first-sign-in"))
	}
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	user, code, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if l.ca, err = os.ReadFile(filepath.Join(l.rootData, "ca.pem")); err != nil {
		l.t.Fatalf("%v", err)
	}
	open := l.Client(nil)
	s, err := open.Redeem(l.ctx, api.Redeem{User: user, Code: code, Password: adminPassword})
	if err != nil {
		l.t.Fatalf("sign in: %v", err)
	}
	l.admin = &session{open: open, user: user, access: s.Access, at: time.Now()}
	l.API = l.Client(l.admin)
}

// Client returns another client of the root.
func (l *Lab) Client(tokens client.Tokens) *client.Client {
	l.t.Helper()
	if r := l.Replicas; r != nil {
		return l.ClientAt(tokens, "https://"+r.addrs[0], "https://"+r.addrs[1])
	}
	return l.ClientAt(tokens, "https://"+l.RootLink.Addr())
}

// ClientAt returns a client of the root's replicas at these URLs.
func (l *Lab) ClientAt(tokens client.Tokens, url string, replicas ...string) *client.Client {
	l.t.Helper()
	c, err := client.New(client.Options{URL: url, Replicas: replicas, CA: l.ca, Tokens: tokens})
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	return c
}

// session is a user's access token. The root limits how often an address signs in, so all clients of the
// user share it.
type session struct {
	open   *client.Client
	mu     sync.Mutex // guards access and at
	user   string
	access string
	at     time.Time // of the sign-in
}

// keepAccess leaves a token most of its life, for commands that run for minutes.
const keepAccess = time.Minute

// Token implements client.Tokens. It signs in again when the token is refused.
func (s *session) Token(ctx context.Context, refused string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused == s.access {
		return s.renew(ctx)
	}
	return s.access, nil
}

// recent returns a token that is not older than keepAccess.
func (s *session) recent(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) > keepAccess {
		return s.renew(ctx)
	}
	return s.access, nil
}

// renew signs in. mu is held.
func (s *session) renew(ctx context.Context) (string, error) {
	n, err := s.open.Login(ctx, api.Login{User: s.user, Password: adminPassword})
	if err != nil {
		return "", err
	}
	s.access, s.at = n.Access, time.Now()
	return s.access, nil
}

// Access returns an access token of the admin, which is valid for minutes.
func (l *Lab) Access() string {
	l.t.Helper()
	_, err := l.API.WhoAmI(l.ctx) // signs in again if the token was revoked, such as by a restored backup
	access := ""
	if err == nil {
		access, err = l.admin.recent(l.ctx)
	}
	if err != nil {
		l.t.Fatalf("sign in: %v", err)
	}
	return access
}

// Cluster is one cluster of a lab.
type Cluster struct {
	*Proc
	ID   api.ClusterID
	Link *Link          // between nodes and the cluster, named in tokens; each node has another one
	Up   *Link          // from the cluster to the root
	API  *client.Client // its operator's
	Data string
	Disk *Disk // if ClusterOptions.Disk
	// Broker is a Mosquitto, if ClusterOptions.Mosquitto.
	Broker *Proc
	// Roots are the links to the addresses that replicas of the root tell the cluster.
	Roots []*Link

	lab        *Lab
	host       *netlab.Host
	brokerAddr string
}

// ClusterOptions configure a cluster.
type ClusterOptions struct {
	Disk int64    // bytes of a separate disk; 0: none
	Args []string // further flags
	Env  []string
	// Host is the cluster's host with its Address; nil is this machine.
	Host    *netlab.Host
	Address string
	// Mosquitto is the directory deploy/mosquitto, for an external broker on Host; empty: the embedded one.
	Mosquitto string
}

// Cluster makes a cluster join the root and waits until it has reported to it.
func (l *Lab) Cluster(id api.ClusterID, o ClusterOptions) *Cluster {
	l.t.Helper()
	c := &Cluster{ID: id, Data: filepath.Join(l.Dir, string(id)), lab: l, host: o.Host}
	c.Link, c.Up = l.linkBetween(nil, o.Host), l.linkBetween(o.Host, nil)
	listen, url := "127.0.0.1:0", "https://"+c.Link.Addr()
	if o.Host != nil {
		listen = fmt.Sprintf("%s:%d", o.Address, ClusterPort)
		url = "https://" + listen
	}
	if o.Disk > 0 {
		c.Disk = l.disk(string(id), o.Disk)
	}
	if l.Replicas != nil && o.Host != nil {
		c.Roots = l.Replicas.mirror(o.Host)
	}
	if o.Mosquitto != "" {
		o.Args = append(o.Args, "--broker-url", "mqtts://"+net.JoinHostPort(o.Address, brokerPort))
	}
	tok := l.token(api.TokenRequest{Kind: "cluster"}, c.Up)
	c.Up.To(l.RootLink.Addr())
	c.Proc = l.proc(string(id), on(o.Host, append([]string{
		filepath.Join(l.bin, "cluster-orchestrator"), "--data", c.Data, "--name", string(id), "--listen", listen,
		"--url", url, "--log-level", "debug",
	}, o.Args...))...)
	c.env = append(c.env, append([]string{"TREELINE_TOKEN=" + tok, "TREELINE_OPERATOR_TOKEN=" + operatorToken}, o.Env...)...)
	c.Launch()
	if o.Mosquitto != "" {
		c.mosquitto(o.Mosquitto, o.Address)
		c.StartBroker()
	}
	c.WaitReady()
	c.Link.To(l.address(c.Data))
	c.API = c.As(client.Static(operatorToken))
	l.Wait("the root hears cluster "+string(id), func(v View) bool { return v.Clusters[id].Status == api.ClusterReady })
	return c
}

// As returns another client of the cluster.
func (c *Cluster) As(tokens client.Tokens) *client.Client {
	c.lab.t.Helper()
	as, err := client.New(client.Options{
		URL: "https://" + c.Link.Addr(), CA: c.lab.ca, Expect: "treeline://cluster/" + string(c.ID), Tokens: tokens,
	})
	if err != nil {
		c.lab.t.Fatalf("%v", err)
	}
	return as
}

// NodeOf returns a node as the cluster shows it to its operator.
func (c *Cluster) NodeOf(id api.NodeID) (n api.Node, err error) {
	_, err = c.API.Do(c.lab.ctx, client.Request{Method: http.MethodGet, Path: "/v1/nodes/" + string(id)}, &n)
	return n, err
}

// Ready returns the error in the cluster's /readyz, nil if it is ready.
func (c *Cluster) Ready() error {
	_, err := c.API.Do(c.lab.ctx, client.Request{Method: http.MethodGet, Path: "/readyz", Open: true}, nil)
	return err
}

// Start starts the cluster, also after it has ended, and directs its link to it.
func (c *Cluster) Start() {
	c.lab.t.Helper()
	c.Proc.Start()
	c.Link.To(c.lab.address(c.Data))
}

// Restart ends the cluster with SIGKILL, if it runs, and starts it again.
func (c *Cluster) Restart() {
	c.lab.t.Helper()
	c.Kill9()
	c.Start()
}

// token creates a join token whose URL is the link's.
func (l *Lab) token(r api.TokenRequest, through *Link) string {
	l.t.Helper()
	made, err := l.API.CreateJoinToken(l.ctx, r)
	if err != nil {
		l.t.Fatalf("create a join token: %v", err)
	}
	tok, err := jointoken.Parse(made.Token)
	if err != nil {
		l.t.Fatalf("read a join token: %v", err)
	}
	tok.URL = "https://" + through.Addr()
	return tok.Line()
}

// Node is one node of a cluster.
type Node struct {
	*Proc
	ID      api.NodeID
	Cluster *Cluster
	Link    *Link // to its cluster
	Token   string
	Data    string
	Disk    *Disk // if NodeOptions.Disk

	Net       *Proc // its netmanager, if NodeOptions.Overlay
	NetSocket string
}

// NodeOptions configure a node. The zero value offers one vCPU and 1024 MiB to plain
// processes.
type NodeOptions struct {
	Containers bool // in the lab's containerd instead of plain processes
	CPUs       float64
	Memory     int64  // MiB
	Disk       int64  // bytes of a separate disk; 0: none
	Token      string // to join with; empty: a new one
	Args       []string
	Name       string // in an Overlay; empty: n and its number
	// Host is the node's host; nil is this machine. Overlay also starts a netmanager, with
	// NetArgs.
	Host    *netlab.Host
	Overlay bool
	NetArgs []string
}

// Node makes a node join the cluster and waits until it is ready.
func (c *Cluster) Node(name string, o NodeOptions) *Node {
	c.lab.t.Helper()
	n := c.NewNode(name, o)
	n.Start()
	if n.Net != nil {
		n.Net.Start()
	}
	return n
}

// NewNode prepares a node with a join token without starting it.
func (c *Cluster) NewNode(name string, o NodeOptions) *Node {
	l := c.lab
	l.t.Helper()
	if o.CPUs == 0 {
		o.CPUs = 1
	}
	if o.Memory == 0 {
		o.Memory = 1024
	}
	n := &Node{ID: api.NodeID(name), Cluster: c, Data: filepath.Join(l.Dir, name)}
	n.Link = l.linkBetween(o.Host, o.Host)
	if o.Disk > 0 {
		n.Disk = l.disk(name, o.Disk)
	}
	n.Link.To(c.Link.Addr())
	if o.Host != nil {
		n.Link.To(l.address(c.Data))
	}
	n.Token = o.Token
	if n.Token == "" {
		n.Token = l.token(api.TokenRequest{Kind: "node", Cluster: c.ID}, n.Link)
	}
	base := filepath.Base(l.Dir)
	args := []string{
		filepath.Join(l.bin, "node-engine"), "--data", n.Data, "--name", name, "--log-level", "debug",
		"--cpus", strconv.FormatFloat(o.CPUs, 'f', -1, 64), "--memory", strconv.FormatInt(o.Memory, 10),
	}
	if o.Containers {
		ctrd := l.Containerd()
		args = append(args, "--runtime", "containerd", "--containerd-address", ctrd.Address,
			"--containerd-namespace", base+"-"+name, "--containerd-image-dirs", ctrd.Images, "--files-dir", l.Files())
	} else {
		args = append(args, "--runtime", "process", "--process-allow", filepath.Dir(l.Program),
			"--process-cgroup-parent", "/treeline/"+base+"-"+name)
	}
	if o.Overlay {
		args = append(args, "--netmanager-socket", filepath.Join(n.Data+"-net", "net.sock"))
	}
	n.Proc = l.proc(name, on(o.Host, append(args, o.Args...))...)
	if o.Overlay {
		n.netmanager(o.Host, o.NetArgs...)
	}
	n.env = append(n.env, "TREELINE_TOKEN="+n.Token)
	return n
}

// Files returns the directory in memory for the files of workloads, of all nodes.
func (l *Lab) Files() string { return filepath.Join("/dev/shm", filepath.Base(l.Dir)) }

// Status returns the path of the node's status socket.
func (n *Node) Status() string { return filepath.Join(n.Data, "status.sock") }

// Ready returns the error in the node's /readyz, nil if it is ready.
func (n *Node) Ready() error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.Status())
	}
	c := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := c.Get("http://node/readyz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		return errors.New(string(text))
	}
	return nil
}

// KillAll ends the node's engine and all its workloads, like a power cut.
func (n *Node) KillAll() {
	n.Kill9()
	for _, w := range n.lab.Workloads() {
		if w.Node == n.Name {
			w.Kill9()
		}
	}
}

// Purge runs node-engine purge on the node's machine, while the engine does not run, and
// returns what it prints.
func (n *Node) Purge() (string, error) {
	at := slices.Index(n.args, filepath.Join(n.lab.bin, "node-engine")) + 1
	args := slices.Concat(n.args[:at], []string{"purge", "--yes"}, n.args[at:])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Dir = n.env, "/"
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Apply applies an SLA for the lab's tenant.
func (l *Lab) Apply(sla api.SLA) {
	l.t.Helper()
	if err := l.TryApply(Encode(sla)); err != nil {
		l.t.Fatalf("apply: %v", err)
	}
}

// TryApply applies any text and returns the error.
func (l *Lab) TryApply(text []byte) error {
	_, err := l.API.Apply(l.ctx, text, client.ApplyOptions{Tenant: l.Tenant})
	return err
}

// Delete deletes an application and waits until nothing of it is left.
func (l *Lab) Delete(app string) {
	l.t.Helper()
	if _, err := l.API.DeleteApp(l.ctx, l.Tenant.App(app, Namespace), 0); err != nil {
		l.t.Fatalf("delete %s: %v", app, err)
	}
	l.Wait(app+" is gone", l.Gone(app))
}

// Scale sets the replicas of a service.
func (l *Lab) Scale(app, service string, n int) {
	l.t.Helper()
	if _, err := l.API.Scale(l.ctx, l.ServiceID(app, service), n, 0); err != nil {
		l.t.Fatalf("scale %s: %v", service, err)
	}
}

// Context ends with the lab.
func (l *Lab) Context() context.Context { return l.ctx }

// Explain logs the present state and the ends of the daemons' logs.
func (l *Lab) Explain() {
	l.t.Helper()
	l.t.Logf("%s", l.Story())
	for _, p := range l.procs {
		l.t.Logf("the end of %s's log:\n%s", p.Name, tail(p.log, 12))
	}
}

// close ends the lab. If the test failed, it explains the lab.
func (l *Lab) close(j *janitor) {
	if l.t.Failed() {
		l.Explain()
	}
	l.cancel()
	for _, p := range l.procs {
		p.Kill9()
		_ = p.ready.Close()
	}
	for _, k := range l.links {
		k.Close()
	}
	if l.API != nil {
		l.API.Close()
	}
	l.wg.Wait()
	_ = os.RemoveAll(l.Files())
	if l.ctrd != nil {
		l.ctrd.Kill9()
	}
	if err := j.close(); err != nil {
		l.t.Errorf("%v", err)
	}
}

// Stopwatch returns a function that returns the time since this call.
func Stopwatch() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// User returns a client of a new user of the lab's tenant.
func (l *Lab) User(name string, roles ...string) *client.Client {
	l.t.Helper()
	c, _ := l.UserWithToken(name, roles...)
	return c
}

// UserWithToken is User with the user's access token.
func (l *Lab) UserWithToken(name string, roles ...string) (c *client.Client, token string) {
	l.t.Helper()
	invited, err := l.API.CreateUser(l.ctx, string(l.Tenant)+"/"+name, roles...)
	if err != nil {
		l.t.Fatalf("create user %s: %v", name, err)
	}
	s, err := l.Client(nil).Redeem(l.ctx, api.Redeem{User: invited.User, Code: invited.Code, Password: adminPassword})
	if err != nil {
		l.t.Fatalf("sign in as %s: %v", name, err)
	}
	return l.Client(client.Static(s.Access)), s.Access
}
