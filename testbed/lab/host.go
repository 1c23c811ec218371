package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// ClusterPort is the port of clusters on a separate host.
const ClusterPort = 7443

// on runs a program on a host: in the host's network, with this machine's files.
func on(h *netlab.Host, args []string) []string {
	if h == nil {
		return args
	}
	return append([]string{"nsenter", "--net=/var/run/netns/" + h.Netns()}, args...)
}

// space opens sockets in a network namespace, from a separate thread.
type space struct{ run chan func() }

// spaceAt enters the namespace at a path until the lab ends.
func (l *Lab) spaceAt(path string) *space {
	l.t.Helper()
	s := &space{run: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ready <- enter(path)
		for {
			select {
			case f := <-s.run:
				f()
			case <-l.ctx.Done():
				return
			}
		}
	}()
	if err := <-ready; err != nil {
		l.t.Fatalf("enter %s: %v", path, err)
	}
	return s
}

func enter(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

// spaceOf returns a host's network; a nil space is this machine's.
func (l *Lab) spaceOf(h *netlab.Host) *space {
	if h == nil {
		return nil
	}
	return l.spaceAt("/var/run/netns/" + h.Netns())
}

// do runs f in the namespace. f must not block for long, because other calls wait for it.
func (s *space) do(f func()) {
	if s == nil {
		f()
		return
	}
	done := make(chan struct{})
	s.run <- func() { defer close(done); f() }
	<-done
}

// listen listens on the namespace's loopback.
func (s *space) listen() (ln net.Listener, err error) {
	s.do(func() { ln, err = net.Listen("tcp", "127.0.0.1:0") })
	return ln, err
}

func (s *space) dial(to string) (c net.Conn, err error) {
	s.do(func() { c, err = net.DialTimeout("tcp", to, 5*time.Second) })
	return c, err
}

// Inside opens connections in a workload's network namespace, with its address, routes and
// names.
type Inside struct {
	l    *Lab
	W    Workload
	net  string
	pool sync.Pool
}

// Inside returns the Inside of a running instance.
func (l *Lab) Inside(id api.InstanceID) *Inside {
	l.t.Helper()
	w := l.Workload(id)
	in := &Inside{l: l, W: w, net: fmt.Sprintf("/proc/%d/ns/net", w.PID)}
	in.pool.New = func() any { return l.spaceAt(in.net) }
	return in
}

// Dial connects to an address with a port, or to a name that it resolves with the workload's
// own resolv.conf.
func (in *Inside) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	if address, err = in.resolve(ctx, address); err != nil {
		return nil, err
	}
	s := in.pool.Get().(*space)
	defer in.pool.Put(s)
	s.do(func() { c, err = (&net.Dialer{}).DialContext(ctx, network, address) })
	return c, err
}

// Listen listens on TCP at the workload's address.
func (in *Inside) Listen(address string) (ln net.Listener, err error) {
	s := in.pool.Get().(*space)
	defer in.pool.Put(s)
	s.do(func() { ln, err = net.Listen("tcp", address) })
	return ln, err
}

// ListenPacket is Listen for UDP.
func (in *Inside) ListenPacket(address string) (c net.PacketConn, err error) {
	s := in.pool.Get().(*space)
	defer in.pool.Put(s)
	s.do(func() { c, err = net.ListenPacket("udp", address) })
	return c, err
}

// Lookup queries the node's resolver, as the workload would.
func (in *Inside) Lookup(ctx context.Context, network, name string) ([]net.IP, error) {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return in.Dial(ctx, network, net.JoinHostPort(wire.ResolverAddr.String(), "53"))
	}}
	return r.LookupIP(ctx, network, name+".")
}

// Who returns the name of the instance of testbed/workload that answers a new connection.
func (in *Inside) Who(address string, within time.Duration) (api.InstanceID, error) {
	ctx, cancel := context.WithTimeout(in.l.ctx, within)
	defer cancel()
	return who(ctx, in.Dial, address)
}

func who(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), address string) (api.InstanceID, error) {
	c := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var id struct {
		Instance api.InstanceID `json:"instance"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&id)
	return id.Instance, err
}

// netmanager prepares a node's netmanager, with the socket in the node engine's
// configuration.
func (n *Node) netmanager(h *netlab.Host, args ...string) {
	l := n.lab
	data := n.Data + "-net"
	n.NetSocket = filepath.Join(data, "net.sock")
	n.Net = l.proc(n.Name+"-net", on(h, append([]string{
		filepath.Join(l.bin, "netmanager"), "--data", data, "--socket", n.NetSocket, "--credentials", n.Data, "--log-level", "debug",
	}, args...))...)
}

// Peers returns the peers of the node.
func (n *Node) Peers() []api.PeerStatus {
	l := n.lab
	l.t.Helper()
	peers, err := n.Cluster.API.OwnNodes().Peers(l.ctx, n.ID)
	if err != nil {
		l.t.Fatalf("peers of %s: %v", n.ID, err)
	}
	return peers
}

// Addresses returns a service's semantic addresses.
func (l *Lab) Addresses(app, service string) api.ServiceAddresses {
	l.t.Helper()
	all, _, err := l.API.Services(l.ctx, client.ListOptions{Tenant: l.Tenant})
	if err != nil {
		l.t.Fatalf("list services: %v", err)
	}
	for _, s := range all {
		if s.ID == l.ServiceID(app, service) {
			return s.Addresses
		}
	}
	l.t.Fatalf("service %s of %s does not exist", service, app)
	return api.ServiceAddresses{}
}
