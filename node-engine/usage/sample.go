package usage

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/probe"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
)

const (
	// shortest is the least time between two measurements, whoever asks. The answer of the last one serves
	// those who ask sooner.
	shortest = time.Second
	// longest is the age up to which an earlier measurement begins a mean. Beyond it, present load would
	// vanish in the mean, so two are made.
	longest = 30 * time.Second

	iface = "eth0" // of workloads in network namespaces of their own
)

// Sampler measures what all workloads and the machine use, when somebody asks. It is safe for concurrent
// use: those who ask at the same time share a measurement.
type Sampler struct {
	rt  runtime.Runtime
	log *slog.Logger

	turn chan struct{} // holds one value while a measurement is under way, which owns the fields below
	last snapshot
	made wire.NodeSample // at last.at
}

// NewSampler returns a Sampler of a runtime's workloads. It costs nothing until it is asked.
func NewSampler(rt runtime.Runtime, log *slog.Logger) *Sampler {
	return &Sampler{rt: rt, log: log, turn: make(chan struct{}, 1)}
}

// snapshot has counters at one time.
type snapshot struct {
	at        time.Time // zero: none
	machine   probe.Counters
	workloads map[running]tally
}

// running is one run of a workload.
type running struct {
	wire.Key
	attempt, pid int
}

// tally has the counters of a workload. Those that cannot be read are -1.
type tally struct {
	group   cgroup.Group
	known   bool // group
	own     bool // it has a network namespace of its own
	cpu     time.Duration
	memory  int64
	in, out int64
}

// Sample returns what the machine and the running workloads use. It takes a second if nobody asked lately.
func (s *Sampler) Sample(ctx context.Context) (wire.NodeSample, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return wire.NodeSample{}, ctx.Err()
	}
	since := time.Since(s.last.at)
	if !s.last.at.IsZero() && since < shortest {
		return s.made, nil
	}
	was := s.last
	if was.at.IsZero() || since > longest {
		var err error
		if was, err = s.read(ctx, was); err != nil {
			return wire.NodeSample{}, err
		}
		select {
		case <-time.After(shortest):
		case <-ctx.Done():
			return wire.NodeSample{}, ctx.Err()
		}
	}
	is, err := s.read(ctx, was)
	if err != nil {
		return wire.NodeSample{}, err
	}
	s.last, s.made = is, between(was, is)
	return s.made, nil
}

// read reads all counters. It takes from was what does not change while a workload runs.
func (s *Sampler) read(ctx context.Context, was snapshot) (is snapshot, err error) {
	all, err := s.rt.List(ctx)
	if err != nil {
		return is, fmt.Errorf("list the workloads: %w", err)
	}
	is = snapshot{at: time.Now(), machine: probe.Count(), workloads: map[running]tally{}}
	groups, _ := s.rt.(runtime.Guarded)
	for _, st := range all {
		if st.Phase != wire.WorkloadRunning {
			continue
		}
		r := running{st.Key, st.Attempt, st.PID}
		t, seen := was.workloads[r]
		if !seen {
			t = tally{own: ownNetwork(st.PID)}
		}
		if !t.known && groups != nil {
			t.group, t.known = s.group(ctx, groups, st.Key)
		}
		t.cpu, t.memory, t.in, t.out = -1, -1, -1, -1
		if t.known {
			if cpu, memory, err := t.group.Usage(); err == nil {
				t.cpu, t.memory = cpu, memory
			} else {
				s.log.Debug("read the control group of a workload failed", "instance", st.Instance, "epoch", st.Epoch, "err", err)
				t.known = false // it may have been made again
			}
		}
		if t.own {
			t.in, t.out = probe.Traffic(filepath.Join("/proc", strconv.Itoa(st.PID), "net/dev"), iface)
		}
		is.workloads[r] = t
	}
	return is, nil
}

func (s *Sampler) group(ctx context.Context, rt runtime.Guarded, k wire.Key) (g cgroup.Group, ok bool) {
	fs, err := cgroup.Mounted()
	var at string
	if err == nil {
		at, err = rt.CgroupOf(ctx, k)
	}
	if err != nil {
		s.log.Debug("find the control group of a workload failed", "instance", k.Instance, "epoch", k.Epoch, "err", err)
		return g, false
	}
	return fs.Group(at), true
}

// ownNetwork reports whether the process has another network namespace than this one.
func ownNetwork(pid int) bool {
	if pid == 0 {
		return false
	}
	here, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return false
	}
	there, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	return err == nil && !os.SameFile(here, there)
}

// between returns what was used between two snapshots.
func between(was, is snapshot) wire.NodeSample {
	span := is.at.Sub(was.at)
	m := api.Usage{
		MilliCPU: rateOf(int64(was.machine.CPU), int64(is.machine.CPU), 1000, span), Memory: is.machine.Memory,
		In: rateOf(was.machine.In, is.machine.In, int64(time.Second), span), Out: rateOf(was.machine.Out, is.machine.Out, int64(time.Second), span),
	}
	s := wire.NodeSample{Machine: m.Bounded()}
	for r, t := range is.workloads {
		u := api.Usage{MilliCPU: -1, Memory: t.memory, In: -1, Out: -1}
		if b, ok := was.workloads[r]; ok {
			u.MilliCPU = rateOf(int64(b.cpu), int64(t.cpu), 1000, span)
			u.In, u.Out = rateOf(b.in, t.in, int64(time.Second), span), rateOf(b.out, t.out, int64(time.Second), span)
		}
		s.Workloads = append(s.Workloads, wire.WorkloadSample{Key: r.Key, Usage: u.Bounded()})
	}
	return s
}

// rateOf returns by how much a counter grew, times scale, per nanosecond of span; -1 if it is unknown or
// began anew.
func rateOf(was, is, scale int64, span time.Duration) int64 {
	if was < 0 || is < was || span <= 0 {
		return -1
	}
	return int64(float64(is-was) * float64(scale) / float64(span))
}
