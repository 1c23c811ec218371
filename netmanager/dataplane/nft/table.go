package nft

import (
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// queueMark marks packets for the packet queue between two hooks within forward. No packet
// leaves the host with it.
const queueMark = 0x74726c68

// The names of the counters.
const (
	denied = "denied"
	forged = "forged"
)

// table writes the chains that depend on the Node alone. Chains are created before their rules,
// which refer to one another.
type table struct {
	*batch
	*nftables.Table
	*sets
	node     plane.Node
	maxFlows uint32 // of an instance
}

func (t table) rule(chain string, parts ...exprs) {
	t.addRule(t.Table, chain, t.encode(t.Family, rule(parts...)))
}

// base writes the table without the elements.
func (t table) base(queue int, outside [2][]exprs) {
	t.addTable(t.Table)
	for i, s := range t.all {
		t.addSet(s, i+1)
	}
	for _, c := range []string{denied, forged} {
		t.addCounter(t.Table, c)
	}
	filter, nat := nftables.ChainTypeFilter, nftables.ChainTypeNAT
	t.addBase(t.Table, "prerouting-raw", nftables.ChainHookPrerouting, filter, -300)
	t.addBase(t.Table, "output-raw", nftables.ChainHookOutput, filter, -300)
	t.addBase(t.Table, "prerouting-nat", nftables.ChainHookPrerouting, nat, -100)
	t.addBase(t.Table, "output-nat", nftables.ChainHookOutput, nat, -100)
	t.addBase(t.Table, "forward", nftables.ChainHookForward, filter, 0)
	t.addBase(t.Table, "input", nftables.ChainHookInput, filter, 0)
	t.addBase(t.Table, "postrouting-nat", nftables.ChainHookPostrouting, nat, 100)
	for _, name := range []string{"vxlan-source", "to-overlay-device", "to-remote", "check-state", "to-host", "accept-flow", "service-chains", "translate", "reject-flow", "masquerade", forged, denied, "to-queue"} {
		t.addChain(t.Table, name)
	}
	fams := families(t.node.Ranges)
	for _, name := range []string{"prerouting-raw6", "prerouting-nat6", "output-nat6", "forward6"} {
		t.addChain(t.Table, name)
	}
	for _, f := range fams {
		for _, name := range []string{"overlay-source", "other-source", "service-flow", "service-allowed", "translated", "flow-limit", "flow-limit-sampled", "flow-limit-full", "new-flow", "to-instance", "from-instance", "queue-limit", "to-outside"} {
			t.addChain(t.Table, name+f.suffix)
		}
	}
	t.verdictChains()
	t.dispatch(fams)
	// One chain for both families: with every added rule the kernel walks all chains of a
	// verdict map from each place that uses it.
	t.rule("service-chains", meta(expr.MetaKeyMARK, r(0)), find(t.services, r(0), unix.NFT_REG_VERDICT))
	t.rule("postrouting-nat", negated(toOurs(t.node.Prefix)), goTo("masquerade"))
	for i, f := range fams {
		t.checkSource(f)
		t.limitFlows(f)
		t.serviceFlows(f)
		t.destinationNAT(f)
		t.newFlows(f)
		t.sourceNAT(f)
		for _, x := range outside[i] {
			t.rule("to-outside"+f.suffix, x)
		}
		t.rule("to-outside"+f.suffix, goTo("accept-flow"))
		t.copyToQueue(f, queue)
	}
}

func (t table) verdictChains() {
	t.rule(denied, count(denied), drop())
	t.rule(forged, count(forged), drop())
	t.rule("accept-flow", clearMarks(), accept())
	t.rule("to-queue", immediate(r(0), native(queueMark)), setMark(r(0)), accept())
	t.rule("reject-flow", protocol(unix.IPPROTO_TCP), reset())
	const portUnreachable = 1
	t.rule("reject-flow", exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: portUnreachable}})
}

// clearMarks removes the marks that loadIdents sets.
func clearMarks() exprs { return rule(immediate(r(0), native(0)), setMark(r(0)), setFlowMark(r(0))) }

