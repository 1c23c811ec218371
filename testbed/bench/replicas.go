package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
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
	standbyOld  = 1.0 // s

	throughputFor = time.Second // of a sample
	writers       = 8
)

// ferret starts FerretDB for the benchmark and returns the URI of a database, and the process.
func ferret(g *rig) (string, int, error) {
	binary := os.Getenv("TREELINE_TEST_FERRETDB")
	if binary == "" {
		return "", 0, fmt.Errorf("no MongoDB server: set TREELINE_TEST_FERRETDB=$(scripts/ferretdb)")
	}
	dir, err := os.MkdirTemp("/dev/shm", "bench-ferretdb-")
	if err != nil {
		return "", 0, err
	}
	g.Cleanup(func() { _ = os.RemoveAll(dir) })
	addr, err := freeport.Addr()
	if err != nil {
		return "", 0, err
	}
	cmd := exec.Command(binary, "--handler=sqlite", "--sqlite-url=file:"+dir+"/", "--state-dir="+dir, "--listen-addr="+addr,
		"--debug-addr=-", "--telemetry=disable", "--log-level=error")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", 0, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", 0, fmt.Errorf("start FerretDB: %w", err)
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
			return "mongodb://" + addr + "/treeline", cmd.Process.Pid, conn.Close()
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return "", 0, fmt.Errorf("FerretDB does not answer: %w", err)
		}
	}
}

// sharedRoot is a lab whose root has standbys.
type sharedRoot struct {
	*lab.Lab
	uri   string
	db    int // the process of FerretDB
	addrs []string
}

// inShared runs a benchmark with a root that can have n-1 standbys.
func inShared(r *run, n int, fn func(*sharedRoot) error) error {
	return inRig(r, func(g *rig) error {
		s := &sharedRoot{}
		var err error
		if s.uri, s.db, err = ferret(g); err != nil {
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
	return append([]string{"--replica", "--standby-reads", "--store", s.uri, "--listen", s.addrs[i]}, quiet...)
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
// in turn while the standbys are paused; and the age of their answers.
func standbyCost(r *run) error {
	return inShared(r, 3, func(s *sharedRoot) error {
		// Each has a tenant of its own, because the requests of a tenant are limited to 100 a second.
		load := &writeLoad{sharedRoot: s, clients: map[api.ServiceID]*client.Client{}}
		var id api.ServiceID
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
			id = tenant.App("shop", lab.Namespace).Service("web", lab.Namespace)
			load.clients[id] = c
		}
		if _, _, err := load.write(s.Context(), throughputFor, 0); err != nil { // warms up
			return err
		}
		load.standbys = []*lab.Proc{s.standby(1), s.standby(2)}
		if err := load.compare(r, "standbys.writes", "that nobody reads"); err != nil {
			return err
		}
		token := s.Access()
		follow := []*reader{newReader(token, s.addrs[1], id), newReader(token, s.addrs[2], id)}
		for _, f := range follow {
			defer f.CloseIdleConnections()
			if err := f.awaitCopy(s.Context()); err != nil {
				return err
			}
		}
		if err := standbyAge(r, load, id); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(s.Context())
		var reading sync.WaitGroup
		defer reading.Wait()
		defer cancel()
		var answers, copies atomic.Int64
		for _, f := range follow {
			reading.Go(func() {
				for sleep(ctx, 100*time.Millisecond) == nil {
					if _, copied, err := f.get(ctx); err == nil { // of a paused standby: later
						answers.Add(1)
						if copied {
							copies.Add(1)
						}
					}
				}
			})
		}
		if err := load.compare(r, "standbys.writes.read", "that are asked ten times a second each"); err != nil {
			return err
		}
		r.logf("%d of %d reads were answered from copies, the others were forwarded", copies.Load(), answers.Load())
		return nil
	})
}

// writeLoad writes at the active root.
type writeLoad struct {
	*sharedRoot
	clients  map[api.ServiceID]*client.Client
	standbys []*lab.Proc
}

// write writes with all clients at once, each with a pause after a write, and returns the writes a second and whether others disturbed it.
func (l *writeLoad) write(ctx context.Context, within, pause time.Duration) (float64, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var acked atomic.Int64
	var all sync.WaitGroup
	var failed atomic.Pointer[error]
	w := watch(l.Dir)
	began := time.Now()
	for id, c := range l.clients {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := c.Scale(ctx, id, 2+n%2, 0); err == nil {
					acked.Add(1)
				} else if ctx.Err() == nil {
					failed.Store(&err)
					return
				}
				_ = sleep(ctx, pause)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return 0, false, *err
	}
	return float64(acked.Load()) / time.Since(began).Seconds(), w.disturbed(), nil
}

// compare emits the writes a second with the standbys, compared with both paused. The note has the processor time for a write, which tells what
// the standbys use themselves from what they cost the active root.
func (l *writeLoad) compare(r *run, name, what string) error {
	type side struct {
		series
		writes                float64
		root, store, standbys time.Duration
	}
	used := func() (root, store, standbys time.Duration, err error) {
		pids := []int{l.Root.PID(), l.db}
		for _, p := range l.standbys {
			pids = append(pids, p.PID())
		}
		var cpu [4]time.Duration
		for i, pid := range pids {
			if cpu[i], err = cpuOf(pid); err != nil {
				return 0, 0, 0, err
			}
		}
		return cpu[0], cpu[1], cpu[2] + cpu[3], nil
	}
	var with, without side
	for i := range 2 * r.n {
		to, set := &with, (*lab.Proc).Resume
		if i%4 == 1 || i%4 == 2 { // so that a drift affects both alike
			to, set = &without, (*lab.Proc).Pause
		}
		for _, p := range l.standbys {
			set(p)
		}
		if err := sleep(l.Context(), throughputFor/2); err != nil { // a standby reads what was written meanwhile
			return err
		}
		root, store, standbys, err := used()
		if err != nil {
			return err
		}
		v, bad, err := l.write(l.Context(), throughputFor, 0)
		if err != nil {
			return err
		}
		to.add(v, bad)
		root1, store1, standbys1, err := used()
		if err != nil {
			return err
		}
		to.writes += v * throughputFor.Seconds()
		to.root, to.store, to.standbys = to.root+root1-root, to.store+store1-store, to.standbys+standbys1-standbys
	}
	for _, p := range l.standbys {
		p.Resume()
	}
	each := func(d time.Duration, s side) float64 { return float64(d.Microseconds()) / 1000 / s.writes }
	a, b := quantile(with.values, 0.5), quantile(without.values, 0.5)
	r.emit(with.record(name, "writes/s").over("with both paused", b).atLeast(b*(1-standbyLoss)).
		noting("%d clients at the active root, and two standbys %s, cost %.1f %%; the roots and FerretDB, with its files in memory, share this machine. "+
			"Processor time of a write, with and without standbys: active root %.2f and %.2f ms, FerretDB %.2f and %.2f ms, both standbys %.2f ms",
			writers, what, 100*(1-a/b), each(with.root, with), each(without.root, without), each(with.store, with), each(without.store, without), each(with.standbys, with)))
	return nil
}

// reader reads the number of replicas of a service at one root.
type reader struct {
	http.Client
	url, token string
}

func newReader(token, addr string, id api.ServiceID) *reader {
	return &reader{http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a benchmark's own server
	}}, "https://" + addr + "/v1/services/" + api.PathOf(id), token}
}

// get returns the number of replicas, and whether the root has answered from a copy.
func (r *reader) get(ctx context.Context) (replicas int, copied bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, http.NoBody)
	if err != nil {
		return 0, false, err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	resp, err := r.Do(req)
	if err != nil {
		return 0, false, err
	}
	defer resp.Body.Close()
	var v api.Service
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || resp.StatusCode != http.StatusOK {
		return 0, false, fmt.Errorf("GET %s: %s, %v", r.url, resp.Status, err)
	}
	return v.Replicas, resp.Header.Get("Age") != "", nil
}

// awaitCopy reads until the root answers from a copy, which it begins to keep when it is asked.
func (r *reader) awaitCopy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		if _, copied, err := r.get(ctx); err == nil && copied {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%s does not answer from a copy within two minutes", r.url)
		}
	}
}

