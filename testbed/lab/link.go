package lab

import (
	"io"
	"net"
	"sync"
)

// Link is a TCP proxy between two daemons. Its address does not change when the other side
// restarts, and it can be cut.
type Link struct {
	ln   net.Listener
	dial func(to string) (net.Conn, error)

	mu     sync.Mutex // guards the fields below
	moved  *sync.Cond
	to     string
	cut    bool
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
func (k *Link) Cut() { k.setCut(true) }

// Heal ends a cut. Connections that still exist continue.
func (k *Link) Heal() { k.setCut(false) }

func (k *Link) setCut(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = on
	k.moved.Broadcast()
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

// open waits for the end of a cut and reports whether the link is still open.
func (k *Link) open() (to string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.cut && !k.closed {
		k.moved.Wait()
	}
	return k.to, !k.closed
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
	to, ok := k.open()
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
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			k.copy(way[1], way[0])
			// One side has closed: close the other, as for a killed process.
			_ = near.Close()
			_ = far.Close()
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}

func (k *Link) copy(dst io.Writer, src io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if _, ok := k.open(); !ok {
			return
		}
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
