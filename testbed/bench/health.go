package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/testbed/lab"
)

const (
	checksPerSecond = 1000
	checkWindow     = 5 * time.Second
	checkLimit      = 10.0 // % of a core
)

// healthChecks measures the processor time of a complete node engine with a fake runtime, whose 1,000
// instances have one check a second each, which enters their network namespace, beside a process that only sends
// as many HTTP requests with net/http, or opens as many connections with package net. This process answers them.
func healthChecks(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		var requests, conns atomic.Int64
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		srv := &http.Server{
			ReadHeaderTimeout: 5 * time.Second,
			Handler:           http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }),
			ConnState: func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					conns.Add(1)
				}
			},
		}
		go func() { _ = srv.Serve(ln) }()
		defer srv.Close()
		at, err := netip.ParseAddrPort(ln.Addr().String())
		if err != nil {
			return err
		}

		get, err := bare(r, "requests", at.String(), &requests)
		if err != nil {
			return err
		}
		connect, err := bare(r, "connections", at.String(), &conns)
		if err != nil {
			return err
		}
		engine, err := startChecker(l)
		if err != nil {
			return err
		}
		defer engine.end()
		var idle series
		if err := engine.measure(r, &idle, nil, 3); err != nil {
			return err
		}
		port := int(at.Port())
		for _, c := range []struct {
			name  string
			check api.Check
			count *atomic.Int64
			note  string
			base  string
			floor series
		}{
			{"http", api.Check{HTTP: &api.HTTPCheck{Port: port, Path: "/healthz"}}, &requests, "connections are used for 10 s", "bare HTTP requests", get},
			{"tcp", api.Check{TCP: &api.TCPCheck{Port: port}}, &conns, "a new connection for each", "bare TCP connections", connect},
		} {
			c.check.Interval = 1
			m := l.Container("web", checksPerSecond)
			m.VCPUs, m.Memory, m.Health = 0.01, 4, &api.Health{Liveness: &c.check}
			l.Apply(lab.App(c.name, m))
			l.WaitWithin(swarmPatience, "all instances run", l.Running(c.name, "web", checksPerSecond))
			if err := sleep(r.ctx, 5*time.Second); err != nil { // the checks spread over their interval
				return err
			}
			var cpu series
			if err := engine.measure(r, &cpu, c.count, max(r.n, 3)); err != nil {
				return err
			}
			rec := cpu.record("health."+c.name, "% core").atMost(checkLimit).over(c.base, quantile(c.floor.values, 0.5))
			r.emit(rec.noting("%d checks a second of a complete node engine, %s; without checks it uses %.2f %%", checksPerSecond, c.note, quantile(idle.values, 0.5)))
			l.Delete(c.name)
			l.WaitWithin(swarmPatience, "all instances are gone", l.Gone(c.name))
		}
		r.emit(get.record("health.floor", "% core").noting("a process that sends %d HTTP requests a second with net/http on 1,000 connections", checksPerSecond))
		r.emit(connect.record("health.tcp-floor", "% core").noting("a process that opens %d connections a second with package net, and closes them", checksPerSecond))
		return nil
	})
}

// checker is a node engine in a process of its own.
type checker struct {
	pid int
	end func()
}

func startChecker(l *lab.Lab) (*checker, error) {
	addr, err := freeport.Addr()
	if err != nil {
		return nil, err
	}
	l.Cluster("munich", lab.ClusterOptions{Args: append([]string{"--listen", addr}, quiet...)})
	tok, err := l.API.CreateJoinToken(l.Context(), api.TokenRequest{Kind: "node", Cluster: "munich"})
	if err != nil {
		return nil, err
	}
	t, err := jointoken.Parse(tok.Token)
	if err != nil {
		return nil, err
	}
	t.URL = "https://" + addr // not through the lab's proxy
	order, err := json.Marshal(swarmOrder{Dir: filepath.Join(l.Dir, "swarm"), Token: t.Line(), Nodes: 1, AtOnce: 1, CPUs: 64, Memory: 1 << 16, Namespaces: true})
	if err != nil {
		return nil, err
	}
	pid, end, err := startSwarm(string(order))
	if err != nil {
		return nil, err
	}
	l.WaitWithin(swarmPatience, "the node has joined", lab.Nodes("munich", 1))
	return &checker{pid, end}, nil
}

// measure adds the processor time of windows, in which count must grow by the number of checks.
func (c *checker) measure(r *run, s *series, count *atomic.Int64, n int) error {
	for range n {
		before := int64(0)
		if count != nil {
			before = count.Load()
		}
		w := watch("")
		used, err := cpuOf(c.pid)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := sleep(r.ctx, checkWindow); err != nil {
			return err
		}
		now, err := cpuOf(c.pid)
		if err != nil {
			return err
		}
		took := time.Since(began)
		s.add(100*float64(now-used)/float64(took), w.disturbed())
		if count == nil {
			continue
		}
		if got := float64(count.Load()-before) / took.Seconds(); got < 0.95*checksPerSecond || got > 1.1*checksPerSecond {
			return fmt.Errorf("%.0f checks a second arrived, want %d", got, checksPerSecond)
		}
	}
	return nil
}

// bare measures a process that only sends requests, or opens connections.
func bare(r *run, what, at string, count *atomic.Int64) (s series, err error) {
	pid, end, err := startSwarm(bareOrder + what + " " + at)
	if err != nil {
		return s, err
	}
	defer end()
	if err := sleep(r.ctx, 3*time.Second); err != nil { // until all connections are open
		return s, err
	}
	return s, (&checker{pid: pid}).measure(r, &s, count, max(r.n/3, 3))
}

// bareOrder is the prefix of a swarm's order to send requests or open connections to an address instead.
const bareOrder = "bare "

// runBare is the process of bare: it sends checksPerSecond requests a second, each of the connections one, or opens
// as many connections, until its standard input is closed.
func runBare(ctx context.Context, order string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	what, at, _ := strings.Cut(order, " ")
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: checksPerSecond, MaxIdleConns: checksPerSecond}}
	one := func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/healthz", http.NoBody)
		if err != nil {
			return
		}
		if resp, err := c.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
	if what == "connections" {
		one = func() {
			if conn, err := net.DialTimeout("tcp", at, time.Second); err == nil {
				_ = conn.Close()
			}
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	const rounds = 100 // a second, each with as many requests at once
	tick := time.NewTicker(time.Second / rounds)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		for range checksPerSecond / rounds {
			all.Go(one)
		}
	}
}
