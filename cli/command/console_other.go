//go:build !unix

package command

import (
	"context"
	"time"
)

// sizeInterval is the interval of reading the terminal's size. Windows has no signal for it.
const sizeInterval = 500 * time.Millisecond

// resized signals after each change of the terminal's size until ctx ends.
func resized(ctx context.Context, size func() (uint16, uint16)) <-chan struct{} {
	out := make(chan struct{})
	go func() {
		defer close(out)
		w, h := size()
		for {
			select {
			case <-time.After(sizeInterval):
			case <-ctx.Done():
				return
			}
			if nw, nh := size(); nw != w || nh != h {
				w, h = nw, nh
				select {
				case out <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}
