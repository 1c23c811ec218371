// Package packetqueue queues packets without a route while the core requests one: packets to an address
// that no instance on this node has used, or from one that this node does not know. The data plane sends
// them to a TUN device of the queue (tunnel/tun). When the route is known, they are written back to it
// unchanged. If there is no route, the sender gets an ICMP error. No packet waits longer than a second,
// unless Hold keeps it for a service that starts, and memory is bounded.
//
//	q := packetqueue.New(dev, packetqueue.Config{Local: local, To4: to4, Miss: miss})
//	g.Go(func() error { return q.Run(ctx) })
//	q.Release(remote)              // the data plane has the route now
//	q.Refuse(local, remote, false) // there is no route
package packetqueue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
)

// Device is the TUN device that packets come from and return to, as frames: a vnet header of
// offload.VnetLen bytes and a packet. Read and Write are each called by one goroutine at a time. Close
// ends a waiting Read with net.ErrClosed.
type Device interface {
	Read(b []byte, idle func()) (int, error)
	Write(parts [][]byte) error
	Close() error
}

// Config has functions that the queue calls from Run for every packet. They must not block.
type Config struct {
	// Local reports whether an IPv4 address belongs to an endpoint on this node.
	Local func(netip.Addr) bool
	// To4 returns the IPv4 address in the overlay for a packet's IPv4 or IPv6 address; zero if it has
	// none (wire.NetRanges.To4).
	To4 func(netip.Addr) netip.Addr
	// Miss reports that a packet between a local endpoint and a remote address waits. It is repeated
	// every missInterval while packets arrive.
	Miss func(local, remote netip.Addr)
}

// Queue holds packets. Its methods are safe for concurrent use.
type Queue struct {
	dev    Device
	cfg    Config
	errors *fairshare.Rates // of ICMP errors, by endpoint

	write sync.Mutex // guards the device's Write

	dropped atomic.Uint64

	mu     sync.Mutex // guards the fields below
	store  store
	expiry *time.Timer
}

// The rate of ICMP errors to one endpoint (RFC 1812, 4.3.2.8).
const (
	errorRate  = 10 // a second
	errorBurst = 50
	// maxEndpoints bounds the endpoints whose limiters are kept; a node has fewer.
	maxEndpoints = 1024
)

var errorBound = fairshare.Bound{Resource: "ICMP errors", Total: maxEndpoints}

// New returns a queue that reads the device in Run.
func New(dev Device, c Config) *Queue {
	return &Queue{dev: dev, cfg: c, store: newStore(), errors: fairshare.NewRates(errorBound, errorRate, errorBurst)}
}

// maxFailedReads is how many consecutive reads may fail, in about a second, before Run fails.
const maxFailedReads = 100

// Run reads packets until ctx ends or the device fails, and closes the device. It returns nil when ctx
// ends.
func (q *Queue) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { q.dev.Close() })
	defer func() {
		if stop() {
			q.dev.Close()
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.expiry != nil {
			q.expiry.Stop()
		}
	}()
	b := make([]byte, offload.VnetLen+offload.MaxPacket)
	for failed := 0; ; {
		n, err := q.dev.Read(b, nil)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			// A failed read loses one packet. A device that keeps failing must not be polled in a tight
			// loop or for ever.
			if failed++; failed == maxFailedReads || errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("read packets for the queue: %w", err)
			}
			if !pause(ctx) {
				return nil
			}
			continue
		}
		failed = 0
		if n > offload.VnetLen {
			q.take(time.Now(), b[:n])
		}
	}
}

func pause(ctx context.Context) bool {
	t := time.NewTimer(10 * time.Millisecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (q *Queue) take(now time.Time, frame []byte) {
	p, ok := parse(frame[offload.VnetLen:])
	local, remote, ok2 := q.sides(p)
	if !ok || !ok2 {
		q.dropped.Add(1)
		return
	}
	q.mu.Lock()
	kept, ask := q.store.add(now, local, remote, frame)
	if !kept {
		q.dropped.Add(1)
	}
	q.schedule(now)
	q.mu.Unlock()
	if ask {
		q.cfg.Miss(local, remote)
	}
}

// sides returns the packet's address on this node and the remote one.
func (q *Queue) sides(p packet) (local, remote netip.Addr, ok bool) {
	if !p.src.IsValid() {
		return local, remote, false
	}
	src, dst := q.cfg.To4(p.src), q.cfg.To4(p.dst)
	if !src.IsValid() || !dst.IsValid() {
		return local, remote, false
	}
	switch {
	case q.cfg.Local(src):
		return src, dst, true
	case q.cfg.Local(dst):
		return dst, src, true
	}
	return local, remote, false
}

// schedule starts the timer for the next packet that expires. q.mu is held.
func (q *Queue) schedule(now time.Time) {
	next := q.store.next()
	if next.IsZero() {
		return
	}
	if q.expiry == nil {
		q.expiry = time.AfterFunc(next.Sub(now), q.expire)
		return
	}
	q.expiry.Reset(next.Sub(now))
}

func (q *Queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	before := q.store.count
	q.store.expire(now)
	q.dropped.Add(uint64(before - q.store.count))
	q.schedule(now)
}

// Release writes the packets that wait for the remote address back to the device in order, because the
// data plane has the route.
func (q *Queue) Release(remote netip.Addr) {
	q.mu.Lock()
	out := q.store.take(netip.Addr{}, remote)
	q.mu.Unlock()
	for _, w := range out {
		q.send(w.frame[:offload.VnetLen], w.frame[offload.VnetLen:])
	}
}

// Hold keeps the packets that wait for the remote address, and later ones, for a time instead of a
// second, because an instance starts. Release and Refuse end it.
func (q *Queue) Hold(remote netip.Addr, d time.Duration) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.store.hold(remote, now.Add(d))
	q.schedule(now)
}

// Refuse drops the packets between the local endpoint, or all endpoints if local is zero, and the remote
// address. Local senders get an ICMP error: prohibited if denied is set, otherwise unreachable.
func (q *Queue) Refuse(local, remote netip.Addr, denied bool) {
	now := time.Now()
	q.mu.Lock()
	out := q.store.take(local, remote)
	q.mu.Unlock()
	q.dropped.Add(uint64(len(out)))
	for _, w := range out {
		b := w.frame[offload.VnetLen:]
		p, ok := parse(b)
		if ok && q.cfg.To4(p.src) == w.local && p.refusable(b) && q.errors.Allow(now, "", w.local.String()) == nil {
			q.send(make([]byte, offload.VnetLen), unreachable(p, b, denied))
		}
	}
}

func (q *Queue) send(vnet, packet []byte) {
	q.write.Lock()
	defer q.write.Unlock()
	if q.dev.Write([][]byte{vnet, packet}) != nil {
		q.dropped.Add(1) // the sender retransmits
	}
}

// Stats returns how many packets wait, and how many were dropped since the start.
func (q *Queue) Stats() (waiting int, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.store.count, q.dropped.Load()
}
