// Package bounds has the range of every number, text and list in the messages of a lower tier:
// node to cluster, and cluster to root. A receiver calls Apply on a message before it reads any of
// it.
//
// A value out of range is refused together with the smallest part of the message that contains it
// and is optional: an element of a list, an optional struct, or the whole message. The rest is
// accepted. The receiver records refused values (Log). Caps (api.Caps) limit further what a sender
// may report.
package bounds

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

type Message interface {
	wire.NodeReport | api.NodeInfo | wire.Alive | wire.NetUp | wire.Probed | wire.NodePurging | wire.WantValue | wire.WantVolume | wire.NodeSample | // node to cluster
		wire.Report | wire.Hello | api.ClusterInfo | api.ClusterLatencies // cluster to root
}

// Violation is one value that is out of its range.
type Violation struct {
	Field string // "aggregate.nodes"
	Value string // shortened
	Want  string // the accepted range
}

func (v Violation) String() string { return v.Field + " is " + v.Value + ", want " + v.Want }

// Violations are the violations of one message: the first maxListed, and the number of all.
type Violations struct {
	First []Violation
	Total int
}

const (
	maxListed = 4
	maxShown  = 48 // bytes of a value
)

func (v Violations) String() string {
	parts := make([]string, 0, len(v.First)+1)
	for _, f := range v.First {
		parts = append(parts, f.String())
	}
	if more := v.Total - len(v.First); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

// Err returns v as an error of kind api.ErrInvalid, or nil if there is no violation.
func (v Violations) Err() error {
	if v.Total == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", v, api.ErrInvalid)
}

// Apply returns m without the parts that are out of range. It does not change m or what m refers
// to. If the whole message is refused, ok is false and the result is the zero message.
func Apply[M Message](m M) (_ M, v Violations, ok bool) {
	c := &checking{}
	out, verdict := plans[reflect.TypeFor[M]()](c, reflect.ValueOf(m))
	if verdict == refused {
		var zero M
		return zero, c.found, false
	}
	return out.Interface().(M), c.found, true
}

// Log limits the records of one sender's violations to one per logSpan, which includes the number
// of those since the last record. The zero Log is ready to use.
type Log struct {
	last    time.Time
	skipped int
}

// logSpan is the least time between two records of one sender.
const logSpan = time.Minute

// Add counts v and returns the text of a record, or "" if none is due at now.
func (l *Log) Add(now time.Time, v Violations) string {
	if v.Total == 0 {
		return ""
	}
	if !l.last.IsZero() && now.Sub(l.last) < logSpan {
		l.skipped += v.Total
		return ""
	}
	text := "refused values: " + v.String()
	if l.skipped > 0 {
		text += fmt.Sprintf("; %d were refused since the last record", l.skipped)
	}
	l.last, l.skipped = now, 0
	return text
}

// verdict is the result of a check.
type verdict int

const (
	kept    verdict = iota // unchanged
	changed                // a part was removed, shortened or replaced
	refused                // remove the optional part that contains the value
)

// check returns the accepted part of a value. It does not change v.
type check func(c *checking, v reflect.Value) (reflect.Value, verdict)

// checking is one pass over one message.
type checking struct {
	path  []string
	found Violations
}

func (c *checking) violation(value any, want string) {
	c.found.Total++
	if len(c.found.First) == maxListed {
		return
	}
	text := fmt.Sprint(value)
	if len(text) > maxShown {
		text = text[:maxShown] + "…"
	}
	text = strings.ToValidUTF8(strings.Map(printable, text), "")
	c.found.First = append(c.found.First, Violation{strings.Join(c.path, "."), text, want})
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func printable(r rune) rune {
	if isControl(r) {
		return '?'
	}
	return r
}
