package workloads

import (
	"testing"
	"time"
)

func TestAnExpensiveCheckIsRepeatedSeldom(t *testing.T) {
	for _, c := range []struct{ watched, check, want time.Duration }{
		{0, 0, earlyPause},
		{0, 100 * time.Microsecond, earlyPause},
		{0, 20 * time.Millisecond, 40 * time.Millisecond},
		{earlyPeriod, time.Millisecond, latePause},
		{earlyPeriod, 20 * time.Millisecond, 200 * time.Millisecond},
	} {
		if got := pauseAfter(c.watched, c.check); got != c.want {
			t.Errorf("pauseAfter(%v, %v) = %v, want %v", c.watched, c.check, got, c.want)
		}
	}
}
