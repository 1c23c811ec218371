package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
)

// Record is one figure.
type Record struct {
	Name      string    `json:"name"`
	Unit      string    `json:"unit"`
	N         int       `json:"n"`
	Median    float64   `json:"median"`
	P99       float64   `json:"p99"`
	Samples   []float64 `json:"samples"`
	Baseline  *Baseline `json:"baseline"`           // nil if there is none
	Ratio     float64   `json:"ratio,omitempty"`    // of the median to that of the baseline
	Limit     float64   `json:"limit,omitempty"`    // limit of the median
	AtLeast   bool      `json:"at_least,omitempty"` // the limit is a minimum
	Held      string    `json:"held,omitempty"`     // whether the limit is met: "pass", "FAIL", "not measured"
	Disturbed int       `json:"disturbed"`          // samples during which other processes used more than a tenth of the machine
	Calm      float64   `json:"calm,omitempty"`     // median of the undisturbed samples, if there are some of both
	Note      string    `json:"note,omitempty"`
}

// Baseline is the figure that a record is compared with.
type Baseline struct {
	Name   string  `json:"name"`
	Median float64 `json:"median"`
}

// series collects the samples of a record.
type series struct {
	values    []float64
	disturbed []bool
}

func (s *series) add(v float64, disturbed bool) {
	s.values = append(s.values, v)
	s.disturbed = append(s.disturbed, disturbed)
}

func (s *series) record(name, unit string) Record {
	r := Record{Name: name, Unit: unit, N: len(s.values), Samples: s.values}
	r.Median, r.P99 = quantile(s.values, 0.5), quantile(s.values, 0.99)
	var calm []float64
	for i, d := range s.disturbed {
		if d {
			r.Disturbed++
		} else {
			calm = append(calm, s.values[i])
		}
	}
	if r.Disturbed > 0 && len(calm) > 0 {
		r.Calm = quantile(calm, 0.5)
	}
	return r
}

// over sets the baseline of the record.
func (r Record) over(name string, median float64) Record {
	r.Baseline = &Baseline{name, median}
	if median != 0 {
		r.Ratio = r.Median / median
	}
	return r
}

func (r Record) atMost(limit float64) Record {
	r.Limit = limit
	return r
}

func (r Record) atLeast(limit float64) Record {
	r.Limit, r.AtLeast = limit, true
	return r
}

func (r Record) noting(format string, args ...any) Record {
	r.Note = fmt.Sprintf(format, args...)
	return r
}

// quantile returns the value that a share q of the values does not exceed. The median of an even
// number of values is the mean of the middle two.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	if q == 0.5 && len(s)%2 == 0 {
		return (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return s[max(0, int(math.Ceil(q*float64(len(s))))-1)]
}

// printer returns a function that writes records as they are emitted.
func printer(w io.Writer, asJSON bool) func(Record) {
	if asJSON {
		enc := json.NewEncoder(w)
		return func(r Record) { _ = enc.Encode(r) }
	}
	first := true
	return func(r Record) {
		if first {
			_, _ = fmt.Fprintf(w, "%-34s %-9s %4s %10s %10s %10s %7s  %s\n", "NAME", "UNIT", "N", "MEDIAN", "P99", "LIMIT", "RATIO", "BASELINE")
			first = false
		}
		limit, ratio, base := "", "", ""
		if r.Limit > 0 {
			limit = number(r.Limit)
		}
		if b := r.Baseline; b != nil {
			ratio, base = fmt.Sprintf("%.2f", r.Ratio), fmt.Sprintf("%s %s", number(b.Median), b.Name)
		}
		if r.AtLeast {
			limit = "≥" + limit
		}
		_, _ = fmt.Fprintf(w, "%-34s %-9s %4d %10s %10s %10s %7s  %s\n", r.Name, r.Unit, r.N, number(r.Median), number(r.P99), limit, ratio, base)
		if r.Disturbed > 0 {
			rest := ""
			if r.Disturbed < r.N {
				rest = "; median of the rest " + number(r.Calm)
			}
			_, _ = fmt.Fprintf(w, "    others used the machine during %d of %d samples%s\n", r.Disturbed, r.N, rest)
		}
		if r.Note != "" {
			_, _ = fmt.Fprintf(w, "    %s\n", r.Note)
		}
	}
}

func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
