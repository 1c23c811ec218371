package ebpf

import "github.com/treeline-edge/treeline/netmanager/dataplane"

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

// lifetime returns a setting in seconds as ticks of 2^20 ns.
func lifetime(name string, otherwise uint64) uint32 {
	const longest = 1 << 20 // twelve days; ticks wrap after 52
	return uint32(min(dataplane.ConntrackSetting(name, otherwise), longest) * 1e9 >> 20)
}
