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
// gives the turns, policy again where it arrives, and whether the instance that begins it has
// its share of connection tracking already. Packets that the plane cannot judge are
// copied to the hold device and dropped.
//
// Sets are keyed by IPv4 addresses; an IPv6 packet's key is the low half of its twin.
// So one element serves both families, and both take turns by one counter. A change is a
// few elements, and a rule where a service's number of turns changes, in one transaction.
//
// Where it ends. UDP flows live as long as net.netfilter.nf_conntrack_udp_timeout and
// …_udp_timeout_stream say, 30 and 120 s unless a host was told otherwise. Of the
// nf_conntrack_max flows of a host, an instance of its begins at most a quarter. A new rule
// has the kernel check all chains: among 10,000 services it costs ten milliseconds and more.
// Another table on the host may still drop what this one accepts (Docker's forward chain
// does), and so does a host that is strict about ways (net.ipv4.conf.all.rp_filter=1) with what
// comes by a device of its own from a peer that ours leads to by another: 2 there lets it
// pass. Who wants to see: nft list table inet tl; the bytes that it shows as numbers are
// addresses.
//
// It needs the kernel's nf_tables with nat, numgen, fib, reject, dup, limit and
// connlimit expressions (Linux 5.10 and later as distributions build it), and no program.
package nft
