package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// The limits of the p99 of a new route.
const (
	routeInCluster = 200 // ms
	routeAcross    = 1000
)

// routes measures the time from the moment a new instance listens until its first answer to a
// client that calls the semantic address of its service continuously, from another node of the
// same cluster and from a node of another cluster.
func routes(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		hosts := &hostRig{rig{log: r.log}}
		defer hosts.close()
		w := newRouteWorld(l, netlab.New(hosts))
		near, far := w.cluster("near"), w.cluster("far")
		w.node(near, "client")
		w.node(near, "server")
		w.node(far, "other")
		l.Wait("the nodes take work", func(v lab.View) bool { return lab.Nodes("near", 2)(v) && lab.Nodes("far", 1)(v) })
		l.Apply(lab.App("ask", lab.On(l.Container("client", 1), "near", "client")))
		l.Wait("the client runs", l.Running("ask", "client", 1))
		in := l.Inside(l.ID("ask", "client", 0))
		for _, c := range []struct {
			name, cluster, node string
			limit               float64
		}{
			{"cluster", "near", "server", routeInCluster},
			{"across", "far", "other", routeAcross},
		} {
			first, next, err := w.measure(r, in, c.name, c.cluster, c.node)
			if err != nil {
				return err
			}
			r.emit(held(first.record("route."+c.name+".first", "ms"), c.limit).
				noting("a service's first instance, wanted since before it was there; the limit holds the p99"))
			r.emit(held(next.record("route."+c.name+".next", "ms"), c.limit).
				noting("a second instance beside one that answers; the limit holds the p99"))
		}
		return nil
	})
}

// held sets the limit of the record's p99.
func held(r Record, limit float64) Record {
	r.Limit, r.Held = limit, "pass"
	if r.P99 > limit {
		r.Held = "FAIL"
	}
	return r
}

// hostRig is a rig for hosts, which end before the lab.
type hostRig struct{ rig }

// Skip implements netlab.T: a benchmark that cannot run is a failure.
func (g *hostRig) Skip(args ...any) { g.Fatalf("%s", fmt.Sprint(args...)) }

func (g *hostRig) close() {
	for _, f := range slices.Backward(g.cleanups) {
		f()
	}
}

// routeWorld has clusters and nodes with netmanagers, each a host on one network.
type routeWorld struct {
	lab  *lab.Lab
	net  *netlab.Lab
	wan  *netlab.Host
	last int // host's number
}

func newRouteWorld(l *lab.Lab, n *netlab.Lab) *routeWorld {
	return &routeWorld{lab: l, net: n, wan: n.Switch("wan")}
}

func (w *routeWorld) host(name string) (h *netlab.Host, at string) {
	w.last++
	at = fmt.Sprintf("203.0.113.%d", w.last)
	h = w.net.Host(name)
	h.Plug(w.wan, "eth0", at+"/24")
	return h, at
}

func (w *routeWorld) cluster(id api.ClusterID) *lab.Cluster {
	h, at := w.host(string(id))
	return w.lab.Cluster(id, lab.ClusterOptions{Host: h, Address: at, Args: quiet})
}

func (w *routeWorld) node(c *lab.Cluster, name string) *lab.Node { return w.nodeWith(c, name, 4) }

func (w *routeWorld) nodeWith(c *lab.Cluster, name string, cpus float64) *lab.Node {
	h, _ := w.host(name)
	return c.Node(name, lab.NodeOptions{Containers: true, CPUs: cpus, Host: h, Overlay: true, Args: quiet, NetArgs: quiet})
}

// measure adds a first instance and a second instance, n times each.
func (w *routeWorld) measure(r *run, in *lab.Inside, app, cluster, node string) (first, next series, err error) {
	l := w.lab
	web := l.Container("web", 1)
	web.Cmd, web.Environment = []string{"/app", "serve"}, []string{"PORT=80"}
	l.Apply(lab.App(app, lab.On(web, cluster, node)))
	l.Wait("it runs", l.Running(app, "web", 1))
	at := netip.AddrPortFrom(l.Addresses(app, "web").RoundRobin, 80).String()
	seen := map[placement]bool{}
	// appear returns the time from when a new instance listens until its first answer.
	appear := func(replicas int) (time.Duration, error) {
		l.Scale(app, "web", replicas)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if err := r.ctx.Err(); err != nil {
				return 0, err
			}
			a, err := ask(r.ctx, in, at)
			if err != nil || seen[a.placement] {
				continue
			}
			seen[a.placement] = true
			return time.Since(a.Since), nil
		}
		return 0, fmt.Errorf("no new instance of %s answered within a minute", app)
	}
	if _, err := appear(1); err != nil { // opens connections
		return first, next, err
	}
	step := func(replicas int, s *series) error {
		watch := watch(l.Dir)
		took, err := appear(replicas)
		if err != nil {
			return err
		}
		s.add(ms(took), watch.disturbed())
		l.Wait("all run", l.Running(app, "web", replicas))
		return nil
	}
	for range r.n {
		if err := step(2, &next); err != nil {
			return first, next, err
		}
		l.Scale(app, "web", 0)
		l.Wait("none is left", l.Gone(app))
		if err := step(1, &first); err != nil {
			return first, next, err
		}
	}
	l.Delete(app)
	return first, next, nil
}

// placement is one placement of an instance; numbers of instances are reused.
type placement struct {
	Instance string `json:"instance"`
	Epoch    string `json:"epoch"`
}

type answer struct {
	placement
	Since   time.Time `json:"since"`   // when it began to listen, by this machine's clock
	Healthy time.Time `json:"healthy"` // when it passed its first health check
}

// askWait bounds one request, so that an unanswered one does not delay the next.
const askWait = 500 * time.Millisecond

func ask(ctx context.Context, in *lab.Inside, at string) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	c := http.Client{Transport: &http.Transport{DialContext: in.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/", http.NoBody)
	if err != nil {
		return a, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&a)
	return a, err
}
