package outside

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	var b breaker
	now := time.Unix(0, 0)
	fail := func() { b.note(now, false) }
	for range tolerated - 1 {
		fail()
	}
	if b.shut(now) != 0 {
		t.Fatal("it opens before its time")
	}
	fail()
	if b.shut(now) != pauseMin {
		t.Fatalf("shut for %s", b.shut(now))
	}
	now = now.Add(pauseMin)
	if b.shut(now) != 0 {
		t.Fatal("one may try when the pause is over")
	}
	if b.shut(now) == 0 {
		t.Fatal("and nobody else meanwhile")
	}
	fail()
	if b.shut(now) != 2*pauseMin {
		t.Fatalf("pauses double: %s", b.shut(now))
	}
	for range 20 {
		fail()
	}
	if b.shut(now) != pauseMax {
		t.Fatalf("pauses are bounded: %s", b.shut(now))
	}
	b.note(now, true)
	if b.shut(now) != 0 {
		t.Fatal("one answer makes up for all")
	}
}
