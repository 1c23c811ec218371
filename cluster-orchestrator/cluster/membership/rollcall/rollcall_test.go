package rollcall_test

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/rollcall"
)

func TestRollCallNamesNodesThatDoNotAnswer(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	var r rollcall.Roll
	if r.Missed(at(-5000), at(0)) {
		t.Error("missed before any call")
	}
	if !r.Call(at(0)) {
		t.Fatal("the first call is not made")
	}
	if r.Call(at(100)) {
		t.Error("a second call is made within 100 ms of the first")
	}
	for _, k := range []struct {
		heard, now int
		want       bool
	}{
		{-1000, 100, false}, // it still has time to answer
		{-1000, 500, true},
		{50, 500, false},
		{-1000, 2500, false}, // the call is too old
	} {
		if got := r.Missed(at(k.heard), at(k.now)); got != k.want {
			t.Errorf("heard at %d ms, asked at 0, now %d ms: missed %v, want %v", k.heard, k.now, got, k.want)
		}
	}
	// A call that has just begun does not hide the result of the one before.
	if !r.Call(at(400)) {
		t.Fatal("a call after 400 ms is not made")
	}
	if !r.Missed(at(-1000), at(500)) || r.Missed(at(50), at(500)) {
		t.Error("the newer call hides the older one")
	}
}
