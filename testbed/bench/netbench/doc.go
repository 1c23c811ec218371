// Package netbench measures paths from a container to a container on another
// node, beside one another on the same machine: what the kernel does alone, what
// others do, and what Treeline does.
//
//	bed, err := netbench.NewBed(ctx, "wireguard", netbench.Shape{})
//	path := netbench.WireGuard()
//	err = path.Up(ctx, bed)
//	err = bed.Serve()
//	sample, err := bed.RTT(ctx, path.Target(), time.Second)
//
// A Bed is two nodes and their containers, each a network namespace that lasts as
// long as somebody holds it open: nothing is left behind, whoever is killed. What
// runs within one is this program again (Main), started there. Which figures are
// compared with which, and how often, is package bench's.
package netbench
