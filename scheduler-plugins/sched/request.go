package sched

import (
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// nowhere stands for "none of them": no cluster and no node has such a name.
const nowhere = "(contradicting constraints)"

// RequestOf is the request for one instance of a service: what the SLA says.
// What the moment says (Avoid, Peers) is the caller's to add. Several
// constraints narrow one another.
func RequestOf(id string, m api.Microservice) Request {
	req := Request{
		ID: id, Needs: m.Needs(), Virtualization: m.Virtualization,
		Arch: m.Arch, Privileged: m.Privileged,
	}
	for _, c := range m.Constraints {
		if c.Type == "clusters" {
			req.Clusters = narrow(req.Clusters, c.Allowed)
			continue
		}
		req.Clusters = narrow(req.Clusters, names(c.Cluster))
		req.Nodes = narrow(req.Nodes, names(c.Node))
	}
	return req
}

// narrow is what both lists allow, where an empty list allows all.
func narrow(a, b []string) []string {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	both := slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
	if len(both) == 0 {
		return []string{nowhere}
	}
	return both
}

func names(list string) []string {
	var out []string
	for s := range strings.SplitSeq(list, ";") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}
