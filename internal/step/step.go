// Package step says what a core is: a decider that takes the time and an input
// and returns effects. It has one owner and no goroutine, no lock, no clock and
// no I/O; package loop gives it a life, testbed/sim gives it a thousand.
package step

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// Core decides. now never runs backwards, and is monotonic where In measures
// time. A core that is restored from what an earlier one saved, cut off after
// any prefix of its saves, repairs the rest with its next steps.
type Core[In any] interface {
	Step(now time.Time, in In) Effects
}

// Effects are what one step asks of the world.
type Effects struct {
	Save []store.Doc    // durable first, in this order,
	Send []api.Envelope // then visible to others,
	Wake time.Time      // then sleep until the next input or this moment; zero: no moment
	Err  error          // why the input was refused; then nothing changed
}
