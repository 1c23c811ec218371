package ebpf

import (
	"os"
	"strconv"
	"strings"
)

// Seconds that a flow without connection lives after its last packet: before an
// answer and after (RFC 4787, REQ-5: two minutes or more). A host says so where it
// says it for connection tracking, and both planes heed it.
const (
	unanswered = 30
	answered   = 120
)

func (p *Plane) readLifetimes() {
	p.unanswered = lifetime("nf_conntrack_udp_timeout", unanswered)
	p.answered = lifetime("nf_conntrack_udp_timeout_stream", answered)
}

// lifetime is a sysctl of seconds in ticks, which are 2^20 ns; otherwise where the kernel
// has no connection tracking yet, or none of our namespace may be read.
func lifetime(name string, otherwise uint32) uint32 {
	const longest = 1 << 20 // twelve days; ticks go round after 52
	seconds := uint64(otherwise)
	if b, err := os.ReadFile("/proc/sys/net/netfilter/" + name); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil && n > 0 {
			seconds = min(n, longest)
		}
	}
	return uint32(seconds * 1e9 >> 20)
}
