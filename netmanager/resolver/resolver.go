// Package resolver is the name server of a node's instances. It answers names under "treeline" and the
// overlay's addresses from the core's state (Overlay), and forwards other questions to the machine's name
// servers. It serves only this node's instances, and bounds each of them. Package
// netmanager/overlay/names defines names.
//
//	r := resolver.New(resolver.Config{Overlay: o})
//	g.Go(func() error { return r.Run(ctx, netip.AddrPortFrom(wire.ResolverAddr, 53)) })
//	r.Answered("web.treeline.") // the overlay has an answer now
package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
)

// Overlay resolves names. Its methods are safe for concurrent use.
//
// Local reports whether the address belongs to an instance on this node. It is called for every packet
// and does not block.
//
// Lookup returns what a name resolves to for an instance. For an unknown name it asks the cluster, and
// the caller of Resolver calls Answered when there is an answer. It fails if ctx ends.
//
// Covers reports whether a name under in-addr.arpa or ip6.arpa is that of an address in the overlay. It
// fails if ctx ends.
type Overlay interface {
	Local(client netip.Addr) bool
	Lookup(ctx context.Context, client netip.Addr, name string) (overlay.Answer, error)
	Covers(ctx context.Context, name string) (bool, error)
}

// Config configures a resolver. Zero values mean the defaults.
type Config struct {
	Overlay Overlay
	// Servers answer names outside the overlay. nil: the servers in ResolvConf, which is read again when
	// it changes.
	Servers    []netip.AddrPort
	ResolvConf string        // "/etc/resolv.conf"
	Wait       time.Duration // for the cluster's first answer to a name: 1 s
	Forward    time.Duration // for a server's answer: 2 s
	Rate       int           // queries per second and client: 200, and twice that at once
	PerClient  int           // queries of a client at the same time: 64
	InFlight   int           // queries at the same time: 512
	Log        *slog.Logger  // slog.Default
}

const (
	// udpSize is the largest answer over UDP in bytes: it passes every path without
	// fragments (RFC 9715).
	udpSize = 1232
	// maxTTL bounds the TTL of the overlay's names, in seconds.
	maxTTL = 5
	// udpRead is the timeout of a read. The library's default of two seconds would wake an idle node
	// every two seconds.
	udpRead = time.Hour
	tcpIdle = 5 * time.Second
)

// Resolver is a name server. Its methods are safe for concurrent use.
type Resolver struct {
	cfg     Config
	gate    gate
	forward *forwarder

	mu      sync.Mutex                 // guards waiting
	waiting map[string][]chan struct{} // by name in lower case
}

// New returns a resolver that serves in Run.
func New(c Config) *Resolver {
	c.Rate = cmp.Or(c.Rate, 200)
	c.PerClient = cmp.Or(c.PerClient, queries.Share[0])
	c.InFlight = cmp.Or(c.InFlight, queries.Total)
	c.ResolvConf = cmp.Or(c.ResolvConf, "/etc/resolv.conf")
	c.Wait = cmp.Or(c.Wait, time.Second)
	c.Forward = cmp.Or(c.Forward, 2*time.Second)
	c.Log = cmp.Or(c.Log, slog.Default())
	return &Resolver{cfg: c, gate: newGate(c), forward: newForwarder(c), waiting: map[string][]chan struct{}{}}
}

// Run serves UDP and TCP on the address until ctx ends. The machine need not have the address yet.
func (r *Resolver) Run(ctx context.Context, at netip.AddrPort) error {
	lc := net.ListenConfig{Control: freebind}
	pc, err := lc.ListenPacket(ctx, "udp", at.String())
	if err != nil {
		return fmt.Errorf("serve names on %s: %w", at, err)
	}
	if at.Port() == 0 {
		at = pc.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	ln, err := lc.Listen(ctx, "tcp", at.String())
	if err != nil {
		pc.Close()
		return fmt.Errorf("serve names on %s: %w", at, err)
	}
	return r.Serve(ctx, pc, ln)
}

// Serve serves on a socket and a listener, and closes them.
func (r *Resolver) Serve(ctx context.Context, pc net.PacketConn, ln net.Listener) error {
	local, _ := netip.ParseAddrPort(pc.LocalAddr().String())
	r.forward.avoid(local)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { r.serve(ctx, w, q) })
	servers := []*dns.Server{
		{
			PacketConn: pc, Handler: handler, UDPSize: 4096, MsgAcceptFunc: accept, DecorateReader: r.gate.reader,
			ReadTimeout: udpRead,
		},
		{
			Listener: r.gate.listener(ln), Handler: handler, MsgAcceptFunc: accept,
			ReadTimeout: tcpIdle, WriteTimeout: tcpIdle, IdleTimeout: func() time.Duration { return tcpIdle }, MaxTCPQueries: 128,
		},
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range servers {
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		g.Go(func() error {
			defer close(ended)
			if err := s.ActivateAndServe(); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serve names: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			select {
			case <-started:
				grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), tcpIdle)
				defer cancel()
				_ = s.ShutdownContext(grace) // pending answers may be cut off
			case <-ended: // the server failed to start
			}
			return nil
		})
	}
	err := g.Wait()
	pc.Close()
	ln.Close()
	return err
}

