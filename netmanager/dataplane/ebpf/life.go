package ebpf

import (
	"os"
	"strconv"
	"strings"
)

// Lifetimes in seconds of a flow without a connection after its last packet, before and after
// an answer (RFC 4787, REQ-5: two minutes or more). A host configures them with the sysctls of
// connection tracking, for both planes.
const (
	unanswered = 30
	answered   = 120
)

func (p *Plane) readLifetimes() {
	p.unanswered = lifetime("nf_conntrack_udp_timeout", unanswered)
	p.answered = lifetime("nf_conntrack_udp_timeout_stream", answered)
}

// lifetime returns a sysctl in seconds as ticks of 2^20 ns. It returns the parameter otherwise if
// connection tracking is not loaded or not visible in this namespace.
func lifetime(name string, otherwise uint32) uint32 {
	const longest = 1 << 20 // twelve days; ticks wrap after 52
	seconds := uint64(otherwise)
	if b, err := os.ReadFile("/proc/sys/net/netfilter/" + name); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil && n > 0 {
			seconds = min(n, longest)
		}
	}
	return uint32(seconds * 1e9 >> 20)
}
