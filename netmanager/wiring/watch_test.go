package wiring

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The library's subscription ends with the first overflow of its socket, which a host
// that starts many containers while the core is busy brings about.
func TestMovesAreSeenAfterABurst(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	looks, hold := make(chan struct{}, 1000), make(chan struct{})
	failed := make(chan error, 1)
	enter := make(chan int, 1)
	nudge := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := true
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		enter <- unix.Gettid()
		failed <- watchPlace(ctx, slog.New(slog.DiscardHandler), nudge, func() {
			looks <- struct{}{}
			if first { // a look takes a while: the core is busy, the relay is told
				first = false
				<-hold
			}
		})
	}()
	var tid int
	select {
	case tid = <-enter:
	case err := <-failed:
		t.Fatal(err)
	}
	ns := fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), tid)
	ip := func(batch string) {
		t.Helper()
		cmd := exec.Command("nsenter", "--net="+ns, "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	look := func(what string) {
		t.Helper()
		select {
		case <-looks:
		case err := <-failed:
			t.Fatalf("%s: it ended: %v", what, err)
		case <-time.After(time.Minute):
			t.Fatalf("%s is not seen", what)
		}
	}
	nudge <- struct{}{}
	look("the nudge") // which is heard only once it watches
	var burst strings.Builder
	burst.WriteString("link set lo up\n")
	for i := range 4000 {
		fmt.Fprintf(&burst, "addr add 198.18.%d.%d/32 dev lo\n", i>>8, i&255)
	}
	ip(burst.String())
	close(hold)
	look("the burst")
	// Of the burst more may follow; what counts is that the moves after it never end to
	// be seen.
	for i := range 3 {
		for len(looks) > 0 {
			<-looks
		}
		time.Sleep(2*settleTime + watchPause)
		for len(looks) > 0 {
			<-looks
		}
		ip(fmt.Sprintf("addr add 192.0.2.%d/32 dev lo\n", i+1))
		look("a move after the burst")
	}
}