// Answered wakes the look-ups of a name that wait.
func (r *Resolver) Answered(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name = strings.ToLower(name)
	for _, c := range r.waiting[name] {
		close(c)
	}
	delete(r.waiting, name)
}

// accept rejects messages that are not plain queries, for example those with answer records.
func accept(h dns.Header) dns.MsgAcceptAction {
	a := dns.DefaultMsgAcceptFunc(h)
	if a == dns.MsgAccept && (h.Ancount > 0 || h.Nscount > 0 || h.Bits>>11&0xF != dns.OpcodeQuery) {
		return dns.MsgRejectNotImplemented
	}
	return a
}

// serve answers one query. It drops the query if its client exceeds its bound.
func (r *Resolver) serve(ctx context.Context, w dns.ResponseWriter, q *dns.Msg) {
	client, err := netip.ParseAddrPort(w.RemoteAddr().String())
	if err != nil || !r.cfg.Overlay.Local(client.Addr().Unmap()) {
		return // no refusal, because the source may be forged
	}
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	leave, ok := r.gate.enter(client.Addr().Unmap(), time.Now())
	if !ok {
		if tcp { // over UDP the client repeats the query; over TCP it would wait
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
		}
		return
	}
	defer leave()
	reply := r.answer(ctx, client.Addr().Unmap(), q, tcp)
	if reply == nil {
		return
	}
	size := dns.MaxMsgSize
	if !tcp {
		size = dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = min(max(int(o.UDPSize()), dns.MinMsgSize), udpSize)
		}
	}
	if q.IsEdns0() == nil {
		reply.Extra = slices.DeleteFunc(reply.Extra, isOPT)
	} else if reply.IsEdns0() == nil {
		reply.SetEdns0(udpSize, false)
	}
	reply.Compress = true
	reply.Truncate(size)
	_ = w.WriteMsg(reply) // the client repeats a query without an answer
}

func isOPT(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }

// answer returns the reply to a query; nil: none.
func (r *Resolver) answer(ctx context.Context, client netip.Addr, q *dns.Msg, tcp bool) *dns.Msg {
	if len(q.Question) != 1 {
		return new(dns.Msg).SetRcode(q, dns.RcodeFormatError)
	}
	question := q.Question[0]
	o := q.IsEdns0()
	switch {
	case o != nil && o.Version() != 0:
		return new(dns.Msg).SetRcode(q, dns.RcodeBadVers) // RFC 6891, 6.1.3
	case question.Qclass != dns.ClassINET:
		return new(dns.Msg).SetRcode(q, dns.RcodeNotImplemented)
	case question.Qtype == dns.TypeANY || question.Qtype == dns.TypeAXFR || question.Qtype == dns.TypeIXFR:
		return new(dns.Msg).SetRcode(q, dns.RcodeNotImplemented) // large answers enable amplification attacks (RFC 8482)
	}
	own, err := r.covers(ctx, question.Name)
	switch {
	case err != nil: // do not forward a name that may be in the overlay
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	case own:
		return r.own(ctx, client, q)
	}
	m, err := r.forward.exchange(ctx, client, q, tcp)
	if err != nil {
		r.cfg.Log.Debug("name not resolved", "name", question.Name, "err", err)
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	}
	return m
}

func (r *Resolver) covers(ctx context.Context, name string) (bool, error) {
	if _, reverse := names.Reverse(name); !reverse || names.Under(name) {
		return names.Under(name), nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Wait)
	defer cancel()
	return r.cfg.Overlay.Covers(ctx, name)
}

