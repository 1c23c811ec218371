// Package hold keeps the packets of which the data plane does not know the way,
// while the overlay's core asks for it: to an address that nobody here has used,
// or from one that nobody here has heard of. They come through a TUN device of
// their own, and go back into it when the way is known, as they were. Where it
// leads nowhere, who sent them is told by ICMP. Nothing waits longer than a
// second, and a flood takes no more than a fixed amount of memory.
//
// The device is tunnel/tun's; that packets come to it is the data plane's doing,
// what is asked is overlay's.
//
//	h := hold.New(dev, hold.Config{Local: local, Untwin: untwin, Miss: miss})
//	g.Go(func() error { return h.Run(ctx) })
//	h.Release(remote)              // the plane knows it now
//	h.Refuse(local, remote, false) // it leads nowhere
package hold

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
)

// Device is where packets come from and go back to: frames of a vnet header
// (offload.VnetLen bytes) and a packet. Read is called by one goroutine, Write by
// one at a time. Close ends a Read that waits, with net.ErrClosed.
type Device interface {
	Read(b []byte, idle func()) (int, error)
	Write(parts [][]byte) error
	Close() error
}

// Config is whom a hold speaks to. The functions are called from Run, for every
// packet, and must not block.
type Config struct {
	// Local reports whether the address, IPv4, is an endpoint's on this node.
	Local func(netip.Addr) bool
	// Untwin is the IPv4 address of the overlay network that an address of a packet
	// stands for, or the zero Addr (api.NetRanges).
	Untwin func(netip.Addr) netip.Addr
	// Miss tells of a packet between a local endpoint and a remote address that waits.
	// It comes again while packets wait, a few times a second.
	Miss func(local, remote netip.Addr)
}

// Hold holds. Its methods are safe for concurrent use.
type Hold struct {
	dev Device
	cfg Config

	write sync.Mutex // guards the device's Write

	mu      sync.Mutex // guards what follows
	keeper  keeper
	errors  map[netip.Addr]*allowance
	dropped uint64
	expiry  *time.Timer
}

// allowance is what one endpoint may have still.
type allowance struct {
	left float64
	at   time.Time
}

// take takes one, of rate a second and burst at once.
func (a *allowance) take(now time.Time, rate, burst float64) bool {
	if d := now.Sub(a.at).Seconds(); d > 0 {
		a.left, a.at = min(burst, a.left+d*rate), now
	}
	if a.left < 1 {
		return false
	}
	a.left--
	return true
}

// The bounds of ICMP errors to one endpoint (RFC 1812, 4.3.2.8).
const (
	errorRate  = 10 // a second
	errorBurst = 50
	// errorsMax is when the allowances of endpoints are forgotten; a node has fewer.
	errorsMax = 1024
)

// New is a hold that does not read yet.
func New(dev Device, c Config) *Hold {
	return &Hold{dev: dev, cfg: c, keeper: newKeeper(), errors: map[netip.Addr]*allowance{}}
}

// mostFailed is how many reads in a row fail before the device counts as broken: a second.
const mostFailed = 100

// Run reads until ctx ends, which is no error, or the device does. It closes it.
func (h *Hold) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { h.dev.Close() })
	defer func() {
		if stop() {
			h.dev.Close()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.expiry != nil {
			h.expiry.Stop()
		}
	}()
	b := make([]byte, offload.VnetLen+offload.MaxPacket)
	for failed := 0; ; {
		n, err := h.dev.Read(b, nil)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			// One read that failed is one packet that is lost; a device that fails for
			// good must not be asked as fast as a processor can, nor for ever.
			if failed++; failed == mostFailed || errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("hold packets: %w", err)
			}
			if !pause(ctx) {
				return nil
			}
			continue
		}
		failed = 0
		if n > offload.VnetLen {
			h.take(time.Now(), b[:n])
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

// take holds one frame.
func (h *Hold) take(now time.Time, frame []byte) {
	p, ok := parse(frame[offload.VnetLen:])
	local, remote, ok2 := h.sides(p)
	if !ok || !ok2 {
		h.mu.Lock()
		h.dropped++
		h.mu.Unlock()
		return
	}
	h.mu.Lock()
	kept, ask := h.keeper.add(now, local, remote, frame)
	if !kept {
		h.dropped++
	}
	h.schedule(now)
	h.mu.Unlock()
	if ask {
		h.cfg.Miss(local, remote)
	}
}

// sides says which of a packet's ends is an endpoint of this node.
func (h *Hold) sides(p packet) (local, remote netip.Addr, ok bool) {
	if !p.src.IsValid() {
		return local, remote, false
	}
	src, dst := h.cfg.Untwin(p.src), h.cfg.Untwin(p.dst)
	if !src.IsValid() || !dst.IsValid() {
		return local, remote, false
	}
	switch {
	case h.cfg.Local(src):
		return src, dst, true
	case h.cfg.Local(dst):
		return dst, src, true
	}
	return local, remote, false
}

// schedule has expire called when something has waited too long: nobody wakes up
// where nothing waits. h.mu is held.
func (h *Hold) schedule(now time.Time) {
	next := h.keeper.next()
	if next.IsZero() {
		return
	}
	if h.expiry == nil {
		h.expiry = time.AfterFunc(next.Sub(now), h.expire)
		return
	}
	h.expiry.Reset(next.Sub(now))
}

func (h *Hold) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	before := h.keeper.count
	h.keeper.expire(now)
	h.dropped += uint64(before - h.keeper.count)
	h.schedule(now)
}

// Release sends on what waits for the remote address, in the order in which it
// came: the plane knows the way now.
func (h *Hold) Release(remote netip.Addr) {
	h.mu.Lock()
	out := h.keeper.take(netip.Addr{}, remote)
	h.mu.Unlock()
	for _, w := range out {
		h.send(w.frame[:offload.VnetLen], w.frame[offload.VnetLen:])
	}
}

// Refuse answers with ICMP what the local endpoint has waiting for the remote
// address, or what anybody has where local is the zero Addr, and drops it. Denied
// says that it is policy that forbids it; else there is nobody. What a remote
// sender sent is dropped without a word.
func (h *Hold) Refuse(local, remote netip.Addr, denied bool) {
	now := time.Now()
	h.mu.Lock()
	out := h.keeper.take(local, remote)
	h.dropped += uint64(len(out))
	h.mu.Unlock()
	for _, w := range out {
		b := w.frame[offload.VnetLen:]
		p, ok := parse(b)
		if ok && h.cfg.Untwin(p.src) == w.local && p.refusable(b) && h.mayTell(w.local, now) {
			h.send(make([]byte, offload.VnetLen), unreachable(p, b, denied))
		}
	}
}

func (h *Hold) mayTell(local netip.Addr, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.errors[local]
	if a == nil {
		if len(h.errors) >= errorsMax {
			clear(h.errors)
		}
		a = &allowance{left: errorBurst, at: now}
		h.errors[local] = a
	}
	return a.take(now, errorRate, errorBurst)
}

func (h *Hold) send(vnet, packet []byte) {
	h.write.Lock()
	defer h.write.Unlock()
	if h.dev.Write([][]byte{vnet, packet}) != nil {
		h.mu.Lock()
		h.dropped++ // whoever sent it sends it again
		h.mu.Unlock()
	}
}

// Stats is how many packets wait, and how many were dropped or refused.
func (h *Hold) Stats() (waiting int, dropped uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keeper.count, h.dropped
}
