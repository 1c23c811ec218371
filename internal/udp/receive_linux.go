package udp

import (
	"fmt"
	"os"
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
	// Slots are this far apart: were it a power of two, all small messages would
	// compete for the same lines of the caches.
	slotStep = slotLen + 1472
)

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
	call func(fd int) syscall.Errno
}

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// NewReceiver makes a receiver for one goroutine.
func (c *Conn) NewReceiver() *Receiver {
	r := &Receiver{c: c, room: make([]byte, slots*slotStep), ask: slots}
	vacate(r.room)
	for i := range r.msgs {
		r.iovs[i].Base = &r.room[i*slotStep]
		r.iovs[i].SetLen(slotLen)
		h := &r.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&r.from[i].raw))
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = &r.ctl[i][0]
		r.reset(i)
	}
	r.call = r.recvmmsg
	return r
}

// vacate gives the pages of zeros back to the machine: each comes again, as zeros, when
// it is used. Go writes zeros to memory that was used before, so that a room of 4 MiB was
// in memory for good, or was not, by what a start had left of the heap.
func vacate(zeros []byte) {
	page, at := os.Getpagesize(), uintptr(unsafe.Pointer(unsafe.SliceData(zeros)))
	before := int(at % uintptr(page))
	from, to := (page-before)%page, len(zeros)-(before+len(zeros))%page
	if from < to {
		_ = unix.Madvise(zeros[from:to], unix.MADV_DONTNEED) // refused, they stay
	}
}

// Receive waits for messages and says how many came. They are good until it is
// called again. net.ErrClosed: the socket is closed.
func (r *Receiver) Receive() (int, error) {
	for i := range r.got { // what the kernel has written
		r.reset(i)
	}
	r.got = 0
	if err := r.c.file.Read(r.call); err != nil {
		return 0, fmt.Errorf("receive: %w", err)
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

// reset makes room for a message's address and control message.
func (r *Receiver) reset(i int) {
	h := &r.msgs[i].hdr
	h.Namelen = unix.SizeofSockaddrInet6
	h.SetControllen(len(r.ctl[i]))
}

func (r *Receiver) recvmmsg(fd int) syscall.Errno {
	n, _, errno := syscall.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.msgs[0])), uintptr(r.ask), 0, 0, 0)
	if errno == 0 {
		r.got = int(n)
	}
	return errno
}

// Message is the message i of the last Receive.
func (r *Receiver) Message(i int) Message {
	n := int(r.msgs[i].len)
	m := Message{From: r.from[i].get(), Data: r.room[i*slotStep : i*slotStep+n], Each: n}
	if ctl := r.msgs[i].hdr.Controllen; int(ctl) >= unix.CmsgLen(4) {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&r.ctl[i][0]))
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO {
			if each := int(*(*int32)(unsafe.Pointer(&r.ctl[i][unix.CmsgLen(0)]))); each > 0 {
				m.Each = each
			}
		}
	}
	return m
}
