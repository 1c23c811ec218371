// Package chart draws figures as SVG: panels of horizontal bars with their values. The same input
// gives the same bytes.
//
//	err := chart.Draw(w, "TCP", []chart.Panel{{Title: "1 flow", Unit: "Gbit/s", Bars: bars}})
package chart

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// Panel is bars under one title.
type Panel struct {
	Title string
	Unit  string // after the title; may be empty
	Bars  []Bar
	Own   bool // each bar has its own scale, for values of different kinds
}

// Bar is one figure.
type Bar struct {
	Label     string
	Value     float64
	Text      string  // next to the bar; empty: the value
	Low, High float64 // of the samples, drawn as a whisker; both 0: none
	Limit     float64 // drawn across the bar; 0: none
	Tone      Tone
}

// Tone is the colour of a bar.
type Tone int

// The tones of bars.
const (
	Floor Tone = iota // a baseline
	Ours
	Pass
	Fail
)

var colours = map[Tone]string{Floor: "#9aa5b1", Ours: "#2f6fb3", Pass: "#3a8f5c", Fail: "#c0433f"}

// Measures of the drawing, in px.
const (
	width      = 900
	labelWidth = 330
	textWidth  = 150
	rowHeight  = 22
	titleRoom  = 34
	margin     = 16
	barRoom    = width - labelWidth - textWidth - 2*margin
)

// Draw writes the panels from top to bottom.
func Draw(w io.Writer, title string, panels []Panel) error {
	height := 2*margin + titleRoom
	for _, p := range panels {
		height += titleRoom + rowHeight*len(p.Bars) + margin
	}
	out := bufio.NewWriter(w)
	d := drawing{out}
	d.linef(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`, width, height, width, height)
	d.linef(`<rect width="%d" height="%d" fill="white"/>`, width, height)
	y := margin + 18
	d.text(margin, y, `font-size="17" font-weight="bold"`, title)
	y += titleRoom - 10
	for _, p := range panels {
		y = d.panel(p, y)
	}
	d.linef("</svg>")
	return out.Flush()
}

type drawing struct{ *bufio.Writer } // keeps its first error until Flush

func (d drawing) linef(format string, args ...any) { _, _ = fmt.Fprintf(d, format+"\n", args...) }

func (d drawing) text(x, y int, attrs, s string) {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s))
	d.linef(`<text x="%d" y="%d" %s>%s</text>`, x, y, attrs, b.String())
}

// panel draws a panel from y on and returns where the next begins.
func (d drawing) panel(p Panel, y int) int {
	title := p.Title
	if p.Unit != "" {
		title += ", " + p.Unit
	}
	y += titleRoom - 12
	d.text(margin, y, `font-weight="bold"`, title)
	y += 12
	most := 0.0
	for _, b := range p.Bars {
		most = max(most, b.most())
	}
	for _, b := range p.Bars {
		if p.Own {
			most = b.most()
		}
		d.bar(b, y, most)
		y += rowHeight
	}
	return y + margin
}

func (b Bar) most() float64 { return max(b.Value, b.High, b.Limit) * 1.05 }

func (d drawing) bar(b Bar, y int, most float64) {
	const left = margin + labelWidth
	at := func(v float64) float64 {
		if !(v > 0) || !(most > 0) || math.IsInf(most, 0) { // not a number, or no scale
			return left
		}
		return left + barRoom*min(1, v/most)
	}
	middle, end := y+rowHeight/2, at(b.Value)
	d.text(left-8, middle+4, `text-anchor="end"`, b.Label)
	d.linef(`<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y+4, end-left, rowHeight-8, colours[b.Tone])
	if b.High > b.Low {
		d.linef(`<path d="M%.1f %d H%.1f M%.1f %d V%d M%.1f %d V%d" stroke="#333" fill="none"/>`,
			at(b.Low), middle, at(b.High), at(b.Low), middle-3, middle+3, at(b.High), middle-3, middle+3)
		end = max(end, at(b.High))
	}
	if b.Limit > 0 {
		d.linef(`<path d="M%.1f %d V%d" stroke="black" stroke-width="2"/>`, at(b.Limit), y+1, y+rowHeight-1)
		end = max(end, at(b.Limit))
	}
	text := b.Text
	if text == "" {
		text = fmt.Sprintf("%.4g", b.Value)
	}
	d.text(int(end)+6, middle+4, "", text)
}
