package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/testbed/lab"
)

const (
	watchers      = 1000
	watchersEach  = 50 // of one person
	watchPatience = 30 * time.Second
)

// seen is when a watcher saw each change.
type seen struct {
	mu sync.Mutex // guards at
	at []time.Time
}

// changeWatchers measures how long after the request for a change each of 1,000 watchers has it, while
// something changes each second, and the CPU of the root. Each watcher has a connection of its own
// and the stream of all changes, as an open dashboard has.
func changeWatchers(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		l.Apply(lab.App("shop", l.Process("web", 1))) // without a cluster, it waits
		id := l.ServiceID("shop", "web")
		ctx, cancel := context.WithCancel(r.ctx)
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		each := make([]*seen, watchers)
		var c *client.Client
		var token string
		for i := range each {
			if i%watchersEach == 0 {
				_, token = l.UserWithToken(fmt.Sprintf("w%d", i/watchersEach), "Application_Provider")
			}
			c = l.Client(client.Static(token))
			defer c.Close()
			each[i] = &seen{}
			all.Go(func() {
				replicas := 0
				for change, err := range client.Watch[struct{ Replicas int }](ctx, c, "/v1/changes", client.WatchOptions{}) {
					if err != nil {
						return // too few changes are seen, which is reported
					}
					if change.Object == nil || change.ID != string(id) || change.Object.Replicas == replicas {
						continue
					}
					replicas = change.Object.Replicas
					each[i].mu.Lock()
					each[i].at = append(each[i].at, time.Now())
					each[i].mu.Unlock()
				}
			})
		}
		// wait waits until every watcher has seen n changes.
		wait := func(n int) error {
			for end := time.Now().Add(watchPatience); ; {
				missing := 0
				for _, s := range each {
					s.mu.Lock()
					if len(s.at) < n {
						missing++
					}
					s.mu.Unlock()
				}
				if missing == 0 {
					return nil
				}
				if time.Now().After(end) {
					return fmt.Errorf("%d of %d watchers have not seen change %d within %s", missing, watchers, n, watchPatience)
				}
				if err := sleep(ctx, 100*time.Millisecond); err != nil {
					return err
				}
			}
		}
		// The streams begin with the kept changes, so the first is that of the application.
		if err := wait(1); err != nil {
			return err
		}
		var slowest, median, cpu series
		asked := make([]time.Time, r.n)
		beat := time.NewTicker(time.Second)
		defer beat.Stop()
		bad := make([]bool, r.n)
		for i := range r.n {
			w := watch(l.Dir)
			used, err := cpuOf(l.Root.PID())
			if err != nil {
				return err
			}
			began := time.Now()
			asked[i] = began
			l.Scale("shop", "web", 2+i%2*3) // 2 or 5
			select {
			case <-beat.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			now, err := cpuOf(l.Root.PID())
			if err != nil {
				return err
			}
			bad[i] = w.disturbed()
			cpu.add(100*float64(now-used)/float64(time.Since(began)), bad[i])
		}
		if err := wait(1 + r.n); err != nil {
			return err
		}
		for i, at := range asked {
			var late []float64
			for _, s := range each {
				late = append(late, ms(s.at[1+i].Sub(at)))
			}
			slowest.add(slices.Max(late), bad[i])
			median.add(quantile(late, 0.5), bad[i])
		}
		r.emit(median.record("watchers.median", "ms").noting("from the request for a change until half of %d watchers have it", watchers))
		r.emit(slowest.record("watchers.slowest", "ms").noting("until every watcher has it"))
		var worst series
		worst.add(slices.Max(slowest.values), slices.Contains(bad, true))
		r.emit(worst.record("watchers.worst", "ms").atMost(1000).noting("the slowest watcher of all %d changes", r.n))
		r.emit(cpu.record("watchers.root.cpu", "% core").atMost(100).noting("mean %.0f %%, with the application waiting for a cluster", mean(cpu.values)))
		return nil
	})
}
