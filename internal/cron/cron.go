// Package cron computes the times of a schedule: a cron expression of five fields in a time zone. It
// adapts robfig/cron, and decides what that leaves open: the times at which clocks change.
package cron

import (
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/robfig/cron/v3"

	"github.com/treeline-edge/treeline/api"
)

// Spec is a parsed expression in a time zone. It is immutable.
//
// If the hour of the expression is "*" or "*/n", its times are evenly spaced, also across a change of
// the clocks. Otherwise a time of day is one moment per day: if the clocks are set back, the first of
// the two; if they are set forward over it, the moment at which they are.
type Spec struct {
	spec   cron.Schedule // in UTC, or in zone if hourly
	hourly bool
	zone   *time.Location
}

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Parse parses an expression: five fields, or @hourly, @daily, @weekly, @monthly or @yearly. An empty
// zone is UTC.
func Parse(expression, zone string) (*Spec, error) {
	at, err := location(zone)
	if err != nil {
		return nil, err
	}
	switch {
	case len(expression) > api.MaxCron:
		return nil, fmt.Errorf("the expression has %d bytes, at most %d are allowed", len(expression), api.MaxCron)
	case strings.ContainsRune(expression, '='):
		return nil, fmt.Errorf("%q names a time zone: write it in time_zone", expression)
	case strings.HasPrefix(expression, "@every"):
		return nil, fmt.Errorf("%q depends on when it begins: write minutes and hours, such as */10 * * * *", expression)
	}
	parsed, err := parser.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("%q: %s", expression, strings.TrimPrefix(err.Error(), "failed to parse "))
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("%q is not a cron expression", expression)
	}
	s := &Spec{spec: spec, zone: at}
	if s.hourly = hourly(expression); s.hourly {
		spec.Location = at
	} else {
		spec.Location = time.UTC
	}
	return s, nil
}

func hourly(expression string) bool {
	fields := strings.Fields(expression)
	return expression == "@hourly" || len(fields) == 5 && strings.HasPrefix(fields[1], "*")
}

var zones sync.Map // name → *time.Location; only names that exist, which are some hundred

func location(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if at, ok := zones.Load(name); ok {
		return at.(*time.Location), nil
	}
	at, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("unknown time zone %q: use a name such as Europe/Berlin or UTC", name)
	}
	zones.Store(name, at)
	return at, nil
}

// Next returns the first time after t, or the zero time if there is none within five years.
func (s *Spec) Next(t time.Time) time.Time {
	if s.hourly {
		return s.spec.Next(t.In(s.zone)).UTC()
	}
	// Clocks are never set back by more than this.
	const back = 3 * time.Hour
	for wall := asUTC(t.In(s.zone)).Add(-back); ; {
		if wall = s.spec.Next(wall); wall.IsZero() {
			return time.Time{}
		}
		if at := s.moment(wall); at.After(t) {
			return at
		}
	}
}

// Times returns the next n times after t, or fewer.
func (s *Spec) Times(t time.Time, n int) (out []time.Time) {
	for range n {
		if t = s.Next(t); t.IsZero() {
			break
		}
		out = append(out, t)
	}
	return out
}

// asUTC returns the time that has in UTC what t has on the clock of its zone.
func asUTC(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.Add(time.Duration(offset) * time.Second).UTC()
}

// moment returns when the clocks of the zone show what wall has in UTC. It never decreases when wall
// increases.
func (s *Spec) moment(wall time.Time) time.Time {
	var skipped time.Time
	// The offsets before and after a change that may be near. Offsets are below a day.
	for _, near := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		_, offset := wall.Add(near).In(s.zone).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if asUTC(at.In(s.zone)).Equal(wall) {
			return at
		}
		if near < 0 {
			skipped, _ = at.In(s.zone).ZoneBounds()
		}
	}
	return skipped.UTC()
}
