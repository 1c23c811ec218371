package udp

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A receiver receives a batch of many small messages or few large ones: with GRO a message has up
// to 64 KiB, and a batch should fit into the processor's cache.
const (
	slots    = 64
	slotsGRO = 8
	slotLen  = 1 << 16
	// slotStep is the distance between slots. With a power of two, all small messages would use
	// the same cache lines.
	slotStep = slotLen + 1472
)

// Receiver receives messages without allocating. Its memory becomes resident when it is used.
type Receiver struct {
	c    *Conn
	room []byte
	msgs [slots]mmsghdr
	iovs [slots]unix.Iovec
	from [slots]sockaddr
	ctl  [slots][24]byte // the control message of UDP_GRO, with four bytes of data
	ask  int             // number of messages to request
	got  int             // number of messages received
	call func(fd int) syscall.Errno
}

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// NewReceiver returns a receiver for one goroutine.
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

// vacate returns the pages of a zeroed slice to the kernel until they are used. Go writes zeros to
// memory that it reuses, so that the 4 MiB of a receiver might otherwise stay resident.
func vacate(zeros []byte) {
	page, at := os.Getpagesize(), uintptr(unsafe.Pointer(unsafe.SliceData(zeros)))
	before := int(at % uintptr(page))
	from, to := (page-before)%page, len(zeros)-(before+len(zeros))%page
	if from < to {
		_ = unix.Madvise(zeros[from:to], unix.MADV_DONTNEED) // on failure they stay resident
	}
}

// Receive waits for messages and returns their number. They are valid until the next call. It
// returns net.ErrClosed after Close.
func (r *Receiver) Receive() (int, error) {
	for i := range r.got { // the kernel has changed these lengths
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

// Message returns message i of the last Receive.
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
