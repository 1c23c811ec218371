// Package udp is a UDP socket for high packet rates, used by nodes' tunnels and clusters' relays.
// It sends runs of datagrams of one length in one call (UDP_SEGMENT) and receives runs (UDP_GRO,
// recvmmsg). If a device or the kernel does not support that, it sends them one by one.
// docs/adr/0080 compares it with wireguard-go's package conn.
//
// Arguments and results have no IPv4-mapped IPv6 addresses, even with an IPv6 socket.
//
//	c, err := udp.Listen(netip.MustParseAddrPort("[::]:0"))
//	err = c.NewSender().Send(to, run, 1432)      // run is sent as datagrams of 1432 bytes
//	r := c.NewReceiver(); n, err := r.Receive()  // then r.Message(0) … r.Message(n-1)
package udp

import (
	"errors"
	"net/netip"
)

// bufferBytes is the size of the kernel's buffer in each direction. With the default size a tunnel
// loses packets whenever a processor is briefly busy.
const bufferBytes = 4 << 20

// The maximum size of a run for Send.
const (
	MaxRun       = 65507 - 20 // bytes; the limit of IPv6, which is lower than that of IPv4
	MaxDatagrams = 64
)

// ErrTooLong means that a datagram exceeds the MTU of a device on this machine.
var ErrTooLong = errors.New("datagram is too long for the path")

// Message is a run of datagrams from one sender.
type Message struct {
	From netip.AddrPort
	Data []byte
	Each int // length of each datagram but the last; at least 1 unless Data is empty
}
