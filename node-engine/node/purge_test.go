package node

import (
	"testing"
	"time"
)

// purge sends an empty desired set with the purge flag.
func (w *world) purge() {
	w.gen++
	d := Desired{}
	d.Gen, d.Purge = w.gen, true
	w.step(d)
}

func TestNodeAsksToBePurgedOnceItIsEmpty(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	w.pass(10 * time.Second)
	if count[Empty](w) != 0 {
		t.Fatal("a node that nobody purges asks to be purged")
	}
	w.slow = true
	w.purge()
	w.pass(10 * time.Second)
	if count[Empty](w) != 0 {
		t.Error("the node asks to be purged while an instance is being stopped")
	}
	w.slow = false
	w.restart() // the purge flag survives the restart
	w.isGone()
	w.pass(10 * time.Second)
	if count[Empty](w) == 0 {
		t.Error("an empty node does not ask to be purged")
	}
}

func TestPurgeThatWasTakenBackIsForgotten(t *testing.T) {
	w := newWorld(t)
	w.purge()
	w.pass(10 * time.Second)
	asked := count[Empty](w)
	if asked == 0 {
		t.Fatal("an empty node does not ask to be purged")
	}
	w.wants()
	w.pass(10 * time.Second)
	if count[Empty](w) != asked {
		t.Error("the node asks although the order was taken back")
	}
}

func TestNodeWithoutItsRuntimeDoesNotAskToBePurged(t *testing.T) {
	w := newWorld(t)
	info := w.info
	info.RuntimeError = "it does not answer"
	w.step(Info{Info: info})
	w.purge()
	w.pass(10 * time.Second)
	if count[Empty](w) != 0 {
		t.Error("the node cannot know that it is empty")
	}
}
