package main

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/testbed/lab"
)

const idleMinutes = 3

// headers of a TCP segment on IPv4 with timestamps.
const headers = 20 + 32

// idle measures idle node engines per minute: several processes with containerd, for three
// minutes.
func idle(r *run) error {
	nodes := max(1, (r.n+idleMinutes-1)/idleMinutes)
	minute, minutes := time.Minute, idleMinutes
	return inLab(r, func(l *lab.Lab) error {
		c := l.Cluster("munich", lab.ClusterOptions{Args: quiet})
		var all []*lab.Node
		for i := range nodes {
			all = append(all, c.Node(fmt.Sprintf("node-%d", i), lab.NodeOptions{Containers: true, Args: quiet}))
		}
		l.Wait("the nodes take work", lab.Nodes("munich", nodes))
		if err := sleep(r.ctx, 10*time.Second); err != nil { // until effects of the start are over
			return err
		}
		var rss, anon, cpu, traffic series
		for range minutes {
			w := watch(l.Dir)
			began := time.Now()
			used, passed := make([]time.Duration, nodes), make([]int64, nodes)
			for i, n := range all {
				var err error
				if used[i], err = cpuOf(n.PID()); err != nil {
					return err
				}
				passed[i] = n.Link.Bytes()
			}
			if err := sleep(r.ctx, minute); err != nil {
				return err
			}
			bad := w.disturbed()
			for i, n := range all {
				now, err := cpuOf(n.PID())
				if err != nil {
					return err
				}
				m, err := memoryOf(n.PID())
				if err != nil {
					return err
				}
				took := time.Since(began)
				cpu.add(100*float64(now-used[i])/float64(took), bad)
				traffic.add(float64(n.Link.Bytes()-passed[i])/took.Minutes(), bad)
				rss.add(m.resident, bad)
				anon.add(m.anonymous, bad)
			}
		}
		r.emit(rss.record("idle.rss", "MiB").atMost(25).noting("VmRSS: the program's own pages included"))
		r.emit(anon.record("idle.rss-anonymous", "MiB").noting("RssAnon: without the pages of the program's file, which is the cost of one more"))
		r.emit(cpu.record("idle.cpu", "% core").atMost(0.2).noting("the process's CPU clock over a minute, mean %.3f %%", mean(cpu.values)))
		beats := float64(time.Minute / (2500 * time.Millisecond))
		t := traffic.record("idle.traffic", "B/min").atMost(2048)
		r.emit(t.noting("bytes of TLS records both ways, counted by a proxy; with a segment and its acknowledgement for each of %.0f signs of life, about %.0f B/min with TCP and IP headers",
			beats, t.Median+beats*2*headers))
		return nil
	})
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(1, len(values)))
}
