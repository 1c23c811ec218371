package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/testbed/lab"
)

const (
	swarmNodes     = 1000
	swarmInstances = 1000
	swarmWindow    = 5 * time.Second // two heartbeats of every node
	swarmPatience  = 4 * time.Minute
)

// clusterLoad measures a cluster orchestrator with 1,000 nodes, each with one instance. The
// nodes are complete node engines in a second process, with certificates from joins, over MQTT
// with TLS.
func clusterLoad(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		addr, err := freeport.Addr()
		if err != nil {
			return err
		}
		c := l.Cluster("munich", lab.ClusterOptions{Args: append([]string{"--listen", addr}, quiet...)})
		tok, err := l.API.CreateJoinToken(l.Context(), api.TokenRequest{Kind: "node", Cluster: "munich", Uses: swarmNodes})
		if err != nil {
			return err
		}
		t, err := jointoken.Parse(tok.Token)
		if err != nil {
			return err
		}
		t.URL = "https://" + addr // not through the lab's proxy
		order, err := json.Marshal(swarmOrder{Dir: filepath.Join(l.Dir, "swarm"), Token: t.Line(), Nodes: swarmNodes, AtOnce: 16})
		if err != nil {
			return err
		}
		_, end, err := startSwarm(string(order))
		if err != nil {
			return err
		}
		defer end()

		before, err := cpuOf(c.PID())
		if err != nil {
			return err
		}
		began := time.Now()
		l.WaitWithin(swarmPatience, "all nodes have joined", lab.Nodes("munich", swarmNodes))
		var joined, joinCPU series
		used, err := cpuOf(c.PID())
		if err != nil {
			return err
		}
		joined.add(time.Since(began).Seconds(), false)
		joinCPU.add((used - before).Seconds(), false)
		r.emit(joined.record("cluster.join-1000", "s").noting("swarm and cluster share this machine"))
		r.emit(joinCPU.record("cluster.join-1000.cpu", "s"))

		l.Apply(lab.App("load", idler(l, swarmInstances)))
		l.WaitWithin(swarmPatience, "an instance for each node", l.Running("load", "web", swarmInstances))
		if err := measureSteady(r, c.Proc); err != nil {
			return err
		}
		if err := storm(r, l, c); err != nil {
			return err
		}
		return nil
	})
}

// measureSteady measures a cluster without changes.
func measureSteady(r *run, c *lab.Proc) error {
	if err := sleep(r.ctx, 10*time.Second); err != nil {
		return err
	}
	var cpu, rss series
	for range max(r.n, 30) {
		w := watch("") // the swarm is a child process; the other daemons use little
		used, err := cpuOf(c.PID())
		if err != nil {
			return err
		}
		began := time.Now()
		if err := sleep(r.ctx, swarmWindow); err != nil {
			return err
		}
		now, err := cpuOf(c.PID())
		if err != nil {
			return err
		}
		took := time.Since(began)
		m, err := memoryOf(c.PID())
		if err != nil {
			return err
		}
		bad := w.disturbed()
		cpu.add(100*float64(now-used)/float64(took), bad)
		rss.add(m.resident, bad)
	}
	r.emit(cpu.record("cluster.cpu", "% core").atMost(15).noting("windows of %s with %d nodes and %d instances; mean %.2f %%", swarmWindow, swarmNodes, swarmInstances, mean(cpu.values)))
	m, err := memoryOf(c.PID())
	if err != nil {
		return err
	}
	r.emit(rss.record("cluster.rss", "MiB").atMost(150).noting("VmRSS; the most since its start: %.0f MiB", m.peak))
	return nil
}

// storm kills the orchestrator, so that all nodes reconnect at once.
func storm(r *run, l *lab.Lab, c *lab.Cluster) error {
	began := time.Now()
	c.Restart()
	for {
		all, _, err := client.List[api.Node](l.Context(), c.API, "/v1/nodes", client.ListOptions{})
		ready := 0
		for _, n := range all {
			if n.Status == api.NodeReady && n.Heard.After(began) {
				ready++
			}
		}
		if err == nil && ready == swarmNodes {
			break
		}
		if time.Since(began) > swarmPatience {
			return fmt.Errorf("%d of %d nodes are back after %s (%v)", ready, swarmNodes, swarmPatience, err)
		}
		if err := sleep(r.ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
	var back, cpu, peak series
	back.add(time.Since(began).Seconds(), false)
	used, err := cpuOf(c.PID())
	if err != nil {
		return err
	}
	m, err := memoryOf(c.PID())
	if err != nil {
		return err
	}
	cpu.add(used.Seconds(), false)
	peak.add(m.peak, false)
	r.emit(back.record("cluster.storm", "s").noting("from kill -9 of the orchestrator until it has heard all %d nodes again", swarmNodes))
	r.emit(cpu.record("cluster.storm.cpu", "s"))
	r.emit(peak.record("cluster.storm.rss-peak", "MiB"))
	return nil
}

// startSwarm starts this program as a swarm, and returns its process and a function that ends it.
func startSwarm(order string) (pid int, end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.Command(self, "--swarm", order)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("start a swarm: %w", err)
	}
	return cmd.Process.Pid, func() {
		_ = stdin.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		done := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer done.Stop()
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "signal") {
			fmt.Fprintln(os.Stderr, "swarm:", err)
		}
	}, nil
}
