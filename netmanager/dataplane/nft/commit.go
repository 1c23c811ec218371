package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// packetFilter opens the socket that commit uses. A whole table is one transaction of several
// megabytes; with NETLINK_CAP_ACK the answers do not repeat it.
func packetFilter() (int, error) {
	const room = 64 << 20
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, err
	}
	return fd, errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, room),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1))
}

// commit applies the batch as a whole or not at all. The kernel answers messages that failed,
// and the last, which requests it. All answers are there when the send returns.
func (h *host) commit(x *batch) error {
	last := x.finish()
	if x.err != nil || last == 0 {
		return x.err
	}
	if err := unix.Sendto(h.nft, x.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send a transaction: %w", err)
	}
	var failed error
	acknowledged := false
	for b := make([]byte, 4096); ; {
		n, _, err := unix.Recvfrom(h.nft, b, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && failed == nil && !acknowledged:
			return errors.New("no answer from the kernel to a transaction")
		case errors.Is(err, unix.EAGAIN):
			return failed
		case err == nil && n >= unix.SizeofNlMsghdr+4:
			nr, code := binary.NativeEndian.Uint32(b[8:]), -int32(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr:]))
			acknowledged = acknowledged || nr == last
			if code == 0 {
				continue
			}
			err = fmt.Errorf("message %d of %d: %w", nr, last, unix.Errno(code))
		}
		if failed == nil {
			failed = err
		}
	}
}
