package nft

import (
	"errors"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dial prepares a transaction. Its socket lives for one exchange: what an earlier one
// left unread would be taken for an answer. A whole table is one message of some
// megabytes, and is answered line by line.
func (h *host) dial() (*nftables.Conn, error) {
	const room = 64 << 20
	return nftables.New(nftables.WithNetNSFd(int(h.ns.Fd())), nftables.WithSockOptions(func(c *netlink.Conn) error {
		sc, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var set error
		err = sc.Control(func(fd uintptr) {
			set = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, room),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room))
		})
		return errors.Join(err, set)
	}))
}

// flush commits the transaction. The library starts a goroutine for each line of
// the answer, which on a caller's locked thread is slower by far.
func flush(conn *nftables.Conn) error {
	done := make(chan error)
	go func() { done <- conn.Flush() }()
	return <-done
}
