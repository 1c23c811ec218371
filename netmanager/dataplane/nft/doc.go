// Package nft is the data plane for kernels with nftables and connection tracking. One table
// chooses backends, translates addresses and enforces policy. Package netmanager/link sets up
// devices and routes. The package does not touch other tables.
//
//	p, err := nft.New("tl")
//	err = p.Sync(ctx, state)
//
// Packet processing: in prerouting, before connection tracking, the source address is checked
// against the device, with one look-up for an instance's packet. In forward, packets of
// established flows are accepted, those to a peer after they are counted; connection tracking
// translates them. Only a flow's first packet is examined further: policy, the service's chain,
// where a counter (numgen) yields the turn, policy again at the destination, and whether the
// instance that opens the flow is within its share of connection tracking. Packets that need an
// answer of the core are copied to the packet queue's device and dropped.
//
// Sets are keyed by IPv4 addresses; the key of an IPv6 packet is the IPv4 address in its last four
// bytes. One element therefore serves both families, which share one counter of turns. A change is one
// transaction of a few elements, and a rule if the number of a service's turns changes.
//
// Limits: UDP flows live as long as net.netfilter.nf_conntrack_udp_timeout and
// …_udp_timeout_stream, 30 and 120 s by default. An instance opens at most a quarter of the host's
// nf_conntrack_max flows. The kernel validates all chains when a rule is added, which takes ten
// milliseconds or more with 10,000 services. Another table on the host may still drop packets that
// this one accepts, as Docker's forward chain does. Strict reverse-path filtering
// (net.ipv4.conf.all.rp_filter=1) drops packets that arrive by another device than this node uses
// for the peer; with the value 2 they pass. `nft list table inet tl` shows the table; byte strings
// in it are addresses.
//
// The package needs nf_tables with nat, numgen, fib, reject, dup, limit and connlimit
// expressions (Linux 5.10 and later, as distributions build it), and no program.
package nft
