package mainthread

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

func TestNoGoroutineRunsOnTheFirstThread(t *testing.T) {
	var all sync.WaitGroup
	hold := make(chan struct{})
	for range 100 {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if syscall.Gettid() == os.Getpid() {
				t.Error("a goroutine got the first thread")
			}
			<-hold
		})
	}
	close(hold)
	all.Wait()
}
