package sched

import (
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// RequestFor is what an instance of a service asks of a place. Each constraint
// of the SLA narrows what the others leave.
func RequestFor(id api.InstanceID, m *api.Microservice) Request {
	r := Request{
		ID:             string(id),
		Needs:          m.Needs(),
		Virtualization: RuntimeName(m.Virtualization),
		Arch:           m.Arch,
		Privileged:     m.Privileged,
		Network:        m.NeedsNetwork(),
		Ports:          PortsOf(m),
	}
	for _, c := range m.Constraints {
		switch c.Type {
		case "direct":
			r.Clusters = narrow(r.Clusters, names(c.Cluster))
			r.Nodes = narrow(r.Nodes, names(c.Node))
		case "clusters":
			r.Clusters = narrow(r.Clusters, c.Allowed)
		}
	}
	return r
}

// PortsOf are the ports of its node that an instance of the service takes.
func PortsOf(m *api.Microservice) []Port {
	if m.Port == "" {
		return nil
	}
	var out []Port
	for _, p := range m.Ports() {
		out = append(out, Port{p.Protocol, p.Host})
	}
	return out
}

// RuntimeName is the one name of a runtime: Oakestra's files say "docker" and
// "container" for the same.
func RuntimeName(virtualization string) string {
	if virtualization == "docker" {
		return "container"
	}
	return virtualization
}

// nowhere is no machine's name: constraints that exclude one another leave it.
// An explanation shows it as what is needed.
const nowhere = "(contradicting constraints)"

func narrow(have, by []string) []string {
	if len(by) == 0 {
		return have
	}
	if len(have) == 0 {
		return by
	}
	var both []string
	for _, h := range have {
		if slices.Contains(by, h) {
			both = append(both, h)
		}
	}
	if len(both) == 0 {
		return []string{nowhere}
	}
	return both
}

func names(list string) []string {
	var out []string
	for n := range strings.SplitSeq(list, ";") {
		if n = strings.TrimSpace(n); n != "" {
			out = append(out, n)
		}
	}
	return out
}
