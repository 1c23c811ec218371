//go:build unix

package command

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// resized signals after each change of the terminal's size until ctx ends.
func resized(ctx context.Context, _ func() (uint16, uint16)) <-chan struct{} {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGWINCH)
	out := make(chan struct{})
	go func() {
		defer close(out)
		defer signal.Stop(signals)
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			select {
			case out <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