func reset() exprs { return exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

// dispatch writes the rules for both families. Each packet passes few rules, because rules and
// device names are most of nftables' cost per packet.
func (t table) dispatch(fams [2]family) {
	six := fams[1]
	for _, chain := range []string{"prerouting-raw", "prerouting-nat", "output-nat", "forward"} {
		t.rule(chain, six.only(), goTo(chain+"6"))
	}
	for _, f := range fams {
		c := "prerouting-raw" + f.suffix
		if own := t.ownSubnet(f, f.source); own != nil {
			t.rule(c, own, meta(expr.MetaKeyIIFNAME, r(0)), network(f.source.low, 4, r(4)), in(t.endpoints, r(0)), accept())
		}
		t.rule(c, negated(f.instance(f.source)), goTo("other-source"+f.suffix))
		t.rule(c, meta(expr.MetaKeyIIFNAME, r(0)), network(f.source.low, 4, r(4)), mask(r(4), t.subnetMask()), in(t.fromPeers, r(0)), accept())
		t.rule(c, fromOurs(t.node.Prefix), goTo("overlay-source"+f.suffix))
		t.rule(c, goTo(forged))
	}

	// By destination first, which is cheaper than by device. Packets that are neither for this
	// node nor for a peer are examined if they are to or from the overlay's devices.
	vxlan := plane.VXLANDevice(t.node.Prefix)
	for _, f := range fams {
		c := "forward" + f.suffix
		if own := t.ownSubnet(f, f.destination); own != nil {
			t.rule(c, own, goTo("check-state"))
		}
		t.rule(c, f.key(f.destination, r(0)), mask(r(0), t.subnetMask()), in(t.toPeers, r(0)), goTo("to-remote"))
		t.rule(c, toOurs(t.node.Prefix), goTo("to-overlay-device"))
		t.rule(c, fromOurs(t.node.Prefix), goTo("to-remote"))
	}
	t.rule("to-overlay-device", to(vxlan), goTo("to-remote"))
	t.rule("to-overlay-device", to(t.node.Tunnel), goTo("to-remote"))
	t.rule("to-overlay-device", goTo("check-state"))
	// SYNs and their answers to a peer get the segment size of the path in both directions.
	// Assured flows are past both.
	t.rule("to-remote", assured(), accept())
	t.rule("to-remote", protocol(unix.IPPROTO_TCP), transport(13, 1, r(12)), mask(r(12), []byte{syn}), not(r(12), []byte{0}),
		exprs{
			&expr.Rt{Key: expr.RtTCPMSS, Register: r(0)},
			&expr.Byteorder{SourceRegister: r(0), DestRegister: r(0), Op: expr.ByteorderHton, Len: 2, Size: 2},
			&expr.Exthdr{SourceRegister: r(0), Type: 2, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
		})
	t.rule("to-remote", established(), accept())
	// The policy of flows that got a turn was checked before.
	for _, f := range fams {
		t.rule("to-remote", f.only(), f.key(f.source, r(0)), in(t.local, r(0)), translated(), f.key(f.destination, r(0)), in(t.backends, r(0)), goTo("translated"+f.suffix))
		t.rule("translated"+f.suffix, jump("flow-limit"+f.suffix))
	}
	t.rule("to-remote", fromOurs(t.node.Prefix), goTo("check-state"))
	t.rule("to-remote", toOurs(t.node.Prefix), goTo("check-state"))
	t.rule("check-state", established(), accept())
	t.rule("check-state", state(expr.CtStateBitINVALID), drop())
	t.rule("check-state", six.only(), goTo("new-flow6"))
	t.rule("check-state", goTo("new-flow"))

	t.rule("input", fromOurs(t.node.Prefix), goTo("to-host"))
	for _, f := range fams { // of peers on plain routes
		t.rule("input", f.only(), f.instance(f.source), goTo("to-host"))
	}
	// An instance reaches only the resolver of the host.
	t.rule("to-host", established(), accept())
	t.rule("to-host", neighbours(), accept())
	four := fams[0]
	t.rule("to-host", four.only(), jump("flow-limit"))
	resolver := rule(four.only(), network(four.destination.at, 4, r(12)), is(r(12), wire.ResolverAddr.AsSlice()))
	for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		t.rule("to-host", resolver, protocol(p), toPort(53), accept())
	}
	t.rule("to-host", resolver, protocol(unix.IPPROTO_ICMP), accept())
	t.rule("to-host", goTo(denied))
	if t.node.VXLAN != 0 {
		t.rule("output-raw", t.vxlan(), four.only(), exprs{&expr.Notrack{}}, accept())
	}
	// While the resolver is down, as in a restart, drop the error: a client that gets one
	// fails, and one that gets nothing repeats its query. The query's own header identifies it,
	// because the kernel may send errors about other packets from the resolver's address.
	t.rule("output-raw", four.only(), protocol(unix.IPPROTO_ICMP), transport(0, 2, r(12)), is(r(12), dataplane.PortUnreachable),
		transport(dataplane.AboutTo, 4, r(12)), is(r(12), wire.ResolverAddr.AsSlice()), drop())
}

// ownSubnet matches the addresses of this node's subnet; nil if it has none.
func (t table) ownSubnet(f family, at field) exprs {
	own := t.node.Subnet
	if !own.IsValid() {
		return nil
	}
	low := rule(network(at.low, 4, r(12)), mask(r(12), bits(4, own.Bits())), is(r(12), own.Masked().Addr().AsSlice()))
	if f.six() {
		return rule(f.instance(at), low)
	}
	return low
}

// subnetMask returns the mask of nodes' subnets, by which peers are counted and checked.
func (t table) subnetMask() []byte { return bits(4, t.node.Ranges.Subnet) }

// neighbours matches neighbour discovery (RFC 4861) between a container and the host.
func neighbours() exprs {
	return rule(protocol(unix.IPPROTO_ICMPV6), transport(0, 1, r(12)), compare(expr.CmpOpGte, r(12), []byte{133}), compare(expr.CmpOpLte, r(12), []byte{137}))
}

// checkSource drops packets with forged sources. It precedes connection tracking, so that a
// forged segment ends no flow.
func (t table) checkSource(f family) {
	c, other := "overlay-source"+f.suffix, "other-source"+f.suffix
	t.rule(c, meta(expr.MetaKeyIIFNAME, r(0)), f.key(f.source, r(4)), in(t.endpoints, r(0)), accept())
	// Packets of the queue were checked before they were queued. The tunnel authenticates
	// peers, but must not deliver this node's own addresses.
	t.rule(c, from(t.node.Queue), accept())
	if own := t.ownSubnet(f, f.source); own != nil {
		t.rule(c, from(t.node.Tunnel), own, goTo(forged))
	}
	t.rule(c, from(t.node.Tunnel), f.instance(f.source), accept())
	if f.six() {
		t.rule(c, neighbours(), accept())
		// A kernel's own link traffic (MLD) is neither forged nor needed.
		t.rule(c, network(f.destination.at, 1, r(12)), is(r(12), []byte{0xff}), drop())
	}
	t.rule(c, goTo(forged))

	// The source is not an address of an instance.
	t.rule(other, fromOurs(t.node.Prefix), goTo(c))
	if t.node.VXLAN != 0 && !f.six() {
		t.rule(other, t.vxlan(), goTo("vxlan-source"))
		// Offsets within VXLAN: UDP 8, VXLAN 8, Ethernet 14. An unencrypted peer may send from
		// its own subnets. After decapsulation the peer is unknown.
		const ethertype, inner = 28, 30
		sender := network(f.source.at, 4, r(0))
		t.rule("vxlan-source", transport(ethertype, 2, r(12)), is(r(12), big16(unix.ETH_P_IP)),
			sender, transport(inner+12, 4, r(1)), mask(r(1), t.subnetMask()), in(t.vxlanSources, r(0)), exprs{&expr.Notrack{}}, accept())
		t.rule("vxlan-source", transport(ethertype, 2, r(12)), is(r(12), big16(unix.ETH_P_IPV6)),
			transport(inner+8, 12, r(12)), is(r(12), high(f.ranges.Instances6)),
			sender, transport(inner+20, 4, r(1)), mask(r(1), t.subnetMask()), in(t.vxlanSources, r(0)), exprs{&expr.Notrack{}}, accept())
		t.rule("vxlan-source", goTo(forged))
	}
	t.rule(other, f.service(f.source), goTo(forged))
}

// vxlan matches packets of peers' VXLAN devices, which use IPv4.
func (t table) vxlan() exprs {
	return rule(protocol(unix.IPPROTO_UDP), toPort(t.node.VXLAN))
}

// serviceFlows sends a new flow to the chain of its service, and one to a published port to its
// instance.
func (t table) serviceFlows(f family) {
	c := "service-flow" + f.suffix
	t.rule("prerouting-nat"+f.suffix, f.service(f.destination), goTo(c))
	t.rule("prerouting-nat"+f.suffix, f.instance(f.destination), accept()) // not an address of the host
	// A segment of an unknown flow gets no backend: forward resets it.
	t.rule(c, midstream(), accept())
	callee := network(f.destination.low, 4, r(0))
	t.loadIdents(c, f, callee)
	t.rule(c, t.pair(), goTo("service-allowed"+f.suffix))
	t.rule(c, known(), goTo(denied))
	t.rule(c, goTo("accept-flow")) // its route leads to the packet queue's device
	t.rule("service-allowed"+f.suffix, clearMarks(), callee, setMark(r(0)), goTo("service-chains"))

	// To any published address of the host, except from an instance.
	for _, chain := range []string{"prerouting-nat" + f.suffix, "output-nat" + f.suffix} {
		for _, p := range dataplane.Unpublished {
			if p.Addr().Is6() == f.six() {
				t.rule(chain, inPrefix(f.destination, p), accept())
			}
		}
		if !f.six() {
			t.rule(chain, inPrefix(f.destination, dataplane.Loopback), negated(inPrefix(f.destination, dataplane.Localhost)), accept())
		}
	}
	published := rule(toHostAddress(), meta(expr.MetaKeyL4PROTO, r(0)), transport(2, 2, r(1)))
	dnat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: r(7), RegProtoMin: r(8), Specified: true}
	rewrite := rule(find(t.ports, r(0), r(7)), exprs{dnat})
	if f.six() {
		dnat.RegProtoMin = r(11)
		rewrite = rule(find(t.ports6, r(0), r(7)), exprs{dnat})
	}
	t.rule("prerouting-nat"+f.suffix, negated(fromOurs(t.node.Prefix)), published, rewrite)
	t.rule("output-nat"+f.suffix, published, rewrite)

	// Only challenge sends segments from the host with the source of an instance or a service. They
	// open no flow.
	t.rule("output-raw", f.only(), f.instance(f.source), exprs{&expr.Notrack{}})
	t.rule("output-raw", f.only(), f.service(f.source), exprs{&expr.Notrack{}})
}

