// Command bench measures what Treeline costs, beside the floor that the machine
// sets, in the same run:
//
//	scripts/bench deploy            a table
//	scripts/bench idle --json       one JSON object a line
//	scripts/bench all -n 30
//
// The daemons are the real ones, started by testbed/lab as processes; what is
// read about them comes from /proc, and what is timed ends with what the root
// tells its watchers. Samples during which others used the machine are counted
// and said, so that a figure can be doubted. docs/benchmarks.md has the results.
package main
