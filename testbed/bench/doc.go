// Command bench measures the cost of Treeline and, in the same run, a baseline without it:
//
//	scripts/bench deploy            a table
//	scripts/bench idle --json       one JSON object per line
//	scripts/bench all -n 30
//
// testbed/lab starts the real daemons as processes. Their resources are read from /proc, and
// measured times end with an event of the root's watch. The number of samples during which
// other processes used the machine is part of each figure. docs/benchmarks.md has the results.
package main
