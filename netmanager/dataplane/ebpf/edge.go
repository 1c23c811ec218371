package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// The packet marks of bpf/types.h.
const (
	markDone uint32 = 0x74720001 + iota
	markRefuse
	markOut
	markClosed
)

// edge is an nftables table for packets that cross the edge of the ranges, which are rare and
// need connection tracking: masquerading, published ports, answers from closed networks. It
// also sends refusals. The programs have judged a packet before; its mark says what to do.
type edge struct {
	table *nftables.Table
	node  plane.Node
	ports map[netip.Addr][]api.PortMap
	there bool
}

func newEdge(prefix string) *edge {
	return &edge{table: &nftables.Table{Family: nftables.TableFamilyINet, Name: prefix + "-ebpf"}}
}

// become replaces the table in one transaction, if it is not as wanted.
func (e *edge) become(n plane.Node, ports map[netip.Addr][]api.PortMap, sure bool) error {
	if e.there && !sure && e.node.Ranges == n.Ranges && e.node.Hold == n.Hold && e.node.VXLAN == n.VXLAN && reflect.DeepEqual(e.ports, ports) {
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
	e.node, e.there, e.ports = n, true, map[netip.Addr][]api.PortMap{}
	for a, p := range ports {
		e.ports[a] = slices.Clone(p)
	}
	return nil
}

// remove deletes the table, if it exists.
func (e *edge) remove() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.DelTable(e.table)
	e.close()
	if err := c.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove table %s: %w", e.table.Name, err)
	}
	return nil
}

// close forgets the table's state.
func (e *edge) close() { e.there = false }

