// Package step defines cores: a core takes the time and an input and returns effects. It has one
// owner and no goroutine, lock, clock or I/O. Package loop runs cores in a daemon, testbed/sim in
// the simulator.
package step

import (
	"time"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Core decides. now never goes back. A core that is restored from any prefix of the saves of an
// earlier one repairs the rest with its next steps.
type Core[In any] interface {
	Step(now time.Time, in In) Effects
}

// Effects are what the core's owner does after a step, in the order of the fields.
type Effects struct {
	Save []store.Doc     // made durable, in this order
	Send []wire.Envelope // sent once Save is durable
	Wake time.Time       // the next step without input; zero: none
	Err  error           // why the input was refused; then nothing changed
}
