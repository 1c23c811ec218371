// Package scenarios tests protocols between the tiers as text: one .txt file per scenario, which
// sim.Console runs in the simulator without random faults. A block has a command, a line of dashes
// and the output:
//
//	apply acme/shop web replicas=2
//	----
//	ok
//
// `go test ./testbed/scenarios -update` writes the outputs; review the difference before you commit
// it.
package scenarios
