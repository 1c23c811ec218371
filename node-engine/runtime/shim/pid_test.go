package shim

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEndIsDetectedWithoutFileDescriptors waits for a process while this one cannot open files,
// so that it can only poll.
func TestEndIsDetectedWithoutFileDescriptors(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := processOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if p.gone(ended()) {
		t.Fatal("gone of a running process: got true, want false")
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	gone := make(chan bool, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	alive, werr := p.alive(), p.wait(ctx)
	go func() { gone <- p.gone(ctx) }()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !<-gone {
		t.Error("gone of an ended process: got false, want true")
	}
	if !alive || werr == nil {
		t.Errorf("without file descriptors: got alive %t, wait %v; want true and an error", alive, werr)
	}
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
