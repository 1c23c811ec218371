package process

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEndIsFoundWithoutADescriptor waits for a process while this one may open no file, so
// that it can only poll.
func TestEndIsFoundWithoutADescriptor(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := processOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if p.gone(ended()) {
		t.Fatal("it lives and counts as gone")
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
		t.Error("it ended and that was not found")
	}
	if !alive || werr == nil {
		t.Errorf("without a descriptor it is alive: %v, and waiting for it says %v; want true and an error", alive, werr)
	}
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
