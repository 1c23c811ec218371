// Package step defines a core: it takes the time and an input and returns effects. It has one
// owner and no goroutine, lock, clock or I/O. Package loop runs it in a daemon, testbed/sim in
// the simulator.
package step

import (
	"time"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Core decides. now never goes back, and is monotonic where In measures time. A core that is
// restored from any prefix of the saves of an earlier one repairs the rest with its next
// steps.
type Core[In any] interface {
	Step(now time.Time, in In) Effects
}

// Effects are what a step asks its owner to do.
type Effects struct {
	Save []store.Doc     // durable first, in this order,
	Send []wire.Envelope // then visible to others,
	Wake time.Time       // then sleep until the next input or this moment; zero: no moment
	Err  error           // why the input was refused; then nothing changed
}
