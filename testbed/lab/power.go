package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

// PowerCuts is the result of a run of power cuts, which docs/faults.md shows.
type PowerCuts struct {
	Date      string  `json:"date"` // of its end, UTC
	CPUs      int     `json:"cpus"`
	Load      float64 `json:"load"` // average over the last 5 minutes
	Cuts      int     `json:"cuts"`
	Recovered int     `json:"recovered"` // the cuts without another one during the recovery
	Soon      int     `json:"soon"`      // of Recovered, within 10 s
	Median    float64 `json:"median"`    // s, of Recovered
	Longest   float64 `json:"longest"`
	Writes    int     `json:"writes"` // acknowledged; none was lost
}

// Append adds the result to a file of JSON lines.
func (r PowerCuts) Append(path string) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // figures are no secret
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// PowerCut kills every process of the lab with SIGKILL, in any order: daemons,
// containerd, shims, guards and workloads. Files stay. It returns when no process
// is left.
func (l *Lab) PowerCut() {
	l.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		pids := processesOf(l.Dir, string(l.Tenant))
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("power cut: processes %v do not end", pids)
		}
		rand.Shuffle(len(pids), func(i, j int) { pids[i], pids[j] = pids[j], pids[i] })
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	for _, p := range l.procs {
		if p.cmd != nil {
			<-p.ended
		}
	}
}

// Found waits until the root and the clusters, which were launched again, are ready, and
// directs their links to their new addresses.
func (l *Lab) Found(clusters ...*Cluster) {
	l.t.Helper()
	l.Root.WaitReady()
	l.RootLink.To(l.address(l.rootData))
	for _, c := range clusters {
		c.WaitReady()
		c.Link.To(l.address(c.Data))
	}
}

// AsShown compares the root's view of an application with the kernel's processes: it must have
// n instances, all running, each with exactly one process.
func (l *Lab) AsShown(app string, n int) error {
	ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
	defer cancel()
	all, _, err := client.List[api.Instance](ctx, l.API, string(client.Instances), client.ListOptions{})
	if err != nil {
		return err
	}
	processes := map[api.InstanceID][]Workload{}
	for _, w := range l.Workloads() {
		processes[w.Instance] = append(processes[w.Instance], w)
	}
	shown := 0
	for _, i := range all {
		if i.Service.App() != l.Tenant.App(app, Namespace) {
			continue
		}
		shown++
		has := processes[i.ID]
		delete(processes, i.ID)
		switch {
		case i.State != api.Running || i.Stale:
			return fmt.Errorf("%s is %s (stale %v, %s: %s), with processes %+v", i.ID, i.State, i.Stale, i.Reason, i.Detail, has)
		case len(has) != 1:
			return fmt.Errorf("%s is shown as running since %s, but has %d processes: %+v", i.ID, i.Since.Format(time.TimeOnly), len(has), has)
		}
	}
	switch {
	case shown != n:
		return fmt.Errorf("the root shows %d instances of %s, want %d", shown, app, n)
	case len(processes) > 0:
		return fmt.Errorf("the root does not show %v, which have processes", slices.Sorted(maps.Keys(processes)))
	}
	return nil
}

// LoadAverage returns the machine's load average over 1, 5 or 15 minutes, 0 if it is unknown.
func LoadAverage(minutes int) float64 {
	var avg [3]float64
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(text), &avg[0], &avg[1], &avg[2])
	}
	return avg[map[int]int{1: 0, 5: 1, 15: 2}[minutes]]
}
