package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/testbed/lab"
)

// Result is what was measured in one cell.
type Result struct {
	Date      string  `json:"date"` // of its start, UTC
	Kernel    string  `json:"kernel"`
	CPUs      int     `json:"cpus"`
	Load      float64 `json:"load,omitempty"` // average over a minute when it had recovered; 0: not recorded
	Recovered float64 `json:"recovered"`      // s from the end of the fault until all invariants held
	Sent      int     `json:"sent"`           // requests from the start of the fault until then
	Lost      int     `json:"lost"`
	Failure   string  `json:"failure,omitempty"` // the first one
}

// load returns the load for the table.
func (r Result) load() string {
	if r.Load == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", r.Load)
}

// page returns docs/faults.md.
func page(results map[string]Result, cuts []lab.PowerCuts) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Faults

What happens when a component fails in a certain way, and how long the installation needs to recover. `+"`scripts/soak --matrix`"+`
injects each fault into real daemons and writes this page. %s

The installation has two roots on a shared store (FerretDB), a cluster with Mosquitto, three nodes with containers on the overlay
network and one with plain processes, each on a network of its own. Meanwhile a client on one node sends 100 numbered requests a
second by name to a service on two others, and applications are created and deleted at the root.

After each fault these invariants are checked:
- each instance runs once, as the root shows it;
- no acknowledged write to the root is lost;
- requests by name are answered;
- no exclusive instance had two processes at any time.

*Recovered* is the time from the end of the fault until all of them held, including %d more answered requests. Faults that last do
so for %s; SIGSTOP lasts %s. *Lost* is the number of requests that were not answered within 10 s, of those that were sent until
then. *Load* is the machine's load average over a minute, where it was recorded: beside other work the daemons wait for a processor, and
recoveries take longer. A cell that is not in a table has no injection, and is in the list below it with the test that covers it, or with the reason.

`+"`scripts/soak --lab --seed N --minutes M`"+` injects cells in an order and for durations that the seed determines, into one
installation, and checks the invariants after each.
`, ran(results), more, longHold, longStop)
	for _, c := range Components {
		fmt.Fprintf(&b, "\n## %s%s\n| Fault | Expected | Recovered | Lost | Load |\n| --- | --- | --- | --- | --- |\n", strings.ToUpper(c[:1]), c[1:])
		var others []string
		for _, cell := range Table() {
			switch r, ran := results[cell.Name()]; {
			case cell.Component != c:
			case cell.By != "":
				pkg, test, _ := strings.Cut(cell.By, " ")
				others = append(others, fmt.Sprintf("- %s: covered by `%s` in [%s](../%s)", cell.Fault, test, pkg, pkg))
			case cell.Not != "":
				others = append(others, fmt.Sprintf("- %s: not injected; %s", cell.Fault, cell.Not))
			case !ran:
				fmt.Fprintf(&b, "| %s | %s | not run | | |\n", cell.Fault, cell.Expect)
			case r.Failure != "":
				fmt.Fprintf(&b, "| %s | %s | **failed**: %s | %d of %d | %s |\n", cell.Fault, cell.Expect, cellText(r.Failure), r.Lost, r.Sent, r.load())
			default:
				fmt.Fprintf(&b, "| %s | %s | %.1f s | %d of %d | %s |\n", cell.Fault, cell.Expect, r.Recovered, r.Lost, r.Sent, r.load())
			}
		}
		b.WriteString("\n" + strings.Join(others, "\n") + "\n")
	}
	b.WriteString(`
## Power cuts
` + "`scripts/soak --power-cuts N`" + ` ends every process of another installation at once N times, under writes to the root: a root, a cluster with the
embedded broker, a node with containers and two with plain processes, 11 instances, two of them exclusive. The daemons start again in
random order; a quarter of the cuts come during the recovery from the one before. After each recovery all instances run once, as the root shows
them, and no acknowledged write is lost. *Recovered* counts the cuts without another one during the recovery. The load is the average
over the last 5 minutes of the run, also of other programs on the machine: with many of them, starts take long. The goal is 100 cuts in one
run, each recovered from within 10 s.

| Ended (UTC) | Cuts | Recovered | Within 10 s | Median | Longest | Acknowledged writes | Lost | Processors | Load |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
`)
	for _, r := range cuts {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %.1f s | %.1f s | %d | 0 | %d | %.0f |\n", r.Date, r.Cuts, r.Recovered, r.Soon, r.Median, r.Longest, r.Writes, r.CPUs, r.Load)
	}
	if len(known) > 0 {
		b.WriteString("\n## Known faults\nFound by a cell, and not fixed:\n")
	}
	for _, cell := range Table() {
		if why := known[cell.Name()]; why != "" {
			fmt.Fprintf(&b, "- %s: %s\n", cell.Name(), why)
		}
	}
	return b.String()
}

// kernel returns the version of the running kernel.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	release, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	return release
}

// ran says when and where the results were measured.
func ran(results map[string]Result) string {
	if len(results) == 0 {
		return "It has not run yet."
	}
	cells, failed := 0, 0
	for _, c := range Table() {
		if c.Inject != nil {
			cells++
		}
	}
	first, last, where := "~", "", map[string]bool{}
	for _, r := range results {
		first, last = min(first, r.Date), max(last, r.Date)
		where[fmt.Sprintf("%d processors and Linux %s", r.CPUs, r.Kernel)] = true
		if r.Failure != "" {
			failed++
		}
	}
	return fmt.Sprintf("%d of the %d injected cells have run, between %s and %s UTC, on a machine with %s; %d failed.",
		len(results), cells, first, last, strings.Join(slices.Sorted(maps.Keys(where)), "; "), failed)
}

// cellText returns text that fits into a cell of a table.
func cellText(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", "\n", " ").Replace(s[:min(len(s), 300)])
}
