// Package ebpf is the data plane for kernels with tc programs. It checks and translates packets
// where they enter, and forwards them past most of the host's stack. Package netmanager/link
// sets up devices and routes. Rare cases use nftables: masquerading, published ports, closed
// networks, refusals.
//
//	if err := ebpf.Available(); err == nil {
//		p, err := ebpf.New("tl")
//		err = p.Sync(ctx, state)
//	}
//
// Both directions of a flow share a place in a table. An index finds the place by the addresses and
// ports of either direction. Connection tracking is not used. There are three kinds of places: for
// first packets, for answered connections, and for other answered flows. A flow moves from one
// kind to another; a closed flow stays until its place is needed. A client may use a quarter of the
// places of a kind, distributed over the table. Beyond that its own flows are evicted, the longest
// silent first. Thus three flooding clients cannot end the flow of another.
//
// A direction stores how its packets are translated and forwarded, and what that depends on:
// policy, the device that packets come from, the next hop. Every second, and after every change, the
// next packet checks this again. Therefore the cost of a change does not depend on the number of
// flows, and other flows are not affected.
//
// The C code: bpf/types.h defines the shared types, bpf/table.h the table of flows, bpf/flow.h
// their lifetime, bpf/plane.c the programs. In Go each kernel map has a table (table.go), and a
// change is a list of steps that can be undone (tx.go).
//
// Nothing is pinned. Programs are attached to devices without a link: they stay when the
// netmanager ends, and are removed with the device. Maps exist as long as programs use them, and
// the next start finds them through the programs (attach.go). A node without instances and peers
// has none.
//
// The package needs Linux 5.13 or later (atomic operations that return a value, functions that are
// verified separately); Available tests the kernel itself.
package ebpf
