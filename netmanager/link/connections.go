package link

import (
	"encoding/binary"
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

// Connection is the kernel's state of an established TCP connection (tcp_info).
type Connection struct {
	Local, Remote       netip.Addr
	RTT                 time.Duration // smoothed
	Least               time.Duration // smallest within tcp_min_rtt_wlen, five minutes
	Sent, Retransmitted uint32        // segments with data
	Idle                time.Duration // since the last packet from the other end
}

// Connections lists connections of network namespaces. It is not safe for concurrent use.
type Connections struct{ buf []byte }

// NewConnections returns a lister with its buffer.
func NewConnections() *Connections { return &Connections{make([]byte, 32<<10)} }

// Each calls fn for up to most connections of the namespace at path, in no order. It fails with
// ErrGone if the namespace is missing.
func (c *Connections) Each(path string, most int, fn func(Connection)) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("list connections of %s: %w: %w", path, api.ErrGone, err)
	}
	defer ns.Close()
	s, err := nl.GetNetlinkSocketAt(netns.NsHandle(ns.Fd()), netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return fmt.Errorf("list connections of %s: %w", path, err)
	}
	defer s.Close() // discards the rest of the answer
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if most == 0 {
			break
		}
		r := diagRequest{family: family, protocol: unix.IPPROTO_TCP, states: 1 << unix.BPF_TCP_ESTABLISHED, info: true}
		_, err := dump(s.GetFd(), c.buf, r, func(b []byte) bool {
			if x, ok := connection(b); ok {
				fn(x)
				most--
			}
			return most > 0
		})
		if err != nil {
			return fmt.Errorf("list connections of %s: %w", path, err)
		}
	}
	return nil
}

// connection parses a connection; ok is false if the kernel has not measured it.
func connection(b []byte) (x Connection, ok bool) {
	x.Local, x.Remote = diagAddress(b, diagSource), diagAddress(b, diagRemote)
	for b = b[diagMessageLen:]; len(b) >= unix.SizeofRtAttr; {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < unix.SizeofRtAttr || size > len(b) {
			return x, false
		}
		if kind == diagInfo {
			var info unix.TCPInfo // an older kernel's is shorter: missing fields stay 0
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)), b[unix.SizeofRtAttr:size])
			x.RTT, x.Least = time.Duration(info.Rtt)*time.Microsecond, time.Duration(info.Min_rtt)*time.Microsecond
			x.Sent, x.Retransmitted = info.Data_segs_out, info.Total_retrans
			x.Idle = time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
			return x, info.Rtt > 0 && info.Min_rtt > 0 && info.Min_rtt != ^uint32(0)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return x, false
}
