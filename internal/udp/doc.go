// Package udp is a socket for many datagrams: a node's tunnel and a cluster's
// relay speak through it. It sends runs of equally long datagrams in one call
// (UDP_SEGMENT) and receives them so (UDP_GRO, recvmmsg); where a device or a
// kernel cannot, it sends them one by one.
//
// It knows nothing of what is in a datagram. IPv4 addresses are taken and given as
// such, also where the socket is IPv6's.
//
//	c, err := udp.Listen(netip.MustParseAddrPort("[::]:0"))
//	err = c.NewSender().Send(to, run, 1432)      // run is cut into datagrams of 1432 bytes
//	r := c.NewReceiver(); n, err := r.Receive()  // then r.Message(0) … r.Message(n-1)
package udp

import (
	"errors"
	"net/netip"
)

// bufferBytes is what the kernel keeps for us in each direction: with its default
// the tunnel loses packets whenever a core is busy for a moment.
const bufferBytes = 4 << 20

// The longest run that Send takes at once.
const (
	MaxRun       = 65507 - 20 // bytes; IPv6's, which has less room
	MaxDatagrams = 64
)

// ErrTooLong says that a datagram is longer than a device on its way here takes.
var ErrTooLong = errors.New("datagram is too long for the path")

// Message is one run of datagrams from one sender.
type Message struct {
	From netip.AddrPort
	Data []byte
	Each int // length of each datagram but the last; at least 1 unless Data is empty
}