// standbyAge measures for how long a standby answers from before a write that the active root has acknowledged, while the other clients
// write, too.
func standbyAge(r *run, l *writeLoad, id api.ServiceID) error {
	active, standby := newReader(l.Access(), l.addrs[0], id), newReader(l.Access(), l.addrs[1], id)
	defer active.CloseIdleConnections()
	defer standby.CloseIdleConnections()
	c := l.clients[id]
	others := &writeLoad{sharedRoot: l.sharedRoot, clients: maps.Clone(l.clients)}
	delete(others.clients, id)
	ctx, cancel := context.WithCancel(l.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := others.write(ctx, time.Hour, 100*time.Millisecond)
		ended <- err
	}()
	old, floor, forwarded, err := measureAge(ctx, l.Dir, 5*r.n, c, id, active, standby)
	cancel()
	if err = errors.Join(err, <-ended); err != nil {
		return err
	}
	r.emit(old.record("standbys.age", "s").atMost(standbyOld).over("a read at the active root", quantile(floor.values, 0.5)).
		noting("a write is acknowledged by the active root, where seven other clients write ten times a second each → the last answer of a standby without it; %d reads were forwarded", forwarded))
	slowest := series{}
	slowest.add(quantile(old.values, 1), false)
	r.emit(slowest.record("standbys.age.max", "s").atMost(standbyOld).over("a read at the active root", quantile(floor.values, 1)).noting("the slowest of these"))
	return nil
}

func measureAge(ctx context.Context, dir string, n int, c *client.Client, id api.ServiceID, active, standby *reader) (old, floor series, forwarded int, err error) {
	fail := func(err error) (series, series, int, error) { return old, floor, forwarded, err }
	for i := range n {
		want := 4 + i%2
		if err := sleep(ctx, time.Duration(i*37%250)*time.Millisecond); err != nil { // at any phase of its reads of the store
			return fail(err)
		}
		if _, err := c.Scale(ctx, id, want, 0); err != nil {
			return fail(err)
		}
		w, acked := watch(dir), time.Now()
		if n, _, err := active.get(ctx); err != nil || n != want {
			return fail(fmt.Errorf("read %d replicas at the active root, want %d: %v", n, want, err))
		}
		floor.add(time.Since(acked).Seconds(), w.disturbed())
		last := time.Duration(0) // when the last old answer came
		for {
			n, copied, err := standby.get(ctx)
			if err != nil {
				return fail(err)
			}
			if !copied {
				forwarded++
			}
			if copied && n == want {
				break
			}
			if n != want {
				last = time.Since(acked)
			}
			if err := sleep(ctx, 12*time.Millisecond); err != nil {
				return fail(err)
			}
		}
		old.add(last.Seconds(), w.disturbed())
	}
	return old, floor, forwarded, nil
}
