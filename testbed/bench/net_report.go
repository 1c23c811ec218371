package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/treeline-edge/treeline/testbed/report/chart"
)

// verdict is the result of a row.
type verdict struct {
	row
	measured  float64
	n         int     // 0: not measured
	low, high float64 // of the samples, or of the rounds' ratios
}

// held returns whether the limit is met, rounded to hundredths like limits.
func (v verdict) held() string {
	measured := math.Round(v.measured*100) / 100
	switch {
	case v.n == 0:
		return "not measured"
	case v.limit == 0:
		return ""
	case v.atMost && measured <= v.limit, !v.atMost && measured >= v.limit:
		return "pass"
	}
	return "FAIL"
}

func (v verdict) bound() string {
	switch {
	case v.limit == 0:
		return ""
	case v.atMost:
		return "≤ " + number(v.limit)
	}
	return "≥ " + number(v.limit)
}

// report emits a record of every figure and of every row, and writes the table and the drawing.
func (s *session) report(rows []row, figures []figure) error {
	medians := map[figure]float64{}
	for _, f := range figures {
		if got := s.taken[f]; got != nil {
			medians[f] = quantile(got.values, 0.5)
			s.emit(got.record("net."+f.String(), netLoads[f.load].unit).noting("%s", s.notes[f]))
		}
	}
	var verdicts []verdict
	for _, w := range rows {
		v := verdict{row: w}
		of, base := s.taken[w.of], s.taken[w.base]
		switch {
		case of == nil || w.base != (figure{}) && base == nil: // a path that this machine does not support
		case w.p99:
			v.measured, v.n = quantile(of.values, 0.99), len(of.values)
		case w.base == (figure{}):
			v.measured, v.n = medians[w.of], len(of.values)
		default:
			v.measured, v.n = medians[w.of]/medians[w.base], min(len(of.values), len(base.values))
		}
		r := s.recordOf(v, medians)
		v.low, v.high = quantile(r.Samples, 0), quantile(r.Samples, 1)
		verdicts = append(verdicts, v)
		s.emit(r)
	}
	if s.net.quick {
		s.logf("a quick run holds nothing to its limit")
	} else {
		table(s.log, verdicts)
	}
	if s.net.svg == "" {
		return nil
	}
	f, err := os.Create(s.net.svg)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := chart.Draw(f, "From container to container", s.panels(verdicts, figures)); err != nil {
		return fmt.Errorf("draw %s: %w", s.net.svg, err)
	}
	return f.Close()
}

// recordOf returns a row as a record: a ratio with the samples of the rounds.
func (s *session) recordOf(v verdict, medians map[figure]float64) Record {
	of, base := s.taken[v.of], s.taken[v.base]
	var ratios series
	unit := netLoads[v.of.load].unit
	for i := range v.n {
		if base == nil {
			ratios.add(of.values[i], of.disturbed[i])
		} else {
			ratios.add(of.values[i]/base.values[i], of.disturbed[i] || base.disturbed[i])
		}
	}
	if base != nil {
		unit = "ratio"
	}
	r := ratios.record("net."+v.name, unit).noting("%s", v.what)
	if r.Limit = v.limit; !v.p99 {
		r.Median = v.measured // the ratio of the medians, which a single round does not change
	}
	if base != nil {
		r.Baseline, r.Ratio = &Baseline{v.base.String(), medians[v.base]}, v.measured
	}
	r.AtLeast, r.Held = !v.atMost && v.limit > 0, v.held()
	return r
}

// table writes the rows as a table.
func table(w io.Writer, verdicts []verdict) {
	const line = "%-20s %-66s %8s %9s %3s %15s  %s\n"
	_, _ = fmt.Fprintf(w, "\n"+line, "ROW", "", "LIMIT", "MEASURED", "N", "LEAST–MOST", "")
	for _, v := range verdicts {
		measured, n, span := "–", "", ""
		if v.n > 0 {
			measured, n, span = number(v.measured), fmt.Sprint(v.n), number(v.low)+"–"+number(v.high)
		}
		_, _ = fmt.Fprintf(w, line, v.name, v.what, v.bound(), measured, n, span, v.held())
	}
}

// panels returns the rows with limits, followed by every load with its paths.
func (s *session) panels(verdicts []verdict, figures []figure) []chart.Panel {
	held := chart.Panel{Title: "What is promised; the stroke is the limit", Own: true}
	for _, v := range verdicts {
		if v.limit == 0 {
			continue
		}
		b := chart.Bar{
			Label: v.what, Value: v.measured, Limit: v.limit, Tone: chart.Fail,
			Text: fmt.Sprintf("%s (%s)", number(v.measured), v.bound()),
		}
		switch v.held() {
		case "pass":
			b.Tone = chart.Pass
		case "not measured":
			b.Text = v.held()
		}
		held.Bars = append(held.Bars, b)
	}
	var panels []chart.Panel
	if len(held.Bars) > 0 {
		panels = append(panels, held)
	}
	last := ""
	for _, f := range figures {
		got := s.taken[f]
		if got == nil {
			continue
		}
		l := netLoads[f.load]
		if f.load != last {
			panels = append(panels, chart.Panel{Title: cmp.Or(l.title, f.load), Unit: l.unit})
			last = f.load
		}
		b := chart.Bar{Label: f.path, Value: quantile(got.values, 0.5), Low: quantile(got.values, 0), High: quantile(got.values, 1)}
		b.Text = number(b.Value)
		if strings.HasPrefix(f.path, "nft-") || strings.HasPrefix(f.path, "ebpf-") {
			b.Tone = chart.Ours
		}
		p := &panels[len(panels)-1]
		p.Bars = append(p.Bars, b)
	}
	return panels
}
