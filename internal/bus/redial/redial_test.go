package redial_test

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/bus/redial"
)

func TestWaitsDoubleUpToTheirBound(t *testing.T) {
	p := redial.Pace{Min: time.Second, Max: 10 * time.Second}
	for attempt, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if got := p.Wait(attempt, false, 0.5); got != want*time.Second {
			t.Errorf("attempt %d waits %s, want %s", attempt, got, want*time.Second)
		}
	}
	if got := p.Wait(1<<40, false, 0.5); got != p.Max {
		t.Errorf("a long outage waits %s, want %s", got, p.Max)
	}
	for chance, want := range map[float64]time.Duration{0: 500 * time.Millisecond, 1: 1500 * time.Millisecond} {
		if got := p.Wait(0, false, chance); got != want {
			t.Errorf("chance %v: %s, want %s", chance, got, want)
		}
	}
}

func TestWaitsOfAClientInAHurryDoNotGrow(t *testing.T) {
	p := redial.Pace{Min: 500 * time.Millisecond, Max: 5 * time.Second}
	for attempt := range 20 {
		if got := p.Wait(attempt, true, 0.999); got >= 2*redial.Hurry {
			t.Errorf("attempt %d waits %s, want less than %s", attempt, got, 2*redial.Hurry)
		}
	}
	if got := (redial.Pace{Min: time.Millisecond, Max: time.Millisecond}).Wait(0, true, 0.5); got != time.Millisecond {
		t.Errorf("a pace below the hurry waits %s, want 1ms", got)
	}
}