func (r *Resolver) own(ctx context.Context, client netip.Addr, q *dns.Msg) *dns.Msg {
	question := q.Question[0]
	a, err := r.await(ctx, client, question.Name)
	if err != nil || a.Failed {
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	}
	reply := new(dns.Msg).SetReply(q)
	reply.Authoritative, reply.RecursionAvailable = true, true
	if !a.Found {
		reply.Rcode = dns.RcodeNameError
	}
	ttl := uint32(min(max(a.Stay/time.Second, 0), maxTTL))
	head := func(name string, t uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: t, Class: dns.ClassINET, Ttl: ttl}
	}
	switch question.Qtype {
	case dns.TypeA:
		for _, ip := range a.Addrs {
			reply.Answer = append(reply.Answer, &dns.A{Hdr: head(question.Name, dns.TypeA), A: ip.AsSlice()})
		}
	case dns.TypeAAAA:
		for _, ip := range a.Addrs6 {
			reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: head(question.Name, dns.TypeAAAA), AAAA: ip.AsSlice()})
		}
	case dns.TypePTR:
		if a.PTR != "" {
			reply.Answer = append(reply.Answer, &dns.PTR{Hdr: head(question.Name, dns.TypePTR), Ptr: a.PTR})
		}
	case dns.TypeSRV:
		for _, t := range a.SRV {
			reply.Answer = append(reply.Answer, &dns.SRV{Hdr: head(question.Name, dns.TypeSRV), Priority: 0, Weight: t.Weight, Port: t.Port, Target: t.Name})
			reply.Extra = append(reply.Extra, &dns.A{Hdr: head(t.Name, dns.TypeA), A: t.Address.AsSlice()})
			if t.Address6.IsValid() {
				reply.Extra = append(reply.Extra, &dns.AAAA{Hdr: head(t.Name, dns.TypeAAAA), AAAA: t.Address6.AsSlice()})
			}
		}
	case dns.TypeSOA:
		if dns.CanonicalName(question.Name) == soa().Hdr.Name {
			reply.Answer = append(reply.Answer, soa())
		}
	}
	if len(reply.Answer) == 0 {
		reply.Ns = append(reply.Ns, soa())
	}
	return reply
}

// soa returns the SOA record of a negative answer. Its TTL is short (RFC 2308), because the service may
// be created soon.
func soa() *dns.SOA {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: wire.Domain + ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1},
		Ns:  "resolver." + wire.Domain + ".", Mbox: "nobody." + wire.Domain + ".", Serial: 1, Refresh: 5, Retry: 1, Expire: 5, Minttl: 1,
	}
}

var errWaitOver = errors.New("no answer in time")

// await looks a name up and waits up to Config.Wait for the cluster's first answer. Without an answer,
// the name does not exist for now or the look-up fails (see overlay.Answer.Failed).
func (r *Resolver) await(ctx context.Context, client netip.Addr, name string) (overlay.Answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.Wait, errWaitOver)
	defer cancel()
	for {
		wake := r.listen(name) // before Lookup, so that no answer is missed
		a, err := r.cfg.Overlay.Lookup(ctx, client, name)
		switch {
		case err == nil && a.Known, err != nil && ctx.Err() == nil:
			r.unlisten(name, wake)
			return a, err
		case ctx.Err() != nil:
			r.unlisten(name, wake)
			return afterWait(ctx, overlay.Answer{Failed: err != nil || a.Failed})
		}
		select {
		case <-wake:
		case <-ctx.Done():
			r.unlisten(name, wake)
			return afterWait(ctx, a)
		}
	}
}

// afterWait returns the answer after Config.Wait; an error if the resolver stops.
func afterWait(ctx context.Context, a overlay.Answer) (overlay.Answer, error) {
	if err := context.Cause(ctx); !errors.Is(err, errWaitOver) {
		return overlay.Answer{}, err
	}
	return overlay.Answer{Known: true, Failed: a.Failed, Stay: time.Second}, nil
}

func (r *Resolver) listen(name string) chan struct{} {
	c := make(chan struct{})
	name = strings.ToLower(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[name] = append(r.waiting[name], c)
	return c
}

func (r *Resolver) unlisten(name string, c chan struct{}) {
	name = strings.ToLower(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.DeleteFunc(r.waiting[name], func(w chan struct{}) bool { return w == c })
	if r.waiting[name] = all; len(all) == 0 {
		delete(r.waiting, name)
	}
}

// freebind allows to listen on an address that netmanager/link has not added yet.
func freebind(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }); e != nil {
		return e
	}
	return err
}
