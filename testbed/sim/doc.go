// Package sim runs the real cores of root, clusters and nodes in one event queue, with a
// fake runtime under each node. Clocks drift; links lose, delay, duplicate and reorder
// messages; machines stop, pause and crash between any two saves. There is no goroutine and
// no wall clock, and one seed determines all random choices, so that a run can be repeated.
//
//	res := sim.Run(42, sim.Options{})
//	if res.Violation != nil { fmt.Println(sim.Replay(42, sim.Options{})) }
//
// Package testbed/lab tests real sockets, files and containers. Package testbed/scenarios
// drives the same World by commands instead of random choices.
package sim
