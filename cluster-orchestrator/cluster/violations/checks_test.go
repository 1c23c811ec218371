package violations

import (
	"testing"
	"time"
)

func TestEarlierCountsChecksBeforeTheLastingViolation(t *testing.T) {
	var l checks
	note := func(text string) {
		for _, c := range text {
			l.record(c == 'x')
		}
	}
	for _, tt := range []struct {
		then string
		want time.Duration
	}{
		{"", 0},
		{".", 0},
		{"x", 0},
		{"x", 0},
		{".", 20 * time.Second},
		{"x.xx", 30 * time.Second},
		{"......................", 50 * time.Second},
		{"..............................", 0},
	} {
		note(tt.then)
		if got := l.earlier(); got != tt.want {
			t.Fatalf("after %q: %v, want %v", tt.then, got, tt.want)
		}
	}
}