func (e *edge) rules(c *nftables.Conn, n plane.Node, ports map[netip.Addr][]api.PortMap) {
	add := func(chain *nftables.Chain) func(parts ...exprs) {
		chain.Table = e.table
		c.AddChain(chain)
		return func(parts ...exprs) {
			c.AddRule(&nftables.Rule{Table: e.table, Chain: chain, Exprs: slices.Concat(parts...)})
		}
	}
	r := n.Ranges
	if !r.Instances.IsValid() {
		return // without ranges there is nothing to do
	}
	ours := []netip.Prefix{r.Instances, r.Instances6}

	// Connection tracking does not see flows within the ranges, encapsulated or not.
	raw := add(&nftables.Chain{Name: "raw", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
	rawOut := add(&nftables.Chain{Name: "raw-out", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw})
	input := add(&nftables.Chain{Name: "input", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	if n.VXLAN != 0 { // first, because it matches every packet of some flows
		raw(proto(unix.IPPROTO_UDP), port(n.VXLAN), local(), exprs{&expr.Notrack{}}, accept())
		rawOut(proto(unix.IPPROTO_UDP), port(n.VXLAN), exprs{&expr.Notrack{}}, accept())
		input(proto(unix.IPPROTO_UDP), port(n.VXLAN), marked(0), elsewhere(r.Instances), accept())
	}
	raw(marked(markRefuse), proto(unix.IPPROTO_TCP), exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	raw(marked(markRefuse), exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}})
	raw(marked(markDone), exprs{&expr.Notrack{}})
	for _, p := range ours {
		raw(source(p), destination(p), exprs{&expr.Notrack{}})
	}

	// While the resolver is down, as in a restart, drop the error: a client that gets one
	// fails, and one that gets nothing repeats its query. The query's own header identifies it,
	// because the kernel may send errors about other packets from the resolver's address.
	rawOut(proto(unix.IPPROTO_ICMP), exprs{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 2}, is(dataplane.PortUnreachable),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: dataplane.AboutTo, Len: 4}, is(wire.ResolverAddr.AsSlice()),
	}, drop())

	pre := add(&nftables.Chain{Name: "ports", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	own := add(&nftables.Chain{Name: "own-ports", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
	pre(exprs{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, is([]byte(n.Prefix))}, accept())
	for _, chain := range []func(...exprs){pre, own} {
		for _, p := range dataplane.Unpublished {
			chain(destination(p), accept())
		}
		chain(destination(dataplane.Loopback), elsewhere(dataplane.Localhost), accept())
	}
	for _, a := range sorted(ports) {
		for _, m := range ports[a] {
			for _, to := range []netip.Addr{a, r.Twin(a)} {
				pre(published(m, to)...)
				own(published(m, to)...)
			}
		}
	}
	post := add(&nftables.Chain{Name: "out", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	post(marked(markOut), exprs{&expr.Masq{}})
	// The host's own call to a published port of localhost.
	post(source(dataplane.Loopback), destination(r.Instances), exprs{&expr.Masq{}})

	input(marked(markOut), accept())
	input(marked(markClosed), established(), accept())
	for _, l4 := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		input(marked(markClosed), destination(netip.PrefixFrom(wire.ResolverAddr, 32)), proto(l4), port(53), accept())
	}
	for _, kind := range []byte{135, 136} { // neighbour discovery
		input(marked(markClosed), proto(unix.IPPROTO_ICMPV6), icmp(kind), accept())
	}
	input(marked(markClosed), drop())
	// No instance of any node may reach this host, by whatever path.
	for _, p := range ours {
		input(source(p), established(), accept())
		input(source(p), drop())
	}

	forward := add(&nftables.Chain{Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	forward(marked(markDone), accept())
	if n.Hold != "" { // programs send there directly; nothing from outside may
		forward(exprs{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, is(ifname(n.Hold))}, drop())
	}
	for _, p := range []netip.Prefix{r.Services, r.Services6} {
		forward(destination(p), drop())
	}
	for i, p := range ours { // the containers' programs judge these
		forward(source(p), destination(p), accept())
		forward(source([]netip.Prefix{r.Services, r.Services6}[i]), destination(p), accept())
	}
	forward(established(), accept())
	const destinationNAT = 1 << 5 // IPS_DST_NAT
	forward(marked(markClosed), drop())
	forward(marked(markOut), accept())
	forward(exprs{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, bits(destinationNAT), nonzero()}, accept())
	// Connection tracking cannot relate routers' errors to flows within the ranges.
	for _, kind := range []byte{3, 11, 12} {
		forward(destination(r.Instances), proto(unix.IPPROTO_ICMP), icmp(kind), accept())
	}
	for _, kind := range []byte{1, 2, 3, 4} {
		forward(destination(r.Instances6), proto(unix.IPPROTO_ICMPV6), icmp(kind), accept())
	}
	for _, p := range ours {
		forward(destination(p), drop())
	}
}

type exprs = []expr.Any

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func is(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func nonzero() expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native(0)} }

func bits(m uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(m), Xor: native(0)}
}

func accept() exprs { return exprs{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() exprs   { return exprs{&expr.Verdict{Kind: expr.VerdictDrop}} }

func marked(m uint32) exprs {
	return exprs{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, is(native(m))}
}

func proto(p byte) exprs {
	return exprs{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, is([]byte{p})}
}

func port(p uint16) exprs {
	return exprs{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, is(binary.BigEndian.AppendUint16(nil, p))}
}

func icmp(kind byte) exprs {
	return exprs{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}, is([]byte{kind})}
}

// established matches answers, and errors that connection tracking relates.
func established() exprs {
	return exprs{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		bits(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), nonzero(),
	}
}

// source matches packets of p's family from p.
func source(p netip.Prefix) exprs {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if p.Addr().Is6() {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	return append(exprs{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, is([]byte{family})}, within(p, offset)...)
}

// destination matches packets of p's family to p.
func destination(p netip.Prefix) exprs {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16)
	if p.Addr().Is6() {
		family, offset = unix.NFPROTO_IPV6, 24
	}
	return append(exprs{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, is([]byte{family})}, within(p, offset)...)
}

// elsewhere matches packets of p's family that are not to p.
func elsewhere(p netip.Prefix) exprs {
	x := destination(p)
	x[len(x)-1].(*expr.Cmp).Op = expr.CmpOpNeq
	return x
}

func within(p netip.Prefix, offset uint32) exprs {
	n := p.Addr().BitLen() / 8
	m := make([]byte, n)
	for i := range p.Bits() {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return exprs{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(n)},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(n), Mask: m, Xor: make([]byte, n)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// local matches packets to one of the host's own addresses.
func local() exprs {
	return exprs{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true}, is(native(unix.RTN_LOCAL))}
}

var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// published sends packets to one of the host's own addresses to an instance.
func published(m api.PortMap, to netip.Addr) []exprs {
	family := uint32(unix.NFPROTO_IPV4)
	if to.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return []exprs{
		{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, is([]byte{byte(family)})},
		proto(protocols[m.Protocol]), port(m.Host), local(),
		{
			&expr.Immediate{Register: 1, Data: to.AsSlice()},
			&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, m.Instance)},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
		},
	}
}

func ifname(s string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, s)
	return b
}

func sorted(ports map[netip.Addr][]api.PortMap) []netip.Addr {
	var all []netip.Addr
	for a := range ports {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
