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
	linkDelay = "10ms" // in each direction, of the node's packets only: the round trip

	accessBytes = 16 << 20
)

// accessToWorkloads measures streams to a node on a slow link: how much longer an exec's round trip is
// than that of TLS on the link, and the throughput of a port-forward compared with that of TLS.
func accessToWorkloads(r *run) error {
	return inRig(r, func(g *rig) error {
		o := lab.NewOverlay(g, lab.Options{RootArgs: quiet}, quiet...)
		o.Node(o.First, netlab.None, quiet...)
		o.Ready(o.First, 1)
		m := o.Container("source", 1)
		m.Cmd, m.Environment = []string{"/app", "source"}, []string{"PORT=80"}
		o.Apply(lab.App("shop", lab.Needing(m, 0.5, 128)))
		o.Wait("it runs", o.Running("shop", "source", 1))
		id := o.ID("shop", "source", 0)
		h := o.Hosts[0]
		h.Run("tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "delay", linkDelay, "rate", linkRate, "limit", "10000")

		direct, err := newDirect(o)
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
		r.emit(f.atLeast(0.8*quantile(link.values, 0.5)).noting("link of %s with a round trip of %s; user, root and cluster on this machine", linkRate, linkDelay))
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

func newDirect(o *lab.Overlay) (*direct, error) {
	srv := httptest.NewTLSServer(nil) // for its certificate
	cert := srv.TLS.Certificates[0]
	srv.Close()
	d := &direct{}
	var err error
	o.First.Host().Do(func() { d.ln, err = net.Listen("tcp", "203.0.113.1:0") })
	if err != nil {
		return nil, err
	}
	var node net.Conn
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := d.ln.Accept()
		accepted <- c
	}()
	o.Hosts[0].Do(func() { node, err = net.Dial("tcp", d.ln.Addr().String()) })
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
