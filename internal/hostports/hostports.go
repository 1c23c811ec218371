// Package hostports finds the ports that the machine itself uses: those of daemons and those that
// its kernel opens (VXLAN, WireGuard). A workload must not publish them, because it would receive
// the machine's traffic.
//
//	own, err := hostports.Own()
package hostports

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// States of sockets (include/net/tcp_states.h). A UDP socket that is not connected is
// "closed".
const (
	closed = 7
	listen = 10
)

// Own returns the ports of the calling thread's network namespace with a listener (TCP) or an
// unconnected socket (UDP), sorted, each once. It omits SCTP, and sockets on addresses that no
// workload can publish.
func Own() ([]api.HostPort, error) {
	var out []api.HostPort
	for _, f := range []struct {
		name, protocol string
		state          uint64
	}{{"tcp", "tcp", listen}, {"tcp6", "tcp", listen}, {"udp", "udp", closed}, {"udp6", "udp", closed}} {
		file, err := os.Open("/proc/thread-self/net/" + f.name)
		if errors.Is(err, os.ErrNotExist) { // no IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the machine's sockets: %w", err)
		}
		ports, err := parse(file, f.state)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("list the machine's sockets in %s: %w", f.name, err)
		}
		for _, p := range ports {
			out = append(out, api.HostPort{Port: p, Protocol: f.protocol})
		}
	}
	slices.SortFunc(out, compare)
	return slices.Compact(out), nil
}

func compare(a, b api.HostPort) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// parse reads a table of /proc/net and returns the ports of sockets in a state.
func parse(r io.Reader, state uint64) ([]uint16, error) {
	var out []uint16
	lines := bufio.NewScanner(r)
	lines.Scan() // the heading
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			return nil, fmt.Errorf("line %q of the socket table has no state: %w", lines.Text(), api.ErrInvalid)
		}
		if st, err := strconv.ParseUint(fields[3], 16, 8); err != nil {
			return nil, fmt.Errorf("line %q of the socket table has no state: %w", lines.Text(), api.ErrInvalid)
		} else if st != state {
			continue
		}
		at, err := parseAddr(fields[1])
		if err != nil {
			return nil, err
		}
		if at.Port() != 0 && publishable(at.Addr()) {
			out = append(out, at.Port())
		}
	}
	return out, lines.Err()
}

// parseAddr parses "0100007F:0035", words in the machine's byte order.
func parseAddr(s string) (netip.AddrPort, error) {
	bad := fmt.Errorf("%q is not the address of a socket: %w", s, api.ErrInvalid)
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, bad
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), nil
}

// publishable reports whether a data plane publishes ports of the address: 127.0.0.1, or one that
// is neither loopback nor link-local.
func publishable(a netip.Addr) bool {
	localhost := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	return a == localhost || !a.IsLoopback() && !a.IsLinkLocalUnicast()
}
