package sim

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// process is one daemon with its core. Inputs to a stopped process are lost, inputs to a
// paused one wait.
type process[In any] struct {
	w     *World
	name  string
	clock *clock
	disk  *disk
	tick  In

	core   step.Core[In]
	input  In // of the last step
	alive  bool
	paused bool
	inbox  []In
	due    bool // a tick came due during a pause
	plan   uint64
	fuse   int // crash within the step that decrements this to zero; 0: none planned
	snip   int // crash within the next step with more saves, after this number; negative: none planned

	before []string // its state at its last crash between two steps; nil: none

	last  moment // time of the last step
	burst int    // steps at that time; detects a core that wakes itself without end

	send  func(wire.Envelope)
	fell  func()          // after a crash within a step
	watch func()          // after every step
	holds func() []string // state that a crash must not lose, see durable.go
}

// answer is the result of one input.
type answer struct {
	taken bool // the step was completed, so that the caller got an answer
	err   error
}

var errCrashed = fmt.Errorf("crashed before it answered: %w", api.ErrUnavailable)

func (p *process[In]) running() bool { return p.alive && !p.paused }

// give delivers an input as soon as the process accepts inputs.
func (p *process[In]) give(in In) answer {
	switch {
	case !p.alive:
		return answer{err: api.ErrUnavailable}
	case p.paused:
		p.inbox = append(p.inbox, in)
		return answer{err: api.ErrUnavailable}
	}
	return p.step(in)
}

func (p *process[In]) step(in In) answer {
	p.w.steps++
	p.input = in
	if p.last != p.w.now {
		p.last, p.burst = p.w.now, 0
	}
	if p.burst++; p.burst > 5000 {
		p.w.violate("livelock", p.name, "more than 5000 steps in one instant, the last on %T", in)
		return answer{err: api.ErrUnavailable}
	}
	eff, ok := p.decide(in)
	if !ok {
		return answer{err: errCrashed}
	}
	saves, falls := len(eff.Save), false
	if p.fuse > 0 {
		if p.fuse--; p.fuse == 0 {
			falls, saves = true, p.w.chance.IntN(saves+1)
		}
	}
	if p.snip >= 0 && saves > p.snip {
		falls, saves = true, p.snip
	}
	for _, doc := range eff.Save[:saves] {
		if p.w.opts.forgetsSave(p.name, doc) {
			continue
		}
		if p.w.talk.listening {
			p.w.note(p.name, "saves %s %s", doc.Kind, doc.Key)
		}
		if err := p.disk.save(doc); err != nil {
			p.w.violate("journal", p.name, "%v", err)
		}
	}
	p.w.saves += saves
	if falls {
		p.w.note(p.name, "crashes after %d of %d saves of a step on %s", saves, len(eff.Save), inputName(in))
		p.stop()
		p.fell()
		return answer{err: errCrashed}
	}
	p.wake(eff.Wake)
	for _, e := range eff.Send {
		p.send(e)
	}
	if p.watch != nil {
		p.watch()
	}
	return answer{taken: true, err: eff.Err}
}

// decide calls the core's Step. A panic is a violation with its position as the detail.
func (p *process[In]) decide(in In) (eff step.Effects, ok bool) {
	defer func() {
		if r := recover(); r != nil {
			p.w.violate("panic", p.name, "on %s: %v at %s", inputName(in), r, culprit())
			p.stop()
		}
	}()
	return p.core.Step(p.clock.at(p.w.now), in), true
}

// culprit returns the position of a panic, above the frames of the Go runtime.
func culprit() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "treeline") && !strings.Contains(f.Function, "testbed") {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return "an unknown place"
		}
	}
}

func (p *process[In]) wake(local time.Time) {
	p.plan++
	if local.IsZero() {
		return
	}
	plan, late := p.plan, p.w.tickDelay()
	p.w.at(max(p.clock.when(local), p.w.now)+late, func() {
		if p.plan != plan || !p.alive {
			return
		}
		if p.paused {
			p.due = true
			return
		}
		p.step(p.tick)
	})
}

func (p *process[In]) start(core step.Core[In], first In) {
	p.core, p.alive, p.paused, p.snip = core, true, false, -1
	p.recall()
	p.step(first)
}

func (p *process[In]) stop() {
	p.alive, p.paused, p.inbox, p.due, p.fuse, p.snip = false, false, nil, false, 0, -1
	p.plan++
}

// crash stops the process between two steps.
func (p *process[In]) crash() {
	if p.alive {
		p.before = p.holds()
		p.stop()
	}
}

func (p *process[In]) pause() { p.paused = p.alive }

// resume delivers the waiting inputs. The tick is first or last, as in a select statement.
func (p *process[In]) resume() {
	if !p.paused {
		return
	}
	p.paused = false
	inbox, due := p.inbox, p.due
	p.inbox, p.due = nil, false
	tickFirst := p.w.chance.IntN(2) == 0
	if due && tickFirst {
		p.step(p.tick)
	}
	for _, in := range inbox {
		if p.alive {
			p.step(in)
		}
	}
	if due && !tickFirst && p.alive {
		p.step(p.tick)
	}
}

func inputName(in any) string { return fmt.Sprintf("%T", in) }
