package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/testbed/bench/netbench"
)

// restTime is how long a netmanager is left alone before it counts as idle: what
// asked whether its path stands is over, and spare memory is given back. idleTime is
// for how long at least it is watched then.
const restTime, idleTime = 25 * time.Second, 30 * time.Second

// clocks are processes' CPU clocks at a time.
type clocks struct {
	at   time.Time
	used []time.Duration
}

func clocksOf(pids []int) (c clocks, err error) {
	c.at, c.used = time.Now(), make([]time.Duration, len(pids))
	for i, pid := range pids {
		if c.used[i], err = cpuOf(pid); err != nil {
			return c, err
		}
	}
	return c, nil
}

// rest reads the clocks of the bed's processes when they have had their rest,
// whatever is done on other beds.
func (b *bedInUse) rest(ctx context.Context, quick bool) {
	long := restTime
	if quick {
		long = 0
	}
	b.rested = sync.OnceValues(func() (clocks, error) {
		if err := sleep(ctx, long); err != nil {
			return clocks{}, err
		}
		return clocksOf(b.path.Processes())
	})
	go func() { _, _ = b.rested() }() // who wants to know asks again
}

// resident is what the larger of a path's processes has in memory while nothing
// happens.
func resident(ctx context.Context, b *bedInUse, _ bool) (netbench.Sample, string, error) {
	if _, err := b.rested(); err != nil {
		return netbench.Sample{}, "", err
	}
	m, err := largest(b)
	if err == nil { // afterwards: to ask it takes memory
		err = b.path.(*netbench.DaemonPath).Crowded(ctx)
	}
	return netbench.Sample{Value: m.resident}, fmt.Sprintf("VmRSS of new processes in each round, the program's own pages included; of it anonymous %.1f MiB; the most since its start %.1f MiB", m.anonymous, m.peak), err
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
	least := idleTime
	if quick {
		least = 200 * time.Millisecond
	}
	before, err := b.rested()
	if err != nil {
		return s, "", err
	}
	if err := sleep(ctx, time.Until(before.at.Add(least))); err != nil {
		return s, "", err
	}
	now, err := clocksOf(b.path.Processes())
	if err != nil {
		return s, "", err
	}
	took := now.at.Sub(before.at)
	for i := range now.used {
		s.Value = max(s.Value, 100*float64(now.used[i]-before.used[i])/float64(took))
	}
	return s, fmt.Sprintf("the CPU clocks of new processes in each round, while other paths are measured; the last for %.0f s", took.Seconds()), nil
}