// loadIdents stores the idents of both ends of a flow, 0 for none: the caller's in the packet's mark,
// the other's in the flow's mark. The chain accept-flow clears both. It does not use registers, because
// nft(8) crashes when it lists a look-up of a key that a map yielded.
func (t table) loadIdents(chain string, f family, destination exprs) {
	t.rule(chain, clearMarks())
	t.rule(chain, f.key(f.source, r(0)), find(t.idents, r(0), r(0)), setMark(r(0)))
	t.rule(chain, destination, find(t.idents, r(0), r(0)), setFlowMark(r(0)))
}

func setMark(reg uint32) exprs {
	return exprs{&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg}}
}

func setFlowMark(reg uint32) exprs {
	return exprs{&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: reg}}
}

func flowMark(reg uint32) exprs { return exprs{&expr.Ct{Key: expr.CtKeyMARK, Register: reg}} }

// pair matches flows that policy allows.
func (t table) pair() exprs {
	return rule(meta(expr.MetaKeyMARK, r(0)), flowMark(r(1)), in(t.allowed, r(0)))
}

// known matches flows both of whose ends have an ident.
func known() exprs {
	return rule(meta(expr.MetaKeyMARK, r(0)), not(r(0), native(0)), flowMark(r(0)), not(r(0), native(0)))
}

