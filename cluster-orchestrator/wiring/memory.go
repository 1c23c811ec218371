package wiring

import (
	"context"
	"runtime/debug"
	"time"
)

// releaseEvery is how often free memory is returned to the operating system.
const releaseEvery = time.Minute

// releaseMemory returns memory that a burst left free, such as a thousand nodes that joined
// at once: the Go runtime by itself keeps most of it. One collection a minute costs less
// than a thousandth of a core.
func releaseMemory(ctx context.Context) error {
	tick := time.NewTicker(releaseEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			debug.FreeOSMemory()
		case <-ctx.Done():
			return nil
		}
	}
}
