package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/treeline-edge/treeline/testbed/report/chart"
)

// draw writes the panels to the file in --svg, if set.
func (r *run) draw(title string, panels []chart.Panel) error {
	if r.net.svg == "" {
		return nil
	}
	f, err := os.Create(r.net.svg)
	if err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	if err := chart.Draw(f, title, panels); err != nil {
		_ = f.Close()
		return fmt.Errorf("figures: %w", err)
	}
	return f.Close()
}

// barOf returns a bar with a record's median, its range of samples and its limit.
func barOf(rec Record, label string) chart.Bar {
	b := chart.Bar{
		Label: label, Value: rec.Median, Low: slices.Min(rec.Samples), High: slices.Max(rec.Samples),
		Limit: rec.Limit, Tone: chart.Ours, Text: number(rec.Median),
	}
	switch {
	case rec.Limit > 0 && (rec.Median > rec.Limit) != rec.AtLeast:
		b.Tone = chart.Fail
	case rec.Limit > 0:
		b.Tone = chart.Pass
	}
	return b
}
