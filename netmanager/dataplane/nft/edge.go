package nft

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// The packet marks of ebpf/bpf/types.h.
const (
	markForwarded uint32 = 0x74720001 + iota
	markRefuse
	markOut
	markClosed
)

// Edge is the part of the eBPF plane in nftables: a table for the rare packets that enter or leave
// the ranges and need connection tracking, for masquerading, published ports, and answers from
// closed networks. It also sends refusals. The programs mark each packet with what to do.
type Edge struct {
	table   *nftables.Table
	node    plane.Node
	ports   map[netip.Addr][]api.PortMap
	written bool
}

// NewEdge returns the edge of the eBPF plane with that prefix. It changes nothing.
func NewEdge(prefix string) *Edge {
	return &Edge{table: &nftables.Table{Family: nftables.TableFamilyINet, Name: prefix + "-ebpf"}}
}

// Replace replaces the table in one transaction. Unless force is set, it does nothing if the recorded
// table has the same content.
func (e *Edge) Replace(n plane.Node, ports map[netip.Addr][]api.PortMap, force bool) error {
	if e.written && !force && e.node.Ranges == n.Ranges && e.node.Queue == n.Queue && e.node.VXLAN == n.VXLAN && reflect.DeepEqual(e.ports, ports) {
		return nil
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	// Adding the table first makes the deletion succeed if there is none.
	c.AddTable(e.table)
	c.DelTable(e.table)
	c.AddTable(e.table)
	e.rules(c, n, ports)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write table %s: %w", e.table.Name, err)
	}
	e.node, e.written, e.ports = n, true, map[netip.Addr][]api.PortMap{}
	for a, p := range ports {
		e.ports[a] = slices.Clone(p)
	}
	return nil
}

// Remove deletes the table, if it exists.
func (e *Edge) Remove() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.DelTable(e.table)
	e.Close()
	if err := c.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove table %s: %w", e.table.Name, err)
	}
	return nil
}

// Close drops the record of the table, which stays in the kernel.
func (e *Edge) Close() { e.written = false }

