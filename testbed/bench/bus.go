package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/broker"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

const (
	busNodes   = 16
	busPayload = 512
	perSample  = 2000 // messages per sample, of all nodes together
)

// busMessages measures messages of 512 bytes from 16 nodes to the cluster through the embedded
// broker, with TLS and client certificates. The baseline is the same bytes through TLS
// connections alone.
func busMessages(r *run) error {
	p, err := newPKI()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	b, err := broker.New(broker.Options{Identify: p.node, Log: quiet})
	if err != nil {
		return err
	}
	defer b.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := gate.New(ln, gate.Options{
		TLS: p.server(), Own: "bench", Log: quiet,
		Protos: map[string]func(context.Context, *tls.Conn){"": func(ctx context.Context, c *tls.Conn) { _ = b.ServeConn(ctx, c) }},
	})
	go func() { _ = port.Run(ctx) }()
	var heard atomic.Int64
	arrived := make(chan struct{}, 1)
	count := func(bus.Message) {
		if heard.Add(1)%perSample == 0 {
			arrived <- struct{}{}
		}
	}
	for _, leaf := range []topic.Leaf{topic.Alive, topic.Observed} {
		if err := b.Bus().Subscribe(ctx, leaf.Every(), leaf.QoS, count); err != nil {
			return err
		}
	}
	clients := make([]*mqtt.Client, busNodes)
	for i := range clients {
		conf, err := p.client(busNode(i))
		if err != nil {
			return err
		}
		if clients[i], err = mqtt.Dial(mqtt.Options{Addr: ln.Addr().String(), ClientID: string(busNode(i)), TLS: conf, Log: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		defer clients[i].Close()
		for up := range clients[i].Up() {
			if up {
				break
			}
		}
	}
	raw, err := newPipes(ctx, p)
	if err != nil {
		return err
	}
	defer raw.close()

	payload := make([]byte, busPayload)
	publish := func(leaf topic.Leaf) (float64, error) {
		began := time.Now()
		errs := make(chan error, busNodes)
		for i, c := range clients {
			go func() {
				var err error
				for range perSample / busNodes {
					if e := c.Publish(ctx, bus.Message{Topic: leaf.Of(busNode(i)), Payload: payload, QoS: leaf.QoS}); e != nil {
						err = e
					}
				}
				errs <- err
			}()
		}
		for range clients {
			if err := <-errs; err != nil {
				return 0, err
			}
		}
		select {
		case <-arrived:
		case <-time.After(time.Minute):
			return 0, fmt.Errorf("%d messages arrived at %s", heard.Load()%perSample, leaf.Name)
		}
		return perSample / time.Since(began).Seconds(), nil
	}
	var qos0, qos1, floor series
	for range r.n {
		for _, m := range []struct {
			to *series
			fn func() (float64, error)
		}{
			{&floor, raw.once},
			{&qos0, func() (float64, error) { return publish(topic.Alive) }},
			{&qos1, func() (float64, error) { return publish(topic.Observed) }},
		} {
			w := watch("")
			v, err := m.fn()
			if err != nil {
				return err
			}
			m.to.add(v, w.disturbed())
		}
	}
	base := quantile(floor.values, 0.5)
	r.emit(qos0.record("bus.qos0", "msg/s").over("TLS alone", base).noting("%d nodes, %d bytes; both ends on this machine", busNodes, busPayload))
	r.emit(qos1.record("bus.qos1", "msg/s").over("TLS alone", base).noting("each node waits for its acknowledgement"))
	return nil
}

func busNode(i int) api.NodeID { return api.NodeID(fmt.Sprintf("n%d", i)) }

// pki has the certificates of an installation for one benchmark.
type pki struct {
	root, cluster *ca.Authority
	verifier      *trust.Verifier
	serverCert    *tls.Certificate
}

func newPKI() (*pki, error) {
	p := &pki{}
	var err error
	if p.root, err = ca.NewRoot(time.Now()); err != nil {
		return nil, err
	}
	key, csr, err := ca.NewRequest()
	if err != nil {
		return nil, err
	}
	chain, err := p.root.SignCluster(time.Now(), csr, "bench")
	if err != nil {
		return nil, err
	}
	if p.cluster, err = ca.New(ca.Pair{Chain: chain, Key: key}); err != nil {
		return nil, err
	}
	if key, csr, err = ca.NewRequest(); err != nil {
		return nil, err
	}
	if chain, err = p.cluster.SignOwn(time.Now(), csr, "127.0.0.1"); err != nil {
		return nil, err
	}
	p.serverCert = ca.Pair{Chain: chain, Key: key}.TLS(false)
	p.verifier = trust.New(p.root.Root())
	return p, nil
}

func (p *pki) server() *tls.Config {
	c := p.verifier.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.serverCert, nil }, true)
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c
}

func (p *pki) client(id api.NodeID) (*tls.Config, error) {
	key, csr, err := ca.NewRequest()
	if err != nil {
		return nil, err
	}
	chain, err := p.cluster.SignNode(time.Now(), csr, id)
	if err != nil {
		return nil, err
	}
	cert := ca.Pair{Chain: chain, Key: key}.TLS(false)
	return p.verifier.Client(identity.OfCluster("bench"), func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }), nil
}

func (p *pki) node(s tls.ConnectionState) (api.NodeID, error) {
	id, err := p.verifier.Peer(s)
	return id.Node, err
}

// pipes are plain TLS connections.
type pipes struct {
	conns []net.Conn
	got   chan struct{} // receives once per connection and sample
	ln    net.Listener
}

const pipeBytes = perSample / busNodes * busPayload

func newPipes(ctx context.Context, p *pki) (*pipes, error) {
	ln, err := tls.Listen("tcp", "127.0.0.1:0", p.server())
	if err != nil {
		return nil, err
	}
	out := &pipes{got: make(chan struct{}, busNodes), ln: ln}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for {
					if _, err := io.CopyN(io.Discard, c, pipeBytes); err != nil {
						return
					}
					out.got <- struct{}{}
				}
			}()
		}
	}()
	for i := range busNodes {
		conf, err := p.client(busNode(i))
		if err != nil {
			return nil, err
		}
		c, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		out.conns = append(out.conns, c)
	}
	return out, nil
}

// once sends the bytes of a sample, one TLS record per message.
func (p *pipes) once() (float64, error) {
	payload := make([]byte, busPayload)
	began := time.Now()
	errs := make(chan error, busNodes)
	for _, c := range p.conns {
		go func() {
			var err error
			for range perSample / busNodes {
				if _, e := c.Write(payload); e != nil {
					err = e
				}
			}
			errs <- err
		}()
	}
	for range p.conns {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	for range p.conns {
		<-p.got
	}
	return perSample / time.Since(began).Seconds(), nil
}

func (p *pipes) close() {
	_ = p.ln.Close()
	for _, c := range p.conns {
		_ = c.Close()
	}
}
