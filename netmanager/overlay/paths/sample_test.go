package paths

import (
	"testing"
	"time"
)

// TestASlowerPathIsNoticedAtOnceWhileIdle: the least of several recent round trips counts. A round trip of an
// idle peer counts alone.
func TestASlowerPathIsNoticedAtOnceWhileIdle(t *testing.T) {
	var x pathState
	now := time.Unix(1000, 0)
	if got := x.sample(now); got != 0 {
		t.Errorf("without a round trip the sample is %s", got)
	}
	for _, step := range []struct {
		after, rtt, want time.Duration
	}{
		{0, 10 * time.Millisecond, 10 * time.Millisecond},
		{36 * time.Second, 11 * time.Millisecond, 11 * time.Millisecond},
		{33 * time.Second, 60 * time.Millisecond, 60 * time.Millisecond}, // the path changed
		{2 * time.Second, 61 * time.Millisecond, 60 * time.Millisecond},
		{33 * time.Second, 61 * time.Millisecond, 61 * time.Millisecond},
		{10 * time.Second, 500 * time.Millisecond, 61 * time.Millisecond}, // a queue
		{30 * time.Second, 12 * time.Millisecond, 12 * time.Millisecond},
	} {
		now = now.Add(step.after)
		x.addRoundTrip(step.rtt, now)
		if got := x.sample(now); got != step.want {
			t.Errorf("after %s and %s the sample is %s, want %s", step.after, step.rtt, got, step.want)
		}
	}
}