// newFlows applies policy to a new flow after its destination is translated.
func (t table) newFlows(f family) {
	n, toInstance, fromInstance := "new-flow"+f.suffix, "to-instance"+f.suffix, "from-instance"+f.suffix
	// Reset a client on this node that continues a flow that ended.
	t.rule(n, midstream(), f.key(f.source, r(0)), in(t.local, r(0)), reset())
	t.rule(n, jump("flow-limit"+f.suffix))
	t.rule(n, f.key(f.source, r(0)), in(t.local, r(0)), translated(), f.key(f.destination, r(0)), in(t.backends, r(0))) // counts the flow
	t.loadIdents(n, f, f.key(f.destination, r(0)))
	t.rule(n, f.key(f.destination, r(0)), in(t.local, r(0)), goTo(toInstance))
	t.rule(n, f.instance(f.source), goTo(fromInstance))
	t.rule(n, goTo(denied))

	t.rule(toInstance, f.key(f.source, r(0)), in(t.sources, r(0))) // counts the flow
	t.rule(toInstance, t.pair(), goTo("accept-flow"))
	t.rule(toInstance, known(), goTo(denied))
	t.rule(toInstance, f.instance(f.source), goTo("to-queue"))
	t.rule(toInstance, translated(), goTo("accept-flow")) // a published port
	t.rule(toInstance, goTo(denied))

	t.rule(fromInstance, f.service(f.destination), goTo("queue-limit"+f.suffix))
	// With the route to the packet queue's device, connection tracking would keep that device as the
	// flow's destination, and the packet would never get a backend.
	t.rule(fromInstance, to(t.node.Queue), goTo("queue-limit"+f.suffix))
	t.rule(fromInstance, f.instance(f.destination), t.pair(), goTo("accept-flow"))
	t.rule(fromInstance, known(), goTo(denied))
	t.rule(fromInstance, f.instance(f.destination), goTo("queue-limit"+f.suffix))
	t.rule(fromInstance, f.key(f.source, r(0)), in(t.local, r(0)), goTo("to-outside"+f.suffix))
	t.rule(fromInstance, goTo(denied))

	// The packet queue is shared: limit the packets of each instance.
	often := &expr.Limit{Type: expr.LimitTypePkts, Rate: queuePerSecond, Unit: expr.LimitTimeSecond, Burst: queueBurst, Over: true}
	t.rule("queue-limit"+f.suffix, f.key(f.source, r(0)), updateSet(t.queueRate, r(0), unix.NFT_DYNSET_OP_UPDATE, time.Minute, often), drop())
	t.rule("queue-limit"+f.suffix, goTo("to-queue"))
}

