package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/testbed/bench/netbench"
)

// restTime is how long a netmanager is left alone before it counts as idle, so that path checks
// are over and unused memory is returned. idleTime is the minimum duration of the measurement
// after that; it includes the work of each minute. The memory changes from second to second, and
// is read every lookTime.
const restTime, idleTime, lookTime = 25 * time.Second, 65 * time.Second, time.Second

// clocks are the CPU clocks of processes at one time.
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

// rest measures the idle processes of a bed, from restTime on.
type rest struct {
	clocks

	mu    sync.Mutex // guards looks
	looks [][]memory // of each process
}

// comeToRest waits until the bed's processes are idle, independently of other beds, and then
// reads their memory until they or ctx end.
func (b *bedInUse) comeToRest(ctx context.Context, quick bool) (*rest, error) {
	long := restTime
	if quick {
		long = 0
	}
	if err := sleep(ctx, long); err != nil {
		return nil, err
	}
	pids := b.path.Processes()
	if err := forgetPeaks(pids); err != nil {
		return nil, err
	}
	c, err := clocksOf(pids)
	if err != nil {
		return nil, err
	}
	r := &rest{clocks: c, looks: make([][]memory, len(pids))}
	go func() {
		for r.look(pids) == nil && sleep(ctx, lookTime) == nil {
		}
	}()
	return r, nil
}

// look reads the memory of the processes.
func (r *rest) look(pids []int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, pid := range pids {
		m, err := memoryOf(pid)
		if err != nil {
			return err
		}
		r.looks[i] = append(r.looks[i], m)
	}
	return nil
}

// larger returns the memory of the larger process, as the median of its readings, the maximum of
// one of them, and the number of readings.
func (r *rest) larger() (m memory, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, looks := range r.looks {
		var resident, anonymous []float64
		for _, l := range looks {
			resident, anonymous = append(resident, l.resident), append(anonymous, l.anonymous)
			m.peak = max(m.peak, l.peak)
		}
		m.resident = max(m.resident, quantile(resident, 0.5))
		m.anonymous = max(m.anonymous, quantile(anonymous, 0.5))
		n = len(looks)
	}
	return m, n
}

// watched waits until the bed's processes were measured for long enough.
func watched(ctx context.Context, b *bedInUse, quick bool) (*rest, error) {
	least := idleTime
	if quick {
		least = 200 * time.Millisecond
	}
	r, err := b.rested()
	if err != nil {
		return nil, err
	}
	return r, sleep(ctx, time.Until(r.at.Add(least)))
}

// resident measures the memory of a path's idle processes.
func resident(value func(memory) float64) measurement {
	return func(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
		r, err := watched(ctx, b, quick)
		if err != nil {
			return netbench.Sample{}, "", err
		}
		if err := r.look(b.path.Processes()); err != nil { // updates the kernel's maximum
			return netbench.Sample{}, "", err
		}
		m, n := r.larger()
		note := fmt.Sprintf("VmRSS of new processes in each round, the program's own pages included; the last median of %d readings is %.1f MiB, of it anonymous %.1f MiB; the maximum (VmHWM) is %.1f MiB", n, m.resident, m.anonymous, m.peak)
		return netbench.Sample{Value: value(m)}, note, b.path.(*netbench.DaemonPath).Crowded(ctx) // last, because it takes memory
	}
}

func usually(m memory) float64 { return m.resident }

func atMost(m memory) float64 { return m.peak }

// forgetPeaks resets the kernel's maximum of the memory of processes.
func forgetPeaks(pids []int) error {
	for _, pid := range pids {
		const forgetPeak = "5" // proc(5)
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(forgetPeak), 0); err != nil {
			return err
		}
	}
	return nil
}

// residentAtSpeed measures the maximum memory at full throughput.
func residentAtSpeed(ctx context.Context, b *bedInUse, quick bool) (netbench.Sample, string, error) {
	if err := forgetPeaks(b.path.Processes()); err != nil {
		return netbench.Sample{}, "", err
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

// idleCPU measures the CPU time of the busier of a path's idle processes.
func idleCPU(ctx context.Context, b *bedInUse, quick bool) (s netbench.Sample, _ string, _ error) {
	before, err := watched(ctx, b, quick)
	if err != nil {
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
	return s, fmt.Sprintf("CPU clocks of new processes in each round, while other paths are measured; the last for %.0f s", took.Seconds()), nil
}
