package leaktest

import (
	"testing"
	"time"
)

func TestWhatIsLeftIsFoundAndWhatEndsIsWaitedFor(t *testing.T) {
	check := Since(t)
	end := make(chan struct{})
	go func() { <-end }()
	if find(0) == nil {
		t.Error("a goroutine that stays is not found")
	}
	time.AfterFunc(2*time.Second, func() { close(end) }) // later than goleak itself waits
	check()
}