func (e *Edge) rules(c *nftables.Conn, n plane.Node, ports map[netip.Addr][]api.PortMap) {
	add := func(chain *nftables.Chain) func(parts ...exprs) {
		chain.Table = e.table
		c.AddChain(chain)
		return func(parts ...exprs) {
			c.AddRule(&nftables.Rule{Table: e.table, Chain: chain, Exprs: rule(parts...)})
		}
	}
	ranges := n.Ranges
	if !ranges.Instances.IsValid() {
		return // without ranges there is nothing to do
	}
	ours := []netip.Prefix{ranges.Instances, ranges.Instances6}

	// Connection tracking does not see flows within the ranges, encapsulated or not.
	raw := add(&nftables.Chain{Name: "prerouting-raw", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
	rawOut := add(&nftables.Chain{Name: "output-raw", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw})
	input := add(&nftables.Chain{Name: "input", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	if n.VXLAN != 0 { // first, because it matches every packet of some flows
		raw(protocol(unix.IPPROTO_UDP), toPort(n.VXLAN), toHostAddress(), exprs{&expr.Notrack{}}, accept())
		rawOut(protocol(unix.IPPROTO_UDP), toPort(n.VXLAN), exprs{&expr.Notrack{}}, accept())
		input(protocol(unix.IPPROTO_UDP), toPort(n.VXLAN), marked(0), notTo(ranges.Instances), accept())
	}
	raw(marked(markRefuse), protocol(unix.IPPROTO_TCP), exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	raw(marked(markRefuse), exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}})
	raw(marked(markForwarded), exprs{&expr.Notrack{}})
	for _, p := range ours {
		raw(sourceIn(p), destinationIn(p), exprs{&expr.Notrack{}})
	}

	// While the resolver is down, as in a restart, drop the error: a client that gets one
	// fails, and one that gets nothing repeats its query. The query's own header identifies it,
	// because the kernel may send errors about other packets from the resolver's address.
	rawOut(protocol(unix.IPPROTO_ICMP), transport(0, 2, r(12)), is(r(12), dataplane.PortUnreachable),
		transport(dataplane.AboutTo, 4, r(12)), is(r(12), wire.ResolverAddr.AsSlice()), drop())

	pre := add(&nftables.Chain{Name: "prerouting-nat", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	own := add(&nftables.Chain{Name: "output-nat", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
	pre(fromOurs(n.Prefix), accept())
	for _, chain := range []func(...exprs){pre, own} {
		for _, p := range dataplane.Unpublished {
			chain(destinationIn(p), accept())
		}
		chain(destinationIn(dataplane.Loopback), notTo(dataplane.Localhost), accept())
	}
	for _, a := range slices.SortedFunc(maps.Keys(ports), netip.Addr.Compare) {
		for _, m := range ports[a] {
			for _, to := range []netip.Addr{a, ranges.To6(a)} {
				pre(publish(m, to))
				own(publish(m, to))
			}
		}
	}
	post := add(&nftables.Chain{Name: "postrouting-nat", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	post(marked(markOut), exprs{&expr.Masq{}})
	// The host's own call to a published port of localhost.
	post(sourceIn(dataplane.Loopback), destinationIn(ranges.Instances), exprs{&expr.Masq{}})

	input(marked(markOut), accept())
	input(marked(markClosed), established(), accept())
	for _, l4 := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		input(marked(markClosed), destinationIn(netip.PrefixFrom(wire.ResolverAddr, 32)), protocol(l4), toPort(53), accept())
	}
	for _, kind := range []byte{135, 136} { // neighbour discovery
		input(marked(markClosed), protocol(unix.IPPROTO_ICMPV6), icmp(kind), accept())
	}
	input(marked(markClosed), drop())
	// No instance of any node may reach this host, by any path.
	for _, p := range ours {
		input(sourceIn(p), established(), accept())
		input(sourceIn(p), drop())
	}

	forward := add(&nftables.Chain{Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	forward(marked(markForwarded), accept())
	if n.Queue != "" { // programs send there directly; nothing from outside may
		forward(to(n.Queue), drop())
	}
	for _, p := range []netip.Prefix{ranges.Services, ranges.Services6} {
		forward(destinationIn(p), drop())
	}
	for i, p := range ours { // the containers' programs check these
		forward(sourceIn(p), destinationIn(p), accept())
		forward(sourceIn([]netip.Prefix{ranges.Services, ranges.Services6}[i]), destinationIn(p), accept())
	}
	forward(established(), accept())
	forward(marked(markClosed), drop())
	forward(marked(markOut), accept())
	forward(translated(), accept())
	// Connection tracking cannot relate routers' errors to flows within the ranges.
	for _, kind := range []byte{3, 11, 12} {
		forward(destinationIn(ranges.Instances), protocol(unix.IPPROTO_ICMP), icmp(kind), accept())
	}
	for _, kind := range []byte{1, 2, 3, 4} {
		forward(destinationIn(ranges.Instances6), protocol(unix.IPPROTO_ICMPV6), icmp(kind), accept())
	}
	for _, p := range ours {
		forward(destinationIn(p), drop())
	}
}

func marked(m uint32) exprs { return rule(meta(expr.MetaKeyMARK, r(12)), is(r(12), native(m))) }

func toPort(p uint16) exprs { return rule(transport(2, 2, r(12)), is(r(12), big16(p))) }

func icmp(kind byte) exprs { return rule(transport(0, 1, r(12)), is(r(12), []byte{kind})) }

// established matches answers, and errors that connection tracking relates.
func established() exprs { return state(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED) }

// sourceIn and destinationIn match packets of p's family from p and to p.
func sourceIn(p netip.Prefix) exprs {
	f := familyOf(p.Addr())
	return rule(f.only(), inPrefix(f.source, p))
}

func destinationIn(p netip.Prefix) exprs {
	f := familyOf(p.Addr())
	return rule(f.only(), inPrefix(f.destination, p))
}

func familyOf(a netip.Addr) family {
	fams := families(wire.NetRanges{})
	if a.Is6() {
		return fams[1]
	}
	return fams[0]
}

func notTo(p netip.Prefix) exprs { return negated(destinationIn(p)) }

// toHostAddress matches packets to one of the host's own addresses.
func toHostAddress() exprs {
	return rule(exprs{&expr.Fib{Register: r(12), ResultADDRTYPE: true, FlagDADDR: true}}, is(r(12), native(unix.RTN_LOCAL)))
}

// publish sends packets to one of the host's own addresses to an instance.
func publish(m api.PortMap, to netip.Addr) exprs {
	f := familyOf(to)
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: r(0), RegProtoMin: r(4), Specified: true}
	return rule(f.only(), protocol(dataplane.Protocols[m.Protocol]), toPort(m.Host), toHostAddress(),
		immediate(r(0), to.AsSlice()), immediate(r(4), big16(m.Instance)), exprs{nat})
}
