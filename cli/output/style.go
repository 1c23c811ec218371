package output

import "github.com/treeline-edge/treeline/api"

// Style is the colour of text. It conveys nothing that the text does not contain.
type Style int

const (
	Plain Style = iota
	Good
	Busy
	Bad
	Faint
)

var escapes = map[Style]string{Good: "\x1b[32m", Busy: "\x1b[33m", Bad: "\x1b[31m", Faint: "\x1b[2m"}

// Paint returns text in a style, if p.Colour is set.
func (p Printer) Paint(s Style, text string) string {
	if !p.Colour || escapes[s] == "" {
		return text
	}
	return escapes[s] + text + "\x1b[0m"
}

// StateStyle returns the style of an instance's state.
func StateStyle(s api.State) Style {
	switch s {
	case api.Running, api.Completed, api.Dormant:
		return Good
	case api.Failed:
		return Bad
	case api.Terminated:
		return Faint
	}
	return Busy
}
