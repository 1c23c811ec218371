package wiring

import (
	"context"
	"runtime/debug"
	"time"
)

// releaseEvery is how often memory goes back to the machine.
const releaseEvery = time.Minute

// releaseMemory gives back what a burst left free, such as a thousand nodes that
// joined at once: the runtime by itself keeps most of it for good. One collection
// a minute costs less than a thousandth of a core.
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
