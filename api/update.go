package api

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Update is how a new version of a service replaces the one before. Absent values have defaults that
// do not interrupt the service, see Microservice.UpdatePolicy.
type Update struct {
	Parallelism    int   `json:"parallelism,omitempty"`      // instances that are replaced at once; 0: a quarter, at least 1
	Surge          *int  `json:"surge,omitempty"`            // instances in addition to the replicas during a roll-out
	MinHealthyTime *int  `json:"min_healthy_time,omitempty"` // seconds
	Deadline       int   `json:"deadline,omitempty"`         // seconds without progress; 0: DefaultUpdateDeadline
	Canaries       int   `json:"canaries,omitempty"`         // instances that wait for a promotion
	AutoRollback   *bool `json:"auto_rollback,omitempty"`
}

// The defaults of an Update, in seconds.
const (
	DefaultMinHealthyTime = 5 // of the first instance of a version, which proves it
	defaultNextHealthy    = 1 // of the others
	DefaultUpdateDeadline = 300
)

// Disruption is the disruption budget of a service: what drains and other voluntary moves of its
// instances may interrupt. Failures, roll-outs and preemption are not limited by it.
type Disruption struct {
	MaxUnavailable *int `json:"max_unavailable,omitempty"` // instances that may be unavailable at once; nil: 1
}

// MaxUnavailable returns how many instances of the service may be unavailable before another one is
// interrupted voluntarily. limited is false if the service has no disruption budget.
func (m Microservice) MaxUnavailable() (n int, limited bool) {
	switch {
	case m.Disruption == nil:
		return 0, false
	case m.Disruption.MaxUnavailable == nil:
		return 1, true
	}
	return *m.Disruption.MaxUnavailable, true
}

// UpdatePolicy is an Update with all defaults.
type UpdatePolicy struct {
	Parallelism  int
	Surge        int           // 0: an instance is stopped before its replacement starts; its image is pulled first
	MinHealthy   time.Duration // how long the first instance must be ready that proves the version
	NextHealthy  time.Duration // how long each further instance must be ready
	Deadline     time.Duration
	Canaries     int
	AutoRollback bool
	// OneByOne is set for a one-shot: its instances are replaced one after the other, without an
	// additional instance, deadline and rollback, because its work must not be repeated.
	OneByOne bool
}

// Single reports whether the service must not have an additional instance, not even during a
// roll-out.
func (m Microservice) Single() bool { return m.Exclusive || m.OneShot || len(m.OwnVolumes()) > 0 }

// UpdatePolicy returns how a new version of the service with a number of replicas is rolled out.
func (m Microservice) UpdatePolicy(replicas int) UpdatePolicy {
	var u Update
	if m.Update != nil {
		u = *m.Update
	}
	p := UpdatePolicy{
		Parallelism: min(cmp.Or(u.Parallelism, max(1, replicas/4)), max(1, replicas)),
		MinHealthy:  DefaultMinHealthyTime * time.Second, NextHealthy: defaultNextHealthy * time.Second,
		Deadline: time.Duration(cmp.Or(u.Deadline, DefaultUpdateDeadline)) * time.Second,
		Canaries: min(u.Canaries, max(1, replicas)), AutoRollback: u.AutoRollback == nil || *u.AutoRollback,
	}
	if u.MinHealthyTime != nil {
		p.MinHealthy = time.Duration(*u.MinHealthyTime) * time.Second
		p.NextHealthy = p.MinHealthy
	}
	switch {
	case m.OneShot:
		p = UpdatePolicy{Parallelism: 1, OneByOne: true}
	case m.Single():
	case u.Surge != nil:
		p.Surge = min(*u.Surge, max(1, replicas))
	default:
		p.Surge = p.Parallelism
	}
	return p
}

// String describes the policy in words.
func (p UpdatePolicy) String() string {
	if p.OneByOne {
		return "one instance after the other is replaced"
	}
	var b strings.Builder
	if p.Canaries > 0 {
		fmt.Fprintf(&b, "%d canary instances wait for treeline rollout promote; then ", p.Canaries)
	}
	fmt.Fprintf(&b, "%d at once, ", p.Parallelism)
	if p.Surge > 0 {
		fmt.Fprintf(&b, "%d more than wanted run meanwhile", p.Surge)
	} else {
		b.WriteString("each stops before its replacement starts, and its image is pulled first")
	}
	fmt.Fprintf(&b, "; healthy after %s", p.MinHealthy)
	if p.NextHealthy != p.MinHealthy {
		fmt.Fprintf(&b, ", the others after %s", p.NextHealthy)
	}
	fmt.Fprintf(&b, "; after %s without progress ", p.Deadline)
	if p.AutoRollback {
		b.WriteString("the last healthy version returns")
	} else {
		b.WriteString("it stops as it is")
	}
	return b.String()
}

// updateRule refuses what a roll-out of the service cannot do.
func updateRule(c checker, at string, v *value) {
	u := v.get("update")
	if v.get("one_shot").truth {
		for i := range u.members {
			if m := &u.members[i]; !neutral(&m.value) {
				c.fault(at+"/update/"+m.key, "leave update out", "%s does not apply to a one_shot: its instances are replaced one after the other, without a deadline", m.key)
				return
			}
		}
	}
	if v.get("exclusive").truth && !neutral(u.get("surge")) {
		c.fault(at+"/update/surge", "leave surge out", "an exclusive service cannot have an additional instance: each one stops before its replacement starts")
	}
	if csi := ownCSIVolume(v); csi >= 0 && !v.get("exclusive").truth && !neutral(u.get("surge")) {
		c.fault(at+"/update/surge", "leave surge out", "a service with a CSI volume cannot have an additional instance: each one stops before its replacement starts")
	}
	volumes := v.get("volumes")
	for i := range volumes.items {
		if kind := &volumes.items[i]; (kind.get("type").text == VolumeLocal || kind.get("csi_driver").text == VolumeLocal) && !neutral(u.get("surge")) {
			c.fault(at+"/update/surge", "leave surge out", "a service with a local volume cannot have an additional instance: each one stops before its replacement starts, where its volume is")
			break
		}
	}
	seconds := func(key string, missing int) int {
		n, err := strconv.Atoi(u.get(key).text) // other text already has a fault
		if err != nil {
			return missing
		}
		return n
	}
	deadline := cmp.Or(seconds("deadline", 0), DefaultUpdateDeadline)
	if healthy := seconds("min_healthy_time", DefaultMinHealthyTime); healthy >= deadline {
		c.fault(at+"/update/min_healthy_time", "raise deadline, or lower min_healthy_time",
			"min_healthy_time of %d s is not below the deadline of %d s: no instance can become healthy in time", healthy, deadline)
	}
}
