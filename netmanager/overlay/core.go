// Package overlay is the core of a netmanager: which addresses the node's
// instances have, what of the network they have asked for, which backend a
// service's flows go to, and how each peer is reached. It asks the cluster for
// what its instances want, keeps it current while it is used, and goes on with
// what it knows when the cluster is away.
//
//	c := overlay.New(overlay.Config{})
//	eff := c.Step(now, overlay.Miss{Local: client, Remote: semantic})
package overlay
