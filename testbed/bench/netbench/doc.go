// Package netbench measures paths between containers on different nodes, all on the same
// machine: the kernel alone, other programs, and Treeline.
//
//	bed, err := netbench.NewBed(ctx, "wireguard", netbench.Shape{})
//	path := netbench.WireGuard()
//	err = path.Up(ctx, bed)
//	err = bed.Serve()
//	sample, err := bed.RTT(ctx, path.Target(), time.Second)
//
// A Bed has two nodes and their containers, each a network namespace that exists as long as a
// process holds it open, so that nothing is left even after a kill. Processes within a namespace
// are this program again (Main). Package bench determines which figures are compared.
package netbench
