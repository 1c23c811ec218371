package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sender sends datagrams without allocating.
type Sender struct {
	c    *Conn
	to   sockaddr
	last netip.AddrPort
	iovs [MaxDatagrams]unix.Iovec
	msg  unix.Msghdr
	ctl  [24]byte // a control message of two bytes, with its padding (CMSG_SPACE(2))
	call func(fd int) syscall.Errno
}

// NewSender returns a sender for one goroutine.
func (c *Conn) NewSender() *Sender {
	s := &Sender{c: c}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&s.ctl[0]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	s.msg.Name = (*byte)(unsafe.Pointer(&s.to.raw))
	s.msg.Iov = &s.iovs[0]
	s.call = s.sendmsg // bound once: a method value allocates
	return s
}

// Send sends a run of at most MaxDatagrams datagrams and MaxRun bytes. Each datagram has each
// bytes; the last may be shorter. Send waits while the socket's buffer is full. After ErrTooLong
// and errors of unreachable destinations the socket stays usable.
func (s *Sender) Send(to netip.AddrPort, run []byte, each int) error {
	return s.SendTails(to, run, each, 0)
}

// SendTails is Send without the first skip bytes of each datagram, which must be longer. A relay
// removes headers with it, without a copy.
func (s *Sender) SendTails(to netip.AddrPort, run []byte, each, skip int) error {
	if to != s.last {
		if !s.to.set(to, s.c.v6) {
			return fmt.Errorf("send to %s: %w", to, unix.EAFNOSUPPORT)
		}
		s.last, s.msg.Namelen = to, s.to.len
	}
	if len(run) > each && s.c.gso.Load() {
		*(*uint16)(unsafe.Pointer(&s.ctl[unix.CmsgLen(0)])) = uint16(each - skip)
		s.msg.Control = &s.ctl[0]
		s.msg.SetControllen(unix.CmsgSpace(2))
		err := s.send(run, each, skip)
		s.msg.Control = nil
		s.msg.SetControllen(0)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EIO):
			s.c.gso.Store(false) // a device without checksum offload
		case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EMSGSIZE):
			return fmt.Errorf("send to %s: %w", to, err)
		}
	}
	var first error
	for len(run) > 0 {
		n := min(each, len(run))
		if err := s.send(run[:n], n, skip); err != nil && first == nil {
			first = fmt.Errorf("send to %s: %w", to, err)
		}
		run = run[n:]
	}
	if errors.Is(first, unix.EMSGSIZE) {
		return fmt.Errorf("%w: %w", first, ErrTooLong)
	}
	return first
}

// send sends a run in one call.
func (s *Sender) send(run []byte, each, skip int) error {
	if skip == 0 {
		each = len(run) // one buffer
	}
	n := 0
	for ; len(run) > 0; n++ {
		if n == len(s.iovs) {
			return unix.EMSGSIZE
		}
		d := run[:min(each, len(run))]
		s.iovs[n].Base = unsafe.SliceData(d[skip:])
		s.iovs[n].SetLen(len(d) - skip)
		run = run[len(d):]
	}
	s.msg.SetIovlen(n)
	return s.c.file.Write(s.call)
}

func (s *Sender) sendmsg(fd int) syscall.Errno {
	_, _, errno := syscall.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&s.msg)), 0)
	return errno
}
