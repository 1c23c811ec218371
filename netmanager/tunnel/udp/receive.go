package udp

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A receiver has room for many small messages, or for a few large ones: with GRO a
// message is up to 64 KB, and what is taken at once should fit the cache.
const (
	slots    = 64
	slotsGRO = 8
	slotLen  = 1 << 16
)

// Message is one run of datagrams from one sender.
type Message struct {
	From netip.AddrPort
	Data []byte
	Each int // length of each datagram but the last; at least 1 unless Data is empty
}

// Receiver receives without allocating. Its pages are used as messages need them.
type Receiver struct {
	c    *Conn
	room []byte
	msgs [slots]mmsghdr
	iovs [slots]unix.Iovec
	from [slots]sockaddr
	ctl  [slots][24]byte // UDP_GRO's control message of four bytes
	ask  int             // for how many messages
	got  int
	err  error
	call func(fd uintptr) bool
}

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// NewReceiver makes a receiver for one goroutine.
func (c *Conn) NewReceiver() *Receiver {
	r := &Receiver{c: c, room: make([]byte, slots*slotLen), ask: slots}
	for i := range r.msgs {
		r.iovs[i].Base = &r.room[i*slotLen]
		r.iovs[i].SetLen(slotLen)
		h := &r.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&r.from[i].raw))
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = &r.ctl[i][0]
	}
	r.call = r.recvmmsg
	return r
}

// Receive waits for messages and says how many came. They are good until it is
// called again. net.ErrClosed: the socket is closed.
func (r *Receiver) Receive() (int, error) {
	for i := range r.ask {
		h := &r.msgs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(len(r.ctl[i]))
	}
	if r.c.raw.Read(r.call) != nil {
		return 0, net.ErrClosed // all that a RawConn without deadlines fails for
	}
	if r.err != nil {
		return 0, fmt.Errorf("receive: %w", r.err)
	}
	total := 0
	for i := range r.got {
		total += int(r.msgs[i].len)
	}
	r.ask = slots
	if total > r.got*4096 {
		r.ask = slotsGRO
	}
	return r.got, nil
}

func (r *Receiver) recvmmsg(fd uintptr) bool {
	for {
		n, _, errno := syscall.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.msgs[0])), uintptr(r.ask), 0, 0, 0)
		switch errno {
		case 0:
			r.got, r.err = int(n), nil
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		default:
			r.got, r.err = 0, errno
		}
		return true
	}
}

// Message is the message i of the last Receive.
func (r *Receiver) Message(i int) Message {
	n := int(r.msgs[i].len)
	m := Message{From: r.from[i].get(), Data: r.room[i*slotLen : i*slotLen+n], Each: n}
	if ctl := r.msgs[i].hdr.Controllen; ctl >= uint64(unix.CmsgLen(4)) {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&r.ctl[i][0]))
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO {
			if each := int(*(*int32)(unsafe.Pointer(&r.ctl[i][unix.CmsgLen(0)]))); each > 0 {
				m.Each = each
			}
		}
	}
	return m
}
