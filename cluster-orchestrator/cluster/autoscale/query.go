package autoscale

import (
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// valueLasts is the age up to which the value of an expression counts. It is evaluated every 15 s.
const valueLasts = 50 * time.Second

// setQuery stores the expression of a service; nil scale: it is removed.
func (m *Machine) setQuery(now time.Time, id api.ServiceID, s *service, scale *api.Scale) {
	query := ""
	if scale != nil && scale.Prometheus != nil {
		query = scale.Prometheus.Query
	}
	if query != s.query {
		s.value, s.valueAt, s.valueFail = 0, time.Time{}, ""
	}
	s.query = query
	if query == "" {
		if s.asked != nil {
			s.asked.Release()
			s.asked = nil
		}
	} else if s.asked == nil {
		p, err := m.expressions.Take(now, []string{string(id.Tenant().Top())}, nil)
		if err != nil {
			s.valueFail, query = err.Error(), ""
		} else {
			s.asked = p
		}
	}
	if m.queries[id] == query {
		return
	}
	m.changed = true
	m.queries = maps.Clone(m.queries) // the caller has the last one
	if query == "" {
		delete(m.queries, id)
	} else {
		m.queries[id] = query
	}
}

// Queries returns the expressions to evaluate, and whether they have changed since the last call. The map
// is only read.
func (m *Machine) Queries() (all Queries, changed bool) {
	changed, m.changed = m.changed, false
	return m.queries, changed
}

// Value stores the value of a service's expression, or why there is none. It ignores values of other
// expressions.
func (m *Machine) Value(now time.Time, id api.ServiceID, query string, v float64, fault string) {
	s := m.services[id]
	if s == nil || s.query != query || query == "" || math.IsNaN(v) {
		return
	}
	changed := fault == "" && (s.valueAt.IsZero() || v != s.value)
	if s.valueFail = fault; fault == "" {
		s.value, s.valueAt = v, now
	}
	if changed { // values arrive at the interval of decisions, and do not wait for the next one
		s.decided = time.Time{}
	}
	if changed || !s.anyAwake() { // while none is awake nothing else decides about it
		m.due.SetEarlier(id, now)
	}
}

// wantedByQuery returns the number of instances of this cluster that the value of the expression asks for:
// its part of those that the service has in all clusters. ok is false if the value is not known.
func (s *service) wantedByQuery(now time.Time, scale *api.Scale, awake int) (n int, ok bool) {
	if s.valueAt.IsZero() || now.Sub(s.valueAt) > valueLasts {
		return 0, false
	}
	want := max(0, s.value) / float64(scale.Prometheus.Target) * float64(len(s.all)) / float64(max(scale.Max, len(s.all)))
	if awake > 0 && math.Abs(want/float64(awake)-1) <= tolerance {
		return awake, true
	}
	return int(math.Ceil(math.Min(want, api.MaxScale) - 1e-9)), true
}

// unasked reports whether no expression asks for an instance. Unknown asks for one.
func (s *service) unasked(now time.Time, scale *api.Scale) bool {
	if scale.Prometheus == nil {
		return true
	}
	n, ok := s.wantedByQuery(now, scale, 1)
	return ok && n == 0
}

// Fault is why a measure of load that a service scales by is not known. It is passed on with an instance.
type Fault struct {
	Instance api.InstanceID
	Text     string // empty: all are known again
}

// noteFault notes whether what the service scales by is not known.
func (m *Machine) noteFault(now time.Time, id api.ServiceID, s *service) {
	all := s.sorted()
	if text := s.faultNow(now, all); text != s.fault {
		s.fault = text
		m.faults[id] = Fault{all[0], text}
	}
}

func (s *service) faultNow(now time.Time, all []api.InstanceID) string {
	for _, id := range all {
		in := s.all[id]
		switch {
		case in.Scale.Prometheus != nil && s.valueFail != "":
			return "prometheus: " + s.valueFail
		case in.Scale.Requests != nil && in.Awake && in.Running && !in.at.IsZero() && now.Sub(in.at) <= Fresh && in.sample.Requests < 0 && in.sample.Fault != "":
			return "requests: " + in.sample.Fault
		}
	}
	return ""
}

// Faults returns the faults that began or ended since the last call.
func (m *Machine) Faults() map[api.ServiceID]Fault {
	out := m.faults
	if len(out) > 0 {
		m.faults = map[api.ServiceID]Fault{}
	}
	return out
}

// waits returns why packets wait although no instance is being started for them; empty: none do.
func (m *Machine) waits(now time.Time, id api.ServiceID, s *service) string {
	switch {
	case s.demand.IsZero() || now.Sub(s.demand) >= demandLasts || s.anyAwake():
		return ""
	case s.place == nil:
		return s.refused
	}
	tenant := id.Tenant().Top()
	return fmt.Sprintf("packets wait for its turn among the cold starts: %d of at most %d of %s are under way, and %d of %d in the cluster",
		m.cold[tenant], coldBound.Share[0], tenant, m.colds, coldBound.Total)
}

// Standing describes what scaling does with the instance's service. ok is false if the service does not
// scale.
func (m *Machine) Standing(now time.Time, id api.InstanceID) (out api.ScaleStanding, ok bool) {
	s := m.services[id.Service()]
	if s == nil || s.all[id] == nil {
		return out, false
	}
	scale := s.all[id].Scale
	out.Assigned, out.Why, out.Fault, out.Waits = len(s.all), s.why, s.fault, m.waits(now, id.Service(), s)
	awake := 0
	for _, in := range s.all {
		if in.Awake {
			awake++
		}
		if in.Running {
			out.Running++
		}
		if in.Awake && !in.at.IsZero() && now.Sub(in.at) <= Fresh && in.sample.Idle >= 0 && (out.Idle == nil || *out.Idle > in.sample.Idle.Seconds()) {
			idle := in.sample.Idle.Seconds()
			out.Idle = &idle
		}
	}
	out.Awake = awake
	for _, g := range goals(scale) {
		x := api.ScaleMetric{Name: g.name, Unit: g.unit, Target: float64(g.target)}
		if n, mean, known := s.wantedBy(now, g, max(1, awake)); known {
			x.Value, x.Wants = &mean, n
		}
		out.Metrics = append(out.Metrics, x)
	}
	if q := scale.Prometheus; q != nil {
		x := api.ScaleMetric{Name: "prometheus", Target: float64(q.Target)}
		if n, known := s.wantedByQuery(now, scale, awake); known {
			v := s.value
			x.Value, x.Wants = &v, n
		}
		out.Metrics = append(out.Metrics, x)
	}
	return out, true
}
