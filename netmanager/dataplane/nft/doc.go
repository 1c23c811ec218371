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
// instance's packet. In forward, packets of established flows are let through; that
// is all, and connection tracking rewrites them. Only the first packet of a flow is looked at further: policy,
// the service's chain, where one counter (numgen) gives the turns, policy again
// where it arrives. Packets that the plane cannot judge are copied to the hold
// device and dropped.
//
// Sets are keyed by IPv4 addresses; an IPv6 packet's key is the low half of its twin.
// So one element serves both families, and both take turns by one counter. A change is a
// few elements in one transaction, whatever the table holds.
//
// It needs the kernel's nf_tables with nat, numgen, fib, reject and dup
// expressions (Linux 5.10 and later as distributions build it), and no program.
package nft
