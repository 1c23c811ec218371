package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/treeline-edge/treeline/testbed/bench/netbench"
)

// restTime is how long a netmanager is left alone before it counts as idle: what
// asked whether its path stands is over, and spare memory is given back.
const restTime = 25 * time.Second

func rest(ctx context.Context, b *bedInUse, quick bool) error {
	long := restTime
	if quick {
		long = 0
	}
	return b.path.(*netbench.DaemonPath).Rest(ctx, b.Bed, long)
}

// resident is what the larger of a path's processes has in memory while nothing
// happens.
func resident(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
	if err := rest(ctx, b, quick); err != nil {
		return netbench.Sample{}, "", err
	}
	m, err := largest(b)
	return netbench.Sample{Value: m.resident}, fmt.Sprintf("VmRSS, the program's own pages included; of it anonymous %.1f MiB; the most since its start %.1f MiB", m.anonymous, m.peak), err
}

// residentAtSpeed is the most that it has while it carries as much as it can.
func residentAtSpeed(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
	for _, pid := range b.path.Processes() {
		const forgetPeak = "5" // proc(5)
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(forgetPeak), 0); err != nil {
			return netbench.Sample{}, "", err
		}
	}
	s, _, err := tcp(4)(ctx, b, quick)
	if err != nil {
		return s, "", err
	}
	m, err := largest(b)
	note := fmt.Sprintf("VmHWM of the larger one, at %.1f Gbit/s by 4 flows", s.Value)
	s.Value = m.peak
	return s, note, err
}

func largest(b *bedInUse) (most memory, err error) {
	for _, pid := range b.path.Processes() {
		m, err := memoryOf(pid)
		if err != nil {
			return most, err
		}
		if m.resident > most.resident {
			m.peak = max(m.peak, most.peak)
			most = m
		}
		most.peak = max(most.peak, m.peak)
	}
	return most, nil
}

// idleCPU is what the busier of a path's processes uses while nothing happens.
func idleCPU(ctx context.Context, b *bedInUse, quick bool) (s netbench.Sample, _ string, _ error) {
	d := 30 * time.Second
	if quick {
		d = 200 * time.Millisecond
	}
	if err := rest(ctx, b, quick); err != nil {
		return s, "", err
	}
	w, pids := watch(""), b.path.Processes()
	used, began := make([]time.Duration, len(pids)), time.Now()
	for i, pid := range pids {
		var err error
		if used[i], err = cpuOf(pid); err != nil {
			return s, "", err
		}
	}
	if err := sleep(ctx, d); err != nil {
		return s, "", err
	}
	took := time.Since(began)
	for i, pid := range pids {
		now, err := cpuOf(pid)
		if err != nil {
			return s, "", err
		}
		s.Value = max(s.Value, 100*float64(now-used[i])/float64(took))
	}
	s.Foreign = w.foreign()
	return s, "the process's CPU clock", nil
}
