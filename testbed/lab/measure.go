package lab

import (
	"encoding/json"
	"os"
	"sync"
	"time"
)

// Measure is one measured duration.
type Measure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"` // "s"
	Value float64 `json:"value"`
}

var measures sync.Mutex // guards the file that TREELINE_LAB_MEASURES names

// Measured logs a duration, and appends it as a line of JSON to the file in
// TREELINE_LAB_MEASURES, if set.
func (l *Lab) Measured(name string, d time.Duration) {
	l.t.Helper()
	l.t.Logf("measured: %s %.3f s", name, d.Seconds())
	path := os.Getenv("TREELINE_LAB_MEASURES")
	if path == "" {
		return
	}
	line, err := json.Marshal(Measure{Name: name, Unit: "s", Value: d.Seconds()})
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	measures.Lock()
	defer measures.Unlock()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // figures are no secret
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		l.t.Fatalf("%v", err)
	}
}
