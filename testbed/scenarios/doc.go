// Package scenarios holds conversations between the tiers as text, with what
// came of them beside: one .txt file a scenario, run on the simulator's calm
// world by sim.Console. Blocks are a command, a line of dashes and its answer:
//
//	apply acme/shop web replicas=2
//	----
//	ok
//
// `go test ./testbed/scenarios -update` writes the answers anew; read the
// difference before you commit it.
package scenarios
