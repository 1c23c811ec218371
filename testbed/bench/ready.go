package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// readyRoutes measures the time from when a new instance passes its readiness check until its first answer to
// a client on another node, which calls the address of the service continuously. The floor is a request to the
// same address when all nodes have the route.
func readyRoutes(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		hosts := &hostRig{rig{log: r.log}}
		defer hosts.close()
		w := newRouteWorld(l, netlab.New(hosts))
		near := w.cluster("near")
		w.node(near, "client")
		w.node(near, "server")
		l.Wait("the nodes take work", lab.Nodes("near", 2))
		l.Apply(lab.App("ask", lab.On(l.Container("client", 1), "near", "client")))
		l.Wait("the client runs", l.Running("ask", "client", 1))
		in := l.Inside(l.ID("ask", "client", 0))

		web := l.Container("web", 1)
		web.Cmd, web.Environment = []string{"/app", "serve"}, []string{"PORT=80"}
		web.Health = &api.Health{Readiness: &api.Check{HTTP: &api.HTTPCheck{Port: 80, Path: "/healthz"}, Interval: 1}}
		l.Apply(lab.App("web", lab.On(web, "near", "server")))
		l.Wait("it runs", l.Running("web", "web", 1))
		at := netip.AddrPortFrom(l.Addresses("web", "web").RoundRobin, 80).String()
		seen := map[placement]bool{}
		appear := func() (time.Duration, error) {
			for end := time.Now().Add(time.Minute); time.Now().Before(end); {
				if err := r.ctx.Err(); err != nil {
					return 0, err
				}
				a, err := ask(r.ctx, in, at)
				if err != nil || seen[a.placement] || a.Healthy.IsZero() {
					continue
				}
				seen[a.placement] = true
				return time.Since(a.Healthy), nil
			}
			return 0, fmt.Errorf("no new instance answered within a minute")
		}
		if _, err := appear(); err != nil {
			return err
		}
		var floor, ready series
		for range r.n {
			watch := watch(l.Dir)
			l.Scale("web", "web", 2)
			took, err := appear()
			if err != nil {
				return err
			}
			bare, err := answered(r.ctx, in, at)
			if err != nil {
				return err
			}
			bad := watch.disturbed()
			ready.add(ms(took), bad)
			floor.add(ms(bare), bad)
			l.Scale("web", "web", 1)
			l.Wait("one is left", l.Running("web", "web", 1))
		}
		base := floor.record("ready.floor", "ms")
		r.emit(base.noting("a new connection with a request over a route that exists"))
		r.emit(held(ready.record("ready.to-route", "ms"), routeInCluster).over(base.Name, base.Median).
			noting("from the answer to the first check that passes until the first answer to a client on another node; the limit holds the p99"))
		return nil
	})
}

// answered returns the time that a request takes, of the first one that is answered within askWait.
func answered(ctx context.Context, in *lab.Inside, at string) (time.Duration, error) {
	for {
		began := time.Now()
		if _, err := ask(ctx, in, at); err == nil {
			return time.Since(began), nil
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}
