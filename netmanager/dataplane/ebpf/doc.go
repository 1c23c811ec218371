// Package ebpf is the data plane for kernels that take tc programs: what
// containers send and what peers send to them is judged and rewritten where it comes
// in, and goes a short way past the host's stack. It leaves devices and routes to
// netmanager/link. What is not hot is nftables': masquerading, published ports,
// closed networks, refusals.
//
//	if err := ebpf.Available(); err == nil {
//		p, err := ebpf.New("tl")
//		err = p.Sync(ctx, state)
//	}
//
// A flow has a place in a table, both its directions side by side, and an index finds it by
// the name of either; connection tracking has no part in it. Places are of three kinds: for
// first packets, for connections that were answered, for other flows that were. A flow moves
// from one to another, and one that closed stays until its place is wanted. Who opens flows
// may have a quarter of a kind's places, scattered over all, and over that its own make way,
// those that were silent longest first. So it takes more than three who flood to end a
// flow of another.
//
// A direction says what a packet becomes, the way it goes, and what that rests on: policy,
// the device that packets come from, the next hop. Every second, and after every
// change, the next packet looks at that again. So a change costs what changes, and flows
// that it does not concern see nothing of it.
//
// What is here and what is in C: bpf/types.h is what both sides mean, bpf/table.h the
// table of flows, bpf/flow.h their life, bpf/plane.c the programs. Tables of the kernel have a Go
// side each (table.go); a change is a list of steps that can be taken back
// (tx.go).
//
// Nothing is pinned. Programs are attached to devices without a link, so that
// they stay when the netmanager goes, and go with the device; maps live as long as
// programs use them, and the next life finds them through these (attach.go). A node
// without instances and peers has nothing to find. It takes Linux 5.13 or later (atomic
// operations that return, functions proved by themselves); Available asks the kernel itself.
package ebpf
