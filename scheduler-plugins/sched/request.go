package sched

import (
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// RequestFor is what an instance of a service asks of a place, as far as its SLA
// alone says it. Each constraint narrows what the others leave. Where its links
// lead (Bounds), which domains are full, and where its peers are, its core adds:
// see LinksOf, SpreadsOf and ApartsOf.
func RequestFor(id api.InstanceID, m *api.Microservice) Request {
	r := Request{
		ID:             string(id),
		Tenant:         id.Tenant(),
		Needs:          m.Needs(),
		Virtualization: RuntimeName(m.Virtualization),
		Arch:           m.Arch,
		Privileged:     m.Privileged,
		Network:        m.NeedsNetwork(),
		Address:        m.TakesAddress(),
		Ports:          PortsOf(m),
		Devices:        m.NeedsDevices(),
		Urgency:        m.Urgency(),
		Convergence:    ConvergenceOf(m),
	}
	for _, c := range m.Constraints {
		switch c.Type {
		case api.ConstrainDirect:
			r.Clusters = narrow(r.Clusters, names(c.Cluster))
			r.Nodes = narrow(r.Nodes, names(c.Node))
		case api.ConstrainClusters:
			r.Clusters = narrow(r.Clusters, c.Allowed)
		case api.ConstrainAddons:
			r.Addons = append(r.Addons, c.Needs...)
		case api.ConstrainLabels:
			for _, l := range c.Labels {
				r.Labels = append(r.Labels, ParseSelector(l))
			}
		case api.ConstrainGeo:
			r.Zones = append(r.Zones, zoneOf(c))
		}
	}
	return r
}

// ParseSelector reads "key=value", "key!=value", "key" or "!key".
func ParseSelector(text string) Selector {
	key, value, valued := strings.Cut(text, "=")
	s := Selector{Key: key, Value: value, Any: !valued}
	if valued {
		s.Key, s.Not = strings.CutSuffix(key, "!")
	} else {
		s.Key, s.Not = strings.CutPrefix(key, "!")
	}
	s.Key, s.Value = strings.TrimSpace(s.Key), strings.TrimSpace(s.Value)
	return s
}

// zoneOf is the zone of a geo constraint. One that the parser would not have let
// through is a zone that nobody is in.
func zoneOf(c api.Constraint) Zone {
	corners := make([]api.Geo, 0, len(c.Polygon))
	for _, p := range c.Polygon {
		g, err := api.ParseGeo(p)
		if err != nil {
			return Zone{Area: nowhere}
		}
		corners = append(corners, g)
	}
	switch {
	case len(corners) > 0:
		return Zone{Polygon: corners}
	case c.Area != "":
		return Zone{Area: strings.ToLower(c.Area)}
	}
	g, err := api.ParseGeo(c.Location)
	if err != nil {
		return Zone{Area: nowhere}
	}
	return Zone{Circle: &g, Radius: c.Threshold}
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
