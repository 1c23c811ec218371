package client

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	var b breaker
	now := time.Unix(0, 0)
	check := func(when string, want time.Duration) {
		t.Helper()
		if got := b.allow(now); got != want {
			t.Fatalf("%s: the pause lasts %s, want %s", when, got, want)
		}
	}
	for range maxFailures - 1 {
		b.note(now, false)
	}
	check("after few failures", 0)
	b.note(now, false)
	check("after too many failures", minPause)
	now = now.Add(minPause)
	check("first question after the pause", 0)
	check("second question after the pause", minPause)
	b.note(now, false)
	check("after a failed retry", 2*minPause)
	for range 20 {
		b.note(now, false)
	}
	check("after many failures", maxPause)
	b.note(now, true)
	check("after a success", 0)
}
