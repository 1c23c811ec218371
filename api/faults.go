package api

import (
	"fmt"
	"strings"
)

type Fault struct {
	Pointer string `json:"pointer"`         // JSON pointer (RFC 6901) to the value; "" is the whole document
	Field   string `json:"field,omitempty"` // the field's name
	Message string `json:"message"`         // what is wrong
	Fix     string `json:"fix,omitempty"`   // how to correct it
}

// String returns the fault as one line for people.
func (f Fault) String() string {
	return strings.TrimPrefix(strings.TrimSuffix(f.Pointer+": "+f.Message+"; "+f.Fix, "; "), ": ")
}

// Faults lists the faults of a document. It wraps ErrInvalid.
type Faults struct {
	Faults []Fault
	More   int // number of faults beyond the first 100
}

func (e *Faults) Error() string {
	lines := make([]string, 0, len(e.Faults)+1)
	for _, f := range e.Faults {
		lines = append(lines, f.String())
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", e.More))
	}
	return "the SLA is " + ErrInvalid.Error() + ":\n  " + strings.Join(lines, "\n  ")
}

func (e *Faults) Unwrap() error { return ErrInvalid }

// maxFaults limits the listed faults, and with them the work to find suggestions.
const maxFaults = 100

func (e *Faults) full() bool { return len(e.Faults) >= maxFaults }

func (e *Faults) add(f Fault) {
	if e.full() {
		e.More++
		return
	}
	e.Faults = append(e.Faults, f)
}
