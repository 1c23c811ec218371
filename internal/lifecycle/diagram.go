package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Diagram returns the table as a Mermaid state diagram, with one arrow for all events between two
// states. Withdraw, which every state except terminated accepts, is drawn once.
func Diagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n    [*] --> registered\n")
	for _, from := range States {
		for _, to := range States {
			if events := between(from, to); len(events) > 0 {
				fmt.Fprintf(&b, "    %s --> %s: %s\n", from, to, strings.Join(events, ", "))
			}
		}
	}
	fmt.Fprintf(&b, "    note right of %s: %s leads here from every state\n", api.Terminated, Withdraw)
	fmt.Fprintf(&b, "    %s --> [*]\n", api.Terminated)
	return b.String()
}

func Text() string {
	var b strings.Builder
	for _, from := range States {
		fmt.Fprintln(&b, from)
		edges := 0
		for _, to := range States {
			if events := between(from, to); len(events) > 0 {
				fmt.Fprintf(&b, "  ──▶ %-18s %s\n", to, strings.Join(events, ", "))
				edges++
			}
		}
		if _, ok := next[from][Withdraw]; ok {
			fmt.Fprintf(&b, "  ──▶ %-18s %s\n", api.Terminated, Withdraw)
		} else if edges == 0 {
			b.WriteString("  (the end)\n")
		}
	}
	return b.String()
}

// between returns the events that lead from one state to another, except Withdraw.
func between(from, to api.State) []string {
	var events []string
	for e, t := range next[from] {
		if t == to && e != Withdraw {
			events = append(events, string(e))
		}
	}
	slices.Sort(events)
	return events
}
