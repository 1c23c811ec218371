package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/testbed/lab"
)

const (
	crashLimit  = 5.0 // s
	stopLimit   = 1.0 // s
	standbyLoss = 0.1 // of the throughput

	throughputFor = time.Second // of a sample
	writers       = 8
)

// ferret starts FerretDB for the benchmark and returns the URI of a database.
func ferret(g *rig) (string, error) {
	binary := os.Getenv("TREELINE_TEST_FERRETDB")
	if binary == "" {
		return "", fmt.Errorf("no MongoDB server: set TREELINE_TEST_FERRETDB=$(scripts/ferretdb)")
	}
	dir, err := os.MkdirTemp("/dev/shm", "bench-ferretdb-")
	if err != nil {
		return "", err
	}
	g.Cleanup(func() { _ = os.RemoveAll(dir) })
	addr, err := freeport.Addr()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(binary, "--handler=sqlite", "--sqlite-url=file:"+dir+"/", "--state-dir="+dir, "--listen-addr="+addr,
		"--debug-addr=-", "--telemetry=disable", "--log-level=error")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start FerretDB: %w", err)
	}
	g.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return "mongodb://" + addr + "/treeline", conn.Close()
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return "", fmt.Errorf("FerretDB does not answer: %w", err)
		}
	}
}

// sharedRoot is a lab whose root has standbys.
type sharedRoot struct {
	*lab.Lab
	uri   string
	addrs []string
}

// inShared runs a benchmark with a root that can have n-1 standbys.
func inShared(r *run, n int, fn func(*sharedRoot) error) error {
	return inRig(r, func(g *rig) error {
		s := &sharedRoot{}
		var err error
		if s.uri, err = ferret(g); err != nil {
			return err
		}
		for range n {
			addr, err := freeport.Addr()
			if err != nil {
				return err
			}
			s.addrs = append(s.addrs, addr)
		}
		s.Lab = lab.New(g, lab.Options{RootArgs: s.args(0)})
		return fn(s)
	})
}

// args are the flags of the i-th root.
func (s *sharedRoot) args(i int) []string {
	return append([]string{"--replica", "--store", s.uri, "--listen", s.addrs[i]}, quiet...)
}

func (s *sharedRoot) standby(i int) *lab.Proc {
	return s.Replica(fmt.Sprintf("root%d", i+1), s.args(i)...)
}

// takeOvers ends the active root, with kill -9 and with SIGTERM in turn, and measures the time from
// the signal until a client that knows both roots has the acknowledgement of a write.
func takeOvers(r *run) error {
	return inShared(r, 2, func(s *sharedRoot) error {
		c := s.ClientAt(client.Static(s.Access()), "https://"+s.addrs[0], "https://"+s.addrs[1])
		defer c.Close()
		s.Apply(lab.App("shop", s.Process("web", 1))) // without a cluster, it waits
		id := s.ServiceID("shop", "web")
		replicas := 1
		write := func() error {
			replicas = 3 - replicas
			_, err := c.Scale(s.Context(), id, replicas, 0)
			return err
		}
		active, other := s.Root, s.standby(1)
		var crash, stop, floor series
		for i := range 2 * r.n {
			w := watch(s.Dir)
			began := time.Now()
			if err := write(); err != nil {
				return fmt.Errorf("write before the takeover: %w", err)
			}
			floor.add(time.Since(began).Seconds(), w.disturbed())
			to := &crash
			w, began = watch(s.Dir), time.Now()
			if i%2 == 0 {
				active.Kill9()
			} else {
				to = &stop
				active.Stop()
			}
			for write() != nil {
				if time.Since(began) > time.Minute {
					return fmt.Errorf("no write is acknowledged a minute after the active root has ended")
				}
			}
			to.add(time.Since(began).Seconds(), w.disturbed())
			active.Start() // as a standby
			active, other = other, active
		}
		write1 := quantile(floor.values, 0.5)
		r.emit(crash.record("takeover.crash", "s").atMost(crashLimit).over("a write at the active root", write1).noting("kill -9 of the active root → a write is acknowledged by the other one; the lease of 3 s is part of it; slowest %.2f s", quantile(crash.values, 1)))
		r.emit(stop.record("takeover.stop", "s").atMost(stopLimit).over("a write at the active root", write1).noting("SIGTERM to the active root → a write is acknowledged by the other one; slowest %.2f s", quantile(stop.values, 1)))
		return nil
	})
}

// standbyCost measures the writes a second at the active root with two standbys that follow its store, and
// in turn while the standbys are paused.
func standbyCost(r *run) error {
	return inShared(r, 3, func(s *sharedRoot) error {
		// Each has a tenant of its own, because the requests of a tenant are limited to 100 a second.
		clients := map[api.ServiceID]*client.Client{}
		for i := range writers {
			tenant := api.Tenant(fmt.Sprintf("%s/w%d", s.Tenant, i))
			if err := s.API.CreateTenant(s.Context(), tenant, ""); err != nil {
				return err
			}
			_, token := s.UserWithToken(fmt.Sprintf("w%d/writer", i), "Application_Provider")
			c := s.ClientAt(client.Static(token), "https://"+s.addrs[0])
			defer c.Close()
			text := lab.Encode(lab.App("shop", s.Process("web", 1)))
			if _, err := c.Apply(s.Context(), text, client.ApplyOptions{Tenant: tenant}); err != nil {
				return err
			}
			clients[tenant.App("shop", lab.Namespace).Service("web", lab.Namespace)] = c
		}
		sample := func() (float64, bool, error) {
			ctx, cancel := context.WithTimeout(s.Context(), throughputFor)
			defer cancel()
			var acked atomic.Int64
			var all sync.WaitGroup
			var failed atomic.Pointer[error]
			w := watch(s.Dir)
			began := time.Now()
			for id, c := range clients {
				all.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						if _, err := c.Scale(ctx, id, 2+n%2, 0); err == nil {
							acked.Add(1)
						} else if ctx.Err() == nil {
							failed.Store(&err)
							return
						}
					}
				})
			}
			all.Wait()
			if err := failed.Load(); err != nil {
				return 0, false, *err
			}
			return float64(acked.Load()) / time.Since(began).Seconds(), w.disturbed(), nil
		}
		if _, _, err := sample(); err != nil { // warms up
			return err
		}
		standbys := []*lab.Proc{s.standby(1), s.standby(2)}
		var with, without series
		for i := range 2 * r.n {
			to, set := &with, (*lab.Proc).Resume
			if i%4 == 1 || i%4 == 2 { // so that a drift affects both alike
				to, set = &without, (*lab.Proc).Pause
			}
			for _, p := range standbys {
				set(p)
			}
			v, bad, err := sample()
			if err != nil {
				return err
			}
			to.add(v, bad)
		}
		a, b := quantile(with.values, 0.5), quantile(without.values, 0.5)
		r.emit(with.record("standbys.writes", "writes/s").over("with both paused", b).atLeast(b*(1-standbyLoss)).
			noting("%d clients at the active root, and two standbys that follow it, cost %.1f %%; the roots and FerretDB, with its files in memory, share this machine", writers, 100*(1-a/b)))
		return nil
	})
}
