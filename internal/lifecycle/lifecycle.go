// Package lifecycle is the lifecycle of an instance as one table: state × event → state (Oakestra
// paper, figure 3). A failed instance that has ended permanently accepts Withdraw only. It has no
// state of its own but is marked by its reason (api.Ended), for tiers of an earlier release. The
// diagram in docs/architecture.md is generated from the table.
//
//	s, err := lifecycle.Next(api.Created, lifecycle.Started) // api.Running
package lifecycle

import (
	"fmt"
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Event is an event of an instance.
type Event string

const (
	Request       Event = "request"        // the instance is wanted
	ClusterChosen Event = "cluster_chosen" // the root placed it
	NodeChosen    Event = "node_chosen"    // the cluster placed it
	ImageReady    Event = "image_ready"    // the node created the workload
	Started       Event = "started"        // it runs
	StartFailed   Event = "start_failed"   // it could not be created or started
	ExitedOK      Event = "exited_ok"      // a one-shot ended with 0
	ExitedBad     Event = "exited_bad"     // it ended with another code, or is not a one-shot
	Restart       Event = "restart"        // the node starts it again, after a back-off
	Replace       Event = "replace"        // the cluster removes it from its node
	NodeLost      Event = "node_lost"      // its node is dead
	HandBack      Event = "hand_back"      // the cluster hands it back to the root
	ClusterLost   Event = "cluster_lost"   // its cluster is dead
	Sleep         Event = "sleep"          // the cluster takes it off its node until it is due again
	Wake          Event = "wake"           // it is due: the cluster looks for a node
	Withdraw      Event = "withdraw"       // the instance is no longer wanted
)

var next = map[api.State]map[Event]api.State{
	api.Registered: {
		Request: api.Requested, Withdraw: api.Terminated,
	},
	api.Requested: {
		ClusterChosen: api.ClusterScheduled, Withdraw: api.Terminated,
	},
	api.ClusterScheduled: {
		NodeChosen: api.NodeScheduled, Sleep: api.Dormant, HandBack: api.Requested,
		ClusterLost: api.Requested, Withdraw: api.Terminated,
	},
	api.NodeScheduled: {
		ImageReady: api.Created, StartFailed: api.Failed,
		Replace: api.ClusterScheduled, NodeLost: api.ClusterScheduled, Sleep: api.Dormant,
		HandBack: api.Requested, ClusterLost: api.Requested, Withdraw: api.Terminated,
	},
	api.Created: {
		Started: api.Running, StartFailed: api.Failed,
		Replace: api.ClusterScheduled, NodeLost: api.ClusterScheduled, Sleep: api.Dormant,
		HandBack: api.Requested, ClusterLost: api.Requested, Withdraw: api.Terminated,
	},
	api.Running: {
		ExitedOK: api.Completed, ExitedBad: api.Failed,
		Replace: api.ClusterScheduled, NodeLost: api.ClusterScheduled, Sleep: api.Dormant,
		HandBack: api.Requested, ClusterLost: api.Requested, Withdraw: api.Terminated,
	},
	api.Failed: {
		Restart: api.NodeScheduled,
		Replace: api.ClusterScheduled, NodeLost: api.ClusterScheduled, Sleep: api.Dormant,
		HandBack: api.Requested, ClusterLost: api.Requested, Withdraw: api.Terminated,
	},
	api.Dormant: {
		Wake: api.ClusterScheduled, HandBack: api.Requested, ClusterLost: api.Requested, Withdraw: api.Terminated,
	},
	api.Completed: {
		Withdraw: api.Terminated,
	},
	api.Terminated: {},
}

// States are all states, in the usual order of a lifecycle.
var States = []api.State{
	api.Registered, api.Requested, api.ClusterScheduled, api.NodeScheduled,
	api.Created, api.Running, api.Completed, api.Dormant, api.Failed, api.Terminated,
}

// Next returns the state after the event, or ErrConflict if the table has no such edge.
func Next(s api.State, e Event) (api.State, error) {
	if to, ok := next[s][e]; ok {
		return to, nil
	}
	return s, fmt.Errorf("event %[2]s in state %[1]s is illegal: %[3]w", s, e, api.ErrConflict)
}

// Must is Next for events from inside the daemon. It panics if the table has no such edge.
func Must(s api.State, e Event) api.State {
	to, err := Next(s, e)
	if err != nil {
		panic(err)
	}
	return to
}

// Leads reports whether a sequence of events leads from one state to another. It is for
// observations, which may skip states because messages were lost.
func Leads(from, to api.State) bool { return reach[from][to] }

var reach = closure()

func closure() map[api.State]map[api.State]bool {
	r := make(map[api.State]map[api.State]bool, len(next))
	for from := range next {
		seen := map[api.State]bool{}
		todo := []api.State{from}
		for len(todo) > 0 {
			s := todo[0]
			todo = todo[1:]
			for _, to := range next[s] {
				if !seen[to] {
					seen[to] = true
					todo = append(todo, to)
				}
			}
		}
		r[from] = seen
	}
	return r
}

type Edge struct {
	From  api.State
	Event Event
	To    api.State
}

// Edges returns the table, in a constant order.
func Edges() []Edge {
	var es []Edge
	for _, from := range States {
		for _, e := range slices.Sorted(maps.Keys(next[from])) {
			es = append(es, Edge{from, e, next[from][e]})
		}
	}
	return es
}
