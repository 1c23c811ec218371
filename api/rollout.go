package api

import (
	"fmt"
	"time"
)

// RollOutState is the state of a roll-out.
type RollOutState string

// The states of a roll-out.
const (
	RollOutProgressing RollOutState = "progressing"  // instances get the version, one group after the other
	RollOutCanary      RollOutState = "canary"       // the canaries are healthy and wait for a promotion
	RollOutPaused      RollOutState = "paused"       // a person paused it
	RollOutHealthy     RollOutState = "healthy"      // all instances have the version and are healthy
	RollOutFailed      RollOutState = "failed"       // it made no progress until its deadline; nothing more happens by itself
	RollOutRollingBack RollOutState = "rolling_back" // it failed, and the last healthy version returns
	RollOutRolledBack  RollOutState = "rolled_back"  // of a version in the history: it failed and was replaced
	RollOutSuperseded  RollOutState = "superseded"   // of a version in the history: a newer one came before it was healthy
)

// RollOut is the roll-out of the newest version of a service.
type RollOut struct {
	Service  ServiceID    `json:"service"`
	State    RollOutState `json:"state"`
	Detail   string       `json:"detail,omitempty"`          // what it waits for, or why it failed
	Version  Revision     `json:"version"`                   // SLA revision that is rolled out
	Healthy  Revision     `json:"healthy_version,omitempty"` // SLA revision that was healthy last; 0: none
	Failed   Revision     `json:"failed_version,omitempty"`  // SLA revision that failed and that Version replaces; 0: none
	Replicas int          `json:"replicas"`
	Waiting  int          `json:"waiting,omitempty"` // instances that had no place when it began; they need not become healthy
	// Extra is the number of instances in addition to Replicas while it lasts.
	Extra     int       `json:"extra,omitempty"`
	Updated   int       `json:"updated"`   // instances with Version
	Ready     int       `json:"ready"`     // instances of any version that take requests
	Succeeded int       `json:"succeeded"` // instances with Version that are healthy
	Policy    string    `json:"policy"`    // how it proceeds, in words
	Began     time.Time `json:"began"`
	Ended     time.Time `json:"ended,omitzero"`
}

// Over reports whether nothing more happens by itself.
func (r RollOut) Over() bool {
	return r.State == RollOutHealthy || r.State == RollOutFailed
}

// Standing returns the state, the counts and the detail as text.
func (r RollOut) Standing() string {
	s := fmt.Sprintf("%s: %d of %d updated, %d healthy, %d ready", r.State, r.Updated, r.Replicas+r.Extra, r.Succeeded, r.Ready)
	if r.Detail != "" {
		s += "; " + r.Detail
	}
	return s
}

// MaxVersions limits the versions of a service that its history keeps.
const MaxVersions = 10

// RollOutVersion is one version of a service in the history of its roll-outs.
type RollOutVersion struct {
	Version Revision      `json:"version"` // SLA revision; the argument of undo
	Code    string        `json:"code"`
	Changes []FieldChange `json:"changes,omitempty"` // since the version before it
	By      string        `json:"by,omitempty"`
	Began   time.Time     `json:"began"`
	Ended   time.Time     `json:"ended,omitzero"`
	Result  RollOutState  `json:"result"`
	Detail  string        `json:"detail,omitempty"`
}

// RollOutHistory is the answer to GET /v1/services/{id}/rollout/history, the oldest version first.
type RollOutHistory struct {
	Versions []RollOutVersion `json:"versions"`
}

// Undo is the request POST /v1/services/{id}/rollout/undo. To is the SLA revision of a version in the
// history; 0 means the last healthy version other than the present one.
type Undo struct {
	To Revision `json:"to,omitempty"`
}
