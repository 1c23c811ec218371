package sim

import (
	"math/rand/v2"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// Settings are the properties of a world. In a world with the zero value everything takes a
// fixed time and clocks agree.
type Settings struct {
	Quality        Quality
	Restless       bool // clocks drift, wake-ups come late, delays vary
	ExternalBroker bool // the nodes' broker outlives their cluster orchestrator
	Network        bool // nodes have netmanagers, and workloads addresses
	Scarce         bool // five addresses on each node
}

// Options are the options of a run.
type Options struct {
	Trace bool // keep every line, which costs time and memory
	Plant Plant
	Plans bool // request plans repeatedly, which must not change the run
	Only  Only // the only kind of fault; empty: all

	Scale  bool // services scale, by a load that nodes invent
	Health bool // services have health checks, which fail at random while there are faults

	Away time.Duration // the root ends after the first faults, and starts again after this time
}

// Plant is a planted fault, which proves that the simulator would find it.
type Plant string

// The faults that can be planted.
const (
	PlantNothing      Plant = ""
	PlantIgnoreLeases Plant = "ignore-leases" // nodes treat their lease as always renewed, and have no guard
	PlantForgetNode   Plant = "forget-node"   // nodes do not save their work
	PlantForgetApp    Plant = "forget-app"    // the root does not save applications
	PlantForgetSpot   Plant = "forget-spot"   // clusters do not save instances
	PlantOneDevice    Plant = "one-device"    // runtimes give every workload the first device of a kind
	PlantOldLabels    Plant = "old-labels"    // nodes never report changes of their properties
	PlantHiddenStop   Plant = "hidden-stop"   // after an unclean stop a runtime reports workloads as running that ended with it
	PlantNoDemand     Plant = "no-demand"     // netmanagers do not say for which services packets wait
	PlantNeverIdle    Plant = "never-idle"    // nodes report every workload as used just now
)

// Plants returns the faults that can be planted.
func Plants() []string {
	return []string{string(PlantIgnoreLeases), string(PlantForgetNode), string(PlantForgetApp), string(PlantForgetSpot), string(PlantOneDevice), string(PlantOldLabels), string(PlantHiddenStop), string(PlantNoDemand), string(PlantNeverIdle)}
}

func (o Options) forgetsSave(machine string, doc store.Doc) bool {
	switch o.Plant {
	case PlantForgetNode:
		return doc.Kind == "work"
	case PlantForgetApp:
		return machine == "root" && doc.Kind == "app"
	case PlantForgetSpot:
		return machine != "root" && doc.Kind == "instance"
	}
	return false
}

// World is one root, its clusters and their nodes, and their time.
type World struct {
	Settings
	opts    Options
	chance  *rand.Rand
	now     moment
	queue   queue
	seq     uint64
	steps   int
	saves   int
	quality Quality
	story   story
	chaos   *chaos // nil in scenarios

	root           *RootMachine
	clusters       []*ClusterMachine
	externalBroker bool
	registryDown   bool
	healthy        bool // faulty images have been repaired

	resting bool // nobody uses a service that scales, and nodes report that
	woken   int  // services that woke when they were demanded

	ill  map[api.InstanceID]string // what fails in scenarios: "unready" or "dead"
	load map[api.ServiceID]int     // open connections of each instance in scenarios

	running   map[api.InstanceID][]*running
	writes    uint64                       // to volumes
	runs      map[scheduled]bool           // that have ended
	takers    map[scheduled]api.InstanceID // that have begun, with their instances
	epochs    map[api.InstanceID]api.Epoch // newest that the root has shown
	moves     moves
	strained  bool // a violation was reported since the calm began
	talk      talk
	ghosts    map[ghost]moment // since when
	violation *Violation
}

// NewWorld returns an empty world.
func NewWorld(seed uint64, set Settings, opts Options) *World {
	w := &World{
		Settings: set, opts: opts, chance: rand.New(rand.NewPCG(seed, 0x7265656c696e65)),
		quality: set.Quality, externalBroker: set.ExternalBroker,
		running: map[api.InstanceID][]*running{}, epochs: map[api.InstanceID]api.Epoch{}, moves: moves{},
		ill: map[api.InstanceID]string{}, load: map[api.ServiceID]int{},
	}
	w.story.keep = opts.Trace
	if w.quality.Delay == 0 {
		w.quality.Delay = 10 * time.Millisecond
	}
	if w.quality.Silence == 0 {
		w.quality.Silence = 6 * time.Second
	}
	return w
}

func (w *World) at(t moment, do func()) {
	w.seq++
	w.queue.plan(event{t, w.seq, do})
}

func (w *World) after(d time.Duration, do func()) { w.at(w.now+d, do) }

// Run lets time pass, unless a violation ends it.
func (w *World) Run(d time.Duration) {
	end := w.now + d
	for len(w.queue) > 0 && w.queue[0].at <= end && w.violation == nil {
		e := w.queue.next()
		w.now = e.at
		e.do()
	}
	if w.violation == nil {
		w.now = end
	}
}

// RunUntil lets time pass until the condition holds, at most d, and reports whether it does.
func (w *World) RunUntil(so func() bool, d time.Duration) bool {
	look := 500 * time.Millisecond
	if w.chaos != nil {
		look = 2 * time.Second // the check costs more than the steps
	}
	for end := w.now + d; w.now < end && w.violation == nil; {
		if so() {
			return true
		}
		w.Run(min(look, end-w.now))
	}
	return w.violation == nil && so()
}

// between returns a random time between the two, or the lesser in a world without faults.
func (w *World) between(least, most time.Duration) time.Duration {
	if !w.Restless {
		return least
	}
	return least + time.Duration(w.chance.Int64N(int64(most-least)))
}

// oneIn reports true once in n times, and never in a world without faults.
func (w *World) oneIn(n int) bool { return w.Restless && w.chance.IntN(n) == 0 }

func (w *World) newClock() *clock {
	if !w.Restless {
		return &clock{}
	}
	drift := int64(50_000)
	if w.opts.Only != "" {
		drift = 100
	}
	return &clock{
		offset: time.Duration(w.chance.Int64N(int64(time.Hour))),
		ppm:    w.chance.Int64N(2*drift+1) - drift,
	}
}

func (w *World) rebootShift() time.Duration {
	on, back := w.between(0, time.Hour), w.between(0, time.Hour)
	return on - back
}

func (w *World) tickDelay() time.Duration {
	if w.opts.Only == "" && w.oneIn(100) {
		return w.between(0, 1500*time.Millisecond)
	}
	return w.between(0, 3*time.Millisecond)
}

func (w *World) runtimeDelay() time.Duration {
	if w.opts.Only != "" {
		return w.between(50*time.Millisecond, 200*time.Millisecond)
	}
	if w.oneIn(20) {
		return w.between(time.Second, 8*time.Second)
	}
	return w.between(100*time.Millisecond, 400*time.Millisecond)
}

func (w *World) killDelay() time.Duration {
	if w.oneIn(5) {
		return w.between(10*time.Millisecond, time.Second)
	}
	return w.between(10*time.Millisecond, 50*time.Millisecond)
}

func (w *World) termDelay() time.Duration { return w.between(200*time.Millisecond, 12*time.Second) }

// downTime returns how long a process is down that crashed within a step.
func (w *World) downTime() time.Duration { return w.between(100*time.Millisecond, 10*time.Second) }

// learns returns how long the other end takes to detect that a process ended: mostly at
// once, and after its timeout if the reset was lost.
func (w *World) learns() time.Duration {
	if w.opts.Only == "" && w.oneIn(8) {
		return w.quality.Silence
	}
	return w.between(time.Millisecond, 200*time.Millisecond)
}

// sick are the names of images with faults.
func (w *World) sick() bool { return !w.healthy }
