package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// diagRequest asks the kernel for sockets of a network namespace (sock_diag(7),
// linux/inet_diag.h).
type diagRequest struct {
	family, protocol uint8
	states           uint32 // a bit for each state
	info             bool   // with tcp_info
}

// The layout of struct inet_diag_msg, and the attribute with tcp_info.
const (
	diagRequestLen = 56
	diagMessageLen = 72
	diagPort       = 4
	diagSource     = 8
	diagRemote     = 24
	diagInfo       = 2
)

// dump calls fn with each socket of a request, in the kernel's format, until fn returns false. Then
// whole is false, and the rest of the answer is still in the netlink socket. buf must be large enough
// for one datagram of the kernel.
func dump(fd int, buf []byte, r diagRequest, fn func([]byte) bool) (whole bool, err error) {
	req := make([]byte, unix.SizeofNlMsghdr+diagRequestLen)
	*(*unix.NlMsghdr)(unsafe.Pointer(&req[0])) = unix.NlMsghdr{
		Len: uint32(len(req)), Type: unix.SOCK_DIAG_BY_FAMILY, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP,
	}
	body := req[unix.SizeofNlMsghdr:]
	body[0], body[1] = r.family, r.protocol
	if r.info {
		body[2] = 1 << (diagInfo - 1)
	}
	binary.NativeEndian.PutUint32(body[4:], r.states)
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, err
	}
	for enough := false; ; {
		got, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, err
		}
		done, err := messages(buf[:got], func(b []byte) bool {
			enough = enough || !fn(b)
			return !enough
		})
		if done || err != nil {
			return !enough && err == nil, err
		}
	}
}

// messages calls fn with the sockets in a datagram of the kernel until fn returns false, and
// reports whether the answer is complete.
func messages(b []byte, fn func([]byte) bool) (done bool, err error) {
	all, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return true, fmt.Errorf("netlink datagram of %d bytes: %w", len(b), err)
	}
	for _, m := range all {
		switch m.Header.Type {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(m.Data) < 4 {
				return true, errors.New("netlink end without an error number")
			}
			if n := int32(binary.NativeEndian.Uint32(m.Data)); n != 0 {
				return true, unix.Errno(-n)
			}
			return true, nil
		case unix.SOCK_DIAG_BY_FAMILY:
			if len(m.Data) >= diagMessageLen && !fn(m.Data) {
				return true, nil
			}
		}
	}
	return false, nil
}

// diagAddress returns the socket's address at that offset.
func diagAddress(b []byte, at int) netip.Addr {
	if b[0] == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b[at:]))
	}
	return netip.AddrFrom16([16]byte(b[at:])).Unmap()
}
