package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// Connection is what the kernel knows of an established TCP connection (tcp_info).
type Connection struct {
	Local, Remote netip.Addr
	RTT           time.Duration // smoothed
	Least         time.Duration // within tcp_min_rtt_wlen: five minutes
	Sent, Again   uint32        // segments with data, and those that were sent again
	Idle          time.Duration // since the other end was heard last
}

// Connections lists connections of network namespaces, some of each: a workload may
// have any number. It belongs to one goroutine.
type Connections struct{ buf []byte }

// NewConnections makes one, with the memory that it needs.
func NewConnections() *Connections { return &Connections{make([]byte, 32<<10)} }

// Each hands at most so many connections of the namespace at path to fn, in the order
// in which the kernel has them, which is of chance. A namespace that is gone is
// ErrGone.
func (c *Connections) Each(path string, most int, fn func(Connection)) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("look at the connections of %s: %w: %w", path, api.ErrGone, err)
	}
	defer ns.Close()
	s, err := nl.GetNetlinkSocketAt(netns.NsHandle(ns.Fd()), netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return fmt.Errorf("look at the connections of %s: %w", path, err)
	}
	defer s.Close() // which ends what the kernel has not told yet
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if most == 0 {
			break
		}
		n, err := c.dump(s.GetFd(), family, most, fn)
		if err != nil {
			return fmt.Errorf("look at the connections of %s: %w", path, err)
		}
		most -= n
	}
	return nil
}

// The layout of struct inet_diag_msg (linux/inet_diag.h), and the attribute with tcp_info.
const (
	diagRequestLen = 56
	diagMessageLen = 72
	diagSource     = 8
	diagRemote     = 24
	diagInfo       = 2
)

// dump lists connections of one family.
func (c *Connections) dump(fd int, family uint8, most int, fn func(Connection)) (n int, err error) {
	req := make([]byte, unix.SizeofNlMsghdr+diagRequestLen)
	*(*unix.NlMsghdr)(unsafe.Pointer(&req[0])) = unix.NlMsghdr{
		Len: uint32(len(req)), Type: unix.SOCK_DIAG_BY_FAMILY, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP,
	}
	body := req[unix.SizeofNlMsghdr:]
	body[0], body[1], body[2] = family, unix.IPPROTO_TCP, 1<<(diagInfo-1)
	binary.NativeEndian.PutUint32(body[4:], 1<<unix.BPF_TCP_ESTABLISHED)
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	for {
		got, _, err := unix.Recvfrom(fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		done, err := messages(c.buf[:got], func(x Connection) bool {
			fn(x)
			n++
			return n < most
		})
		if done || err != nil {
			return n, err
		}
	}
}

// messages hands the connections in an answer of the kernel's to fn, until it has
// enough, and reports whether that is the end.
func messages(b []byte, fn func(Connection) bool) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size, kind := int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:])
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return true, fmt.Errorf("a message of %d bytes in %d", size, len(b))
		}
		body := b[unix.SizeofNlMsghdr:size]
		b = b[min((size+3)&^3, len(b)):]
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(body) < 4 {
				return true, errors.New("an end without a number")
			}
			if n := int32(binary.NativeEndian.Uint32(body)); n != 0 {
				return true, unix.Errno(-n)
			}
			return true, nil
		case unix.SOCK_DIAG_BY_FAMILY:
			if x, ok := connection(body); ok && !fn(x) {
				return true, nil
			}
		}
	}
	return false, nil
}

// connection reads one; ok says whether the kernel has measured it.
func connection(b []byte) (x Connection, ok bool) {
	if len(b) < diagMessageLen {
		return x, false
	}
	address := func(at int) netip.Addr {
		if b[0] == unix.AF_INET {
			return netip.AddrFrom4([4]byte(b[at:]))
		}
		return netip.AddrFrom16([16]byte(b[at:])).Unmap()
	}
	x.Local, x.Remote = address(diagSource), address(diagRemote)
	for b = b[diagMessageLen:]; len(b) >= unix.SizeofRtAttr; {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < unix.SizeofRtAttr || size > len(b) {
			return x, false
		}
		if kind == diagInfo {
			var info unix.TCPInfo // an older kernel's is shorter: what it lacks stays 0
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)), b[unix.SizeofRtAttr:size])
			x.RTT, x.Least = time.Duration(info.Rtt)*time.Microsecond, time.Duration(info.Min_rtt)*time.Microsecond
			x.Sent, x.Again = info.Data_segs_out, info.Total_retrans
			x.Idle = time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
			return x, info.Rtt > 0 && info.Min_rtt > 0 && info.Min_rtt != ^uint32(0)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return x, false
}
