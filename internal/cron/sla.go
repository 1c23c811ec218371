package cron

import (
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Of parses the expression of a schedule.
func Of(s *api.Schedule) (*Spec, error) { return Parse(s.Cron, s.TimeZone) }

// Next returns the next n times of a schedule after t; none if it is suspended or cannot be read.
func Next(s *api.Schedule, t time.Time, n int) []time.Time {
	spec, err := Of(s)
	if err != nil || s.Suspend {
		return nil
	}
	return spec.Times(t, n)
}

// Check refuses a parsed SLA with a schedule that cannot be read or has no time after now. The error
// is a *api.Faults, as of api.ParseSLA. The contract depends on no module, so that it cannot do this.
func Check(sla api.SLA, now time.Time) error {
	faults := &api.Faults{}
	for i, a := range sla.Applications {
		for k, m := range a.Services {
			if m.Schedule != nil {
				if f := fault(m.Schedule, now); f.Message != "" {
					f.Pointer = fmt.Sprintf("/applications/%d/microservices/%d/schedule%s", i, k, f.Pointer)
					faults.Faults = append(faults.Faults, f)
				}
			}
		}
	}
	if len(faults.Faults) == 0 {
		return nil
	}
	return faults
}

func fault(s *api.Schedule, now time.Time) api.Fault {
	if _, err := location(s.TimeZone); err != nil {
		return api.Fault{Pointer: "/time_zone", Field: "time_zone", Message: err.Error(), Fix: "use a name of the IANA database, such as Europe/Berlin"}
	}
	switch spec, err := Of(s); {
	case err != nil:
		return api.Fault{
			Pointer: "/cron", Field: "cron", Message: strings.ToValidUTF8(err.Error(), "?"),
			Fix: "five fields (minute hour day month weekday), such as 30 2 * * *, or @daily",
		}
	case spec.Next(now).IsZero():
		return api.Fault{
			Pointer: "/cron", Field: "cron", Message: fmt.Sprintf("%q never fires: no day within five years matches it", s.Cron),
			Fix: "correct the day or the month",
		}
	}
	return api.Fault{}
}