// queuePerSecond and queueBurst are the rate per second and the burst of queued packets of an instance.
const queuePerSecond, queueBurst = 2048, 256

// sourceNAT translates sources: of an instance that is its own backend, which would drop a
// packet from its own address, and of packets to the outside.
func (t table) sourceNAT(f family) {
	t.rule("masquerade", f.only(), f.instance(f.source), negated(f.instance(f.destination)), exprs{&expr.Masq{}})
	kept := &expr.Ct{Key: expr.CtKeyDST, Register: r(0)} // the semantic address
	t.rule("postrouting-nat", f.only(), meta(expr.MetaKeyOIFNAME, r(0)), f.key(f.source, r(4)), in(t.endpoints, r(0)),
		exprs{kept, &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.proto), RegAddrMin: r(0)}})
	if !f.six() { // the host's own call to a published port of localhost
		t.rule("postrouting-nat", f.only(), inPrefix(f.source, dataplane.Loopback), exprs{&expr.Masq{}})
	}
}

// outsideRules returns the rules for packets from instances to the outside: exceptions first, then
// closed networks.
func outsideRules(fams [2]family, open, closed []netip.Prefix) [2][]exprs {
	var out [2][]exprs
	add := func(ps []netip.Prefix, end exprs) {
		for _, p := range ps {
			i := 0
			if p.Addr().Is6() {
				i = 1
			}
			out[i] = append(out[i], rule(inPrefix(fams[i].destination, p), end))
		}
	}
	add(open, goTo("accept-flow"))
	add(closed, goTo(denied))
	return out
}

// copyToQueue copies marked packets to the packet queue's device and drops them. A table of both
// families cannot duplicate packets, so that each family has a table for it.
func (t table) copyToQueue(f family, device int) {
	own := &nftables.Table{Name: t.Name, Family: nftables.TableFamilyIPv4}
	gateway := wire.GatewayAddr
	if f.six() {
		own.Family, gateway = nftables.TableFamilyIPv6, wire.GatewayAddr6
	}
	queue := table{batch: t.batch, Table: own}
	t.addTable(own)
	t.addBase(own, "to-queue", nftables.ChainHookForward, nftables.ChainTypeFilter, 1)
	queued := rule(meta(expr.MetaKeyMARK, r(12)), is(r(12), native(queueMark)))
	if device != 0 {
		queued = rule(queued, immediate(r(0), gateway.AsSlice()), immediate(r(4), native(uint32(device))),
			exprs{&expr.Dup{RegAddr: r(0), RegDev: r(4), IsRegDevSet: true}})
	}
	queue.rule("to-queue", queued, drop())
}

func serviceChain(a netip.Addr) string { return "service-" + a.String() }

// turns returns expressions that draw one of n turns, or refuse the flow if n is 0. Both families
// share the counter. The kernel checks a map's new elements against all rules that use the map, so the
// look-up is in one chain for all services.
func (t table) turns(n int) exprs {
	if n == 0 {
		return goTo("reject-flow")
	}
	return rule(exprs{&expr.Numgen{Register: r(0), Modulus: uint32(n), Type: unix.NFT_NG_INCREMENTAL}}, setMark(r(0)), goTo("translate"))
}

// destinationNAT sends the flow to its service's backend of the drawn turn.
func (t table) destinationNAT(f family) {
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: r(7)}
	backend := rule(network(f.destination.low, 4, r(0)), meta(expr.MetaKeyMARK, r(1)), find(t.slots, r(0), r(7)))
	if f.six() {
		nat.RegAddrMin = r(4)
		backend = rule(backend, immediate(r(4), high(f.ranges.Instances6)))
	}
	t.rule("translate", f.only(), backend, clearMarks(), exprs{nat})
}
