// Package sim runs the cores of all three tiers in one event heap: the real
// root, cluster and node cores, on machines whose clocks drift, whose links
// lose, delay, double and reorder, which stop, pause and crash between any two
// saves, with a fake runtime under each node. There is no goroutine and no wall
// clock in it, and all chance comes from one seed, so that whatever a seed finds
// it finds again.
//
//	res := sim.Run(42, sim.Options{})
//	if res.Violation != nil { fmt.Println(sim.Replay(42, sim.Options{})) }
//
// What it leaves to others: real sockets, files and containers are testbed/lab's.
// The same World, driven by a person's commands instead of chance, is what
// testbed/scenarios runs.
package sim
