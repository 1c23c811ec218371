package output

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

var Peers = Table[api.PeerStatus]{
	Kind: "peers",
	Columns: []Column[api.PeerStatus]{
		{Header: "PEER", Cell: func(_ Printer, s api.PeerStatus) string { return PeerName(s) }},
		{Header: "PATH", Cell: func(_ Printer, s api.PeerStatus) string { return string(s.Path) }, Style: func(s api.PeerStatus) Style {
			return map[api.PathKind]Style{api.PathNone: Bad, api.PathRelayTLS: Busy, api.PathRelay: Busy}[s.Path]
		}},
		{Header: "ENDPOINT", Cell: func(_ Printer, s api.PeerStatus) string { return endpoint(s.Endpoint) }},
		{Header: "RTT", Cell: func(_ Printer, s api.PeerStatus) string { return latency(s.RTT) }},
		{Header: "LOSS", Cell: func(_ Printer, s api.PeerStatus) string { return loss(s) }},
		{Header: "MTU", Cell: func(_ Printer, s api.PeerStatus) string { return number(s.MTU) }},
		{Header: "SENT", Cell: func(_ Printer, s api.PeerStatus) string {
			return carried(s, func(c api.Carried) uint64 { return c.Sent })
		}},
		{Header: "RECEIVED", Cell: func(_ Printer, s api.PeerStatus) string {
			return carried(s, func(c api.Carried) uint64 { return c.Received })
		}},
		{Header: "MEASURED", Wide: true, Cell: func(p Printer, s api.PeerStatus) string { return ago(p.Age(s.Measured)) }},
		{Header: "HANDSHAKE", Wide: true, Cell: func(p Printer, s api.PeerStatus) string { return ago(p.Age(s.Handshake)) }},
		{Header: "DROPPED", Wide: true, Cell: func(_ Printer, s api.PeerStatus) string { return strconv.FormatUint(s.Dropped, 10) }},
		{Header: "WHY", Cell: func(_ Printer, s api.PeerStatus) string { return s.Reason }},
	},
}

// loss formats packet loss; "-": not measured.
func loss(s api.PeerStatus) string {
	if s.RTT <= 0 && s.Loss == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*s.Loss)
}

// carried formats a number of bytes; "-": unknown for this kernel path.
func carried(s api.PeerStatus, part func(api.Carried) uint64) string {
	c, known := s.Carried()
	if !known {
		return "-"
	}
	return Bytes(part(c))
}

// PeerName returns a peer's node, or the start of its key if the node is unknown.
func PeerName(s api.PeerStatus) string {
	if s.Node != "" {
		return string(s.Node)
	}
	name := s.Key.String()[:8]
	if s.Cluster != "" {
		name = string(s.Cluster) + "/" + name
	}
	return name
}

var Routes = Table[api.RouteStatus]{
	Kind: "routes",
	Name: func(s api.RouteStatus) string { return string(s.Service) },
	Columns: []Column[api.RouteStatus]{
		{Header: "SERVICE", Cell: func(p Printer, s api.RouteStatus) string { return p.Short(string(s.Service)) }},
		{Header: "ADDRESSES", Cell: func(_ Printer, s api.RouteStatus) string { return Addresses(s.Addresses) }},
		{Header: "BACKENDS", Cell: func(_ Printer, s api.RouteStatus) string { return backends(s) }},
		{Header: "LATENCY", Cell: latencies},
		{Header: "IDLE", Cell: func(_ Printer, s api.RouteStatus) string { return Duration(s.Idle) }},
		{Header: "REVISION", Wide: true, Cell: func(_ Printer, s api.RouteStatus) string { return strconv.FormatUint(s.Rev, 10) }},
		{Header: "CALLERS", Wide: true, Cell: func(_ Printer, s api.RouteStatus) string { return callers(s.Access) }},
		{Header: "TROUBLE", Cell: func(_ Printer, s api.RouteStatus) string { return s.Refused }},
	},
}

func backends(s api.RouteStatus) string {
	if len(s.Backends) == 0 {
		return "none"
	}
	var all []string
	for _, b := range s.Backends {
		one := fmt.Sprintf("#%d %s", b.Instance.Number(), b.Address)
		if b.State != api.BackendUp {
			one += " " + string(b.State)
		}
		all = append(all, one)
	}
	return strings.Join(all, ", ")
}

// latencies formats the round trips that TCP measured between the node's services and this service.
func latencies(p Printer, s api.RouteStatus) string {
	var all []string
	for _, x := range s.Pairs {
		all = append(all, p.Short(string(x.Local))+" "+latency(x.RTT))
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, ", ")
}

func callers(a api.Access) string {
	switch {
	case a.Closed:
		return "none"
	case a.Callers == nil:
		return "tenant"
	}
	return strings.Join(a.Callers, ",")
}

// Addresses formats a service's semantic addresses in one line.
func Addresses(a api.ServiceAddresses) string {
	var all []string
	for _, one := range []struct {
		policy string
		addr   netip.Addr
	}{{"rr", a.RoundRobin}, {"closest", a.Closest}} {
		if one.addr.IsValid() {
			all = append(all, one.policy+" "+one.addr.String())
		}
	}
	switch n := len(a.Instances); n {
	case 0:
	case 1:
		all = append(all, "1 instance")
	default:
		all = append(all, fmt.Sprintf("%d instances", n))
	}
	return strings.Join(all, ", ")
}

// Trace prints the steps of a trace.
func Trace(p Printer, t api.NetTrace) error {
	if !p.ForPeople() {
		return p.Object(t)
	}
	width := widest(t.Steps, func(s api.TraceStep) string { return s.What })
	for _, s := range t.Steps {
		mark := p.Paint(Good, "ok")
		if !s.OK {
			mark = p.Paint(Bad, "no")
		}
		p.Printf("%s  %-*s  %s", mark, width, s.What, s.Detail)
	}
	return nil
}

// Bytes formats a number of bytes: "1.5 MiB".
func Bytes(n uint64) string {
	const unit = 1024
	if n < unit {
		return strconv.FormatUint(n, 10) + " B"
	}
	v, prefixes := float64(n), "KMGTPE"
	for i := range prefixes {
		if v /= unit; v < unit || i == len(prefixes)-1 {
			return fmt.Sprintf("%.1f %ciB", v, prefixes[i])
		}
	}
	return ""
}

// endpoint formats an address and port; "-": none.
func endpoint(a netip.AddrPort) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

func latency(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	}
	return fmt.Sprintf("%.1fms", float64(d.Microseconds())/1000)
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
