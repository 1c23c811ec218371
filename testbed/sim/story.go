package sim

import (
	"fmt"
	"strings"
	"time"
)

// story is the trace of a world, line by line. Without keep it has only violations.
type story struct {
	keep  bool
	lines []line
}

// line is a message from one process to another, or a note about one.
type line struct {
	at   moment
	from string
	to   string
	what string
}

func (l line) String() string {
	if l.to == "" {
		return fmt.Sprintf("%10.4f  %-14s %s", l.at.Seconds(), l.from, l.what)
	}
	return fmt.Sprintf("%10.4f  %-14s %s", l.at.Seconds(), l.from+" → "+l.to, l.what)
}

func (w *World) note(who, format string, args ...any) {
	if w.story.keep {
		w.story.lines = append(w.story.lines, line{at: w.now, from: who, what: fmt.Sprintf(format, args...)})
	}
}

func (w *World) said(from, to, mark string, msg any) {
	if w.story.keep {
		w.story.lines = append(w.story.lines, line{w.now, from, to, mark + describe(msg)})
	}
}

// text returns the complete trace.
func (s *story) text() string {
	var b strings.Builder
	for _, l := range s.lines {
		b.WriteString(l.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// diagramLines bounds a diagram to a readable length.
const diagramLines = 60

// diagram returns the last lines about the subject as a Mermaid sequence diagram. Heartbeats
// are left out unless there is nothing else.
func (s *story) diagram(subject string) string {
	var chosen []line
	for i := len(s.lines) - 1; i >= 0 && len(chosen) < diagramLines; i-- {
		if l := s.lines[i]; l.concerns(subject) {
			chosen = append(chosen, l)
		}
	}
	var b strings.Builder
	b.WriteString("sequenceDiagram\n")
	var last time.Duration
	for i := len(chosen) - 1; i >= 0; i-- {
		l := chosen[i]
		if i == len(chosen)-1 || l.at-last >= time.Second {
			fmt.Fprintf(&b, "  Note over %s: %.3f s\n", actor(l.from), l.at.Seconds())
		}
		last = l.at
		what := strings.NewReplacer(";", ",", "#", "♯").Replace(clip(l.what, subject))
		switch {
		case l.to == "":
			fmt.Fprintf(&b, "  Note over %s: %s\n", actor(l.from), what)
		case strings.HasPrefix(l.what, "✗"):
			fmt.Fprintf(&b, "  %s-x%s: %s\n", actor(l.from), actor(l.to), what)
		default:
			fmt.Fprintf(&b, "  %s->>%s: %s\n", actor(l.from), actor(l.to), what)
		}
	}
	return b.String()
}

func (l line) concerns(subject string) bool {
	switch {
	case strings.Contains(l.what, "Alive ") || strings.Contains(l.what, "Lease ") && !strings.Contains(l.what, "wants"):
		return false
	case subject == "":
		return true
	case l.to == "":
		return strings.Contains(l.what, subject) || strings.Contains(l.from, subject) || !strings.Contains(l.what, "#")
	}
	return strings.Contains(l.what, subject) || l.from == subject || l.to == subject
}

// clip shortens a message that lists many instances to the given one.
func clip(what, subject string) string {
	if len(what) <= 100 {
		return what
	}
	words := strings.Fields(what)
	kept := words[:0:0]
	for _, word := range words {
		if !strings.Contains(word, "#") || subject != "" && strings.Contains(word, subject) {
			kept = append(kept, word)
		}
	}
	if len(kept) < len(words) {
		kept = append(kept, "…")
	}
	return strings.Join(kept, " ")
}

func actor(name string) string {
	return strings.NewReplacer("/", "_", " ⇄ ", ",", "-", "_").Replace(name)
}
