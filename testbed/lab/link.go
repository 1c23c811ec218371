package lab

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Link is a TCP proxy between two daemons. Its address does not change when the other side
// restarts, and it can be cut.
type Link struct {
	ln   net.Listener
	dial func(to string) (net.Conn, error)

	mu     sync.Mutex // guards the fields below
	moved  *sync.Cond
	to     string
	cut    [2]bool // by direction: to the target, and back
	delay  time.Duration
	loss   float64
	closed bool
	conns  map[net.Conn]struct{}
	bytes  int64
}

// newLinkAt returns a link between networks, from the listener to the target of dial.
func newLinkAt(ln net.Listener, dial func(to string) (net.Conn, error)) *Link {
	k := &Link{ln: ln, dial: dial, conns: map[net.Conn]struct{}{}}
	k.moved = sync.NewCond(&k.mu)
	go k.accept()
	return k
}

// Addr returns the host:port at which the link listens.
func (k *Link) Addr() string { return k.ln.Addr().String() }

// To sets the target of the link.
func (k *Link) To(addr string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.to = addr
}

// Cut stops all traffic without notice to either side, like a failed modem. New connections are
// accepted and blocked.
func (k *Link) Cut() { k.setCut(true, true) }

// CutBack stops the traffic from the target only.
func (k *Link) CutBack() { k.setCut(false, true) }

// Heal ends a cut. Connections that still exist continue.
func (k *Link) Heal() { k.setCut(false, false) }

func (k *Link) setCut(forth, back bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = [2]bool{forth, back}
	k.moved.Broadcast()
}

// Slow delays what the link carries in each direction, up to 32 KiB at a time. loss is the share
// that is lost once and arrives when TCP sends it again, with what follows it.
func (k *Link) Slow(delay time.Duration, loss float64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.delay, k.loss = delay, loss
}

// resend is the time after which TCP repeats a lost packet, at least: RTO of Linux.
const resend = 200 * time.Millisecond

// wait returns the delay of the next packet.
func (k *Link) wait() time.Duration {
	delay := k.delay
	for again := resend; k.loss > 0 && rand.Float64() < k.loss; again *= 2 { //nolint:gosec // any will do
		delay += again
	}
	return delay
}

// target returns what To has set.
func (k *Link) target() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.to
}

// Break resets every connection. New ones work.
func (k *Link) Break() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		reset(c)
	}
}

// Bytes returns the number of bytes forwarded, in both directions.
func (k *Link) Bytes() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bytes
}

// Close ends the link.
func (k *Link) Close() {
	_ = k.ln.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for c := range k.conns {
		_ = c.Close()
	}
	k.moved.Broadcast()
}

func (k *Link) accept() {
	for {
		c, err := k.ln.Accept()
		if err != nil {
			return
		}
		go k.carry(c)
	}
}

// The directions of a link.
const (
	forth = iota
	back
)

// open waits for the end of a cut in a direction and reports whether the link is still open.
func (k *Link) open(way int) (to string, delay time.Duration, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.cut[way] && !k.closed {
		k.moved.Wait()
	}
	return k.to, k.wait(), !k.closed
}

func (k *Link) add(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.conns[c] = struct{}{}
	return true
}

func (k *Link) remove(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
	_ = c.Close()
}

func (k *Link) carry(near net.Conn) {
	if !k.add(near) {
		_ = near.Close()
		return
	}
	defer k.remove(near)
	to, _, ok := k.open(forth)
	if !ok || to == "" {
		return
	}
	far, err := k.dial(to)
	if err != nil || !k.add(far) {
		reset(near)
		return
	}
	defer k.remove(far)
	done := make(chan struct{}, 2)
	for way, ends := range [][2]net.Conn{forth: {near, far}, back: {far, near}} {
		go func() {
			k.copy(way, ends[1], ends[0])
			// One side has closed: close the other, as for a killed process.
			_ = near.Close()
			_ = far.Close()
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}

func (k *Link) copy(way int, dst io.Writer, src io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		_, delay, ok := k.open(way)
		if !ok {
			return
		}
		time.Sleep(delay)
		if n > 0 {
			k.mu.Lock()
			k.bytes += int64(n)
			k.mu.Unlock()
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
