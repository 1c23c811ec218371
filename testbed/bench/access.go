package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/remote"
	"github.com/treeline-edge/treeline/internal/forward"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

const (
	// The node's link. On an unlimited one the processors of this machine are the limit, which
	// compute TLS for three hops and not for one.
	linkRate  = "100mbit"
	linkDelay = 5 * time.Millisecond // in each direction

	accessBytes = 16 << 20
)

// accessToWorkloads measures streams to a node on a slow link: how much longer an exec's round trip is
// than that of TLS on the link, and the throughput of a port-forward compared with that of TLS.
func accessToWorkloads(r *run) error {
	return inRig(r, func(g *rig) error {
		o := &lab.Overlay{Lab: lab.New(g, lab.Options{RootArgs: quiet}), Net: netlab.New(g)}
		hub, cluster, node := o.Net.Host("hub"), o.Net.Host("c1"), o.Net.Host("n0")
		hub.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
		o.Net.Join(cluster, "eth0", "203.0.113.2/30", hub, "c1", "203.0.113.1/30")
		cluster.Route("default", "203.0.113.1")
		o.First = o.Cluster("c1", lab.ClusterOptions{Host: cluster, Address: "203.0.113.2", Args: quiet})
		o.Net.Slow(node, "eth0", "198.51.100.2/30", hub, "n0", "198.51.100.1/30", linkDelay, 0, 1)
		node.Route("default", "198.51.100.1")
		node.Run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", linkRate, "burst", "256kb", "latency", "50ms")
		o.First.Node("n0", lab.NodeOptions{Containers: true, CPUs: 4, Host: node, Overlay: true, Args: quiet})
		o.Ready(o.First, 1)
		m := o.Container("source", 1)
		m.Cmd, m.Environment = []string{"/app", "source"}, []string{"PORT=80"}
		o.Apply(lab.App("shop", lab.Needing(m, 0.5, 128)))
		o.Wait("it runs", o.Running("shop", "source", 1))
		id := o.ID("shop", "source", 0)

		direct, err := newDirect(cluster, node)
		if err != nil {
			return err
		}
		defer direct.close()
		e, err := newTerminal(r.ctx, o.API, id)
		if err != nil {
			return err
		}
		defer e.Close()
		conn, err := remote.Dial(r.ctx, o.API, id, "portforward", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		session, err := forward.Client(conn)
		if err != nil {
			return err
		}
		defer session.Close()

		var rtt, trip, over, link, forwarded series
		for i := range r.n + 1 {
			w := watch(o.Dir)
			a, err := direct.roundTrip()
			if err != nil {
				return err
			}
			b, err := e.roundTrip()
			if err != nil {
				return err
			}
			bare, err := direct.throughput()
			if err != nil {
				return err
			}
			c, err := session.Open(forward.Target{Protocol: "tcp", Port: 80})
			if err != nil {
				return err
			}
			near, far := net.Pipe()
			go c.Copy(far)
			through, err := timeBytes(near)
			_ = near.Close()
			if err != nil {
				return err
			}
			if i == 0 {
				continue // opens windows
			}
			bad := w.disturbed()
			rtt.add(ms(a), bad)
			trip.add(ms(b), bad)
			over.add(ms(b-a), bad)
			link.add(bare, bad)
			forwarded.add(through, bad)
		}
		r.emit(rtt.record("access.tls.round_trip", "ms"))
		r.emit(trip.record("access.exec.round_trip", "ms").over("TLS on the node's link", quantile(rtt.values, 0.5)))
		r.emit(over.record("access.exec.above_network", "ms").atMost(5))
		r.emit(link.record("access.tls.throughput", "Mbit/s"))
		f := forwarded.record("access.portforward.throughput", "Mbit/s").over("TLS on the node's link", quantile(link.values, 0.5))
		r.emit(f.atLeast(0.8*quantile(link.values, 0.5)).noting("link of %s with a round trip of %s; user, root and cluster on this machine", linkRate, 2*linkDelay))
		return nil
	})
}

// terminal is an exec that answers with its input.
type terminal struct {
	*remote.Conn
	out *frames.Writer
	in  *frames.Reader
}

func newTerminal(ctx context.Context, a *client.Client, id api.InstanceID) (*terminal, error) {
	conn, err := remote.Dial(ctx, a, id, "exec", client.ExecQuery(api.Exec{Args: []string{"/app", "cat"}, Stdin: true}))
	if err != nil {
		return nil, err
	}
	return &terminal{conn, frames.NewWriter(conn), frames.NewReader(conn)}, nil
}

func (e *terminal) roundTrip() (time.Duration, error) {
	began := time.Now()
	if err := e.out.Write(frames.Stdin, []byte("x")); err != nil {
		return 0, err
	}
	k, p, err := e.in.Next()
	if err == nil && (k != frames.Stdout || string(p) != "x") {
		err = fmt.Errorf("exec answers with frame %d %q", k, p)
	}
	return time.Since(began), err
}

// direct is a TLS connection from the node's host to the cluster's. Its server, at the cluster,
// measures; the node echoes a byte and sends zeros for any other.
type direct struct {
	conn *tls.Conn
	ln   net.Listener
}

func newDirect(at, from *netlab.Host) (*direct, error) {
	srv := httptest.NewTLSServer(nil) // for its certificate
	cert := srv.TLS.Certificates[0]
	srv.Close()
	d := &direct{}
	var err error
	at.Do(func() { d.ln, err = net.Listen("tcp", "203.0.113.2:0") })
	if err != nil {
		return nil, err
	}
	var node net.Conn
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := d.ln.Accept()
		accepted <- c
	}()
	from.Do(func() { node, err = net.Dial("tcp", d.ln.Addr().String()) })
	if err != nil {
		return nil, err
	}
	far := tls.Client(node, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a benchmark's own server
	go func() {
		defer far.Close()
		b := make([]byte, 1)
		block := make([]byte, 64<<10)
		for {
			if _, err := io.ReadFull(far, b); err != nil {
				return
			}
			if b[0] == 'x' {
				_, _ = far.Write(b)
				continue
			}
			for n := 0; n < accessBytes; n += len(block) {
				if _, err := far.Write(block); err != nil {
					return
				}
			}
		}
	}()
	d.conn = tls.Server(<-accepted, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
	return d, d.conn.Handshake()
}

func (d *direct) close() {
	_ = d.conn.Close()
	_ = d.ln.Close()
}

func (d *direct) roundTrip() (time.Duration, error) {
	began := time.Now()
	if _, err := d.conn.Write([]byte("x")); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(d.conn, make([]byte, 1))
	return time.Since(began), err
}

func (d *direct) throughput() (float64, error) {
	if _, err := d.conn.Write([]byte("s")); err != nil {
		return 0, err
	}
	return timeBytes(d.conn)
}

// timeBytes reads accessBytes and returns the throughput in Mbit/s.
func timeBytes(c io.Reader) (float64, error) {
	began := time.Now()
	_, err := io.CopyN(io.Discard, c, accessBytes)
	return 8 * float64(accessBytes) / 1e6 / time.Since(began).Seconds(), err
}
