// Package nft is the data plane for every kernel that has nftables and
// connection tracking: one table of ours holds the choice of a backend, the rewriting
// and the policy. It leaves devices and routes to netmanager/link, and other
// people's tables alone.
//
//	p, err := nft.New("tl")
//	err = p.Sync(ctx, state)
//
// What a packet passes. In prerouting, before connection tracking sees it, the
// sender's address is held against the device it came from: one look-up for an
// instance's packet. In forward, packets of established flows are let through, those
// to a peer after they are counted; connection tracking rewrites them. Only a flow's first
// packet is looked at further: policy, the service's chain, where one counter (numgen)
// gives the turns, policy again where it arrives. Packets that the plane cannot judge are
// copied to the hold device and dropped.
//
// Sets are keyed by IPv4 addresses; an IPv6 packet's key is the low half of its twin.
// So one element serves both families, and both take turns by one counter. A change is a
// few elements, and a rule where a service's number of turns changes, in one transaction.
//
// Where it ends. UDP flows live as long as net.netfilter.nf_conntrack_udp_timeout and
// …_udp_timeout_stream say, 30 and 120 s unless a host was told otherwise, and all flows of a
// host share nf_conntrack_max. A new rule has the kernel check all chains: among
// 10,000 services it costs ten milliseconds and more. Another table on the host may
// still drop what this one accepts (Docker's forward chain does). Who wants to see: nft
// list table inet tl; the bytes that it shows as numbers are addresses.
//
// It needs the kernel's nf_tables with nat, numgen, fib, reject and dup
// expressions (Linux 5.10 and later as distributions build it), and no program.
package nft
