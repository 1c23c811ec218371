package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// What bringing an application up and taking it away is held to.
const (
	upDownInstances = 300
	upDownNodes     = 6
	upWithin        = 30.0 // s
	downWithin      = 30.0 // s
	growthMost      = 1.15 // of memory, descriptors and store, between the first cycles and the last
)

// upDown measures how long it takes until 300 instances of one application run on
// six nodes with the overlay network, and until nothing of them is left, over and
// over; and what the daemons keep of it.
func upDown(r *run) error {
	instances, nodes := upDownInstances, upDownNodes
	if r.net.quick {
		instances, nodes = 20, 2
	}
	return inLab(r, func(l *lab.Lab) error {
		hosts := &hostRig{rig{log: r.log}}
		defer hosts.close()
		w := newRouteWorld(l, netlab.New(hosts))
		c := w.cluster("munich")
		var daemons, engines []*lab.Proc
		for i := range nodes {
			n := w.roomyNode(c, fmt.Sprintf("n%d", i))
			engines = append(engines, n.Proc)
			daemons = append(daemons, n.Proc, n.Net)
		}
		daemons = append(daemons, c.Proc, l.Root)
		l.Wait("the nodes take work", lab.Nodes("munich", nodes))

		var up, down series
		kept := map[string]*series{"memory": {}, "descriptors": {}, "store": {}, "containerd": {}}
		for i := range r.n {
			w := watch(l.Dir)
			began := time.Now()
			l.Apply(lab.App("herd", idler(l, instances)))
			l.WaitWithin(5*time.Minute, "all run", l.Running("herd", "web", instances))
			up.add(time.Since(began).Seconds(), w.disturbed())
			if n := len(l.Workloads()); n != instances {
				return fmt.Errorf("cycle %d: %d processes run, %d instances are said to", i, n, instances)
			}
			w = watch(l.Dir)
			began = time.Now()
			l.Delete("herd")
			l.WaitWithin(15*time.Minute, "all are gone", l.Gone("herd"))
			down.add(time.Since(began).Seconds(), w.disturbed())
			if n := len(l.Workloads()); n != 0 {
				return fmt.Errorf("cycle %d: %d processes run of an application that is gone", i, n)
			}
			r.logf("cycle %d: up in %.1f s, down in %.1f s", i, up.values[i], down.values[i])
			if err := sleep(r.ctx, 2*time.Second); err != nil { // what is freed is given back
				return err
			}
			h, err := holdingsOf(daemons)
			if err != nil {
				return err
			}
			kept["memory"].add(h.memory, false)
			kept["descriptors"].add(h.descriptors, false)
			ctrd, err := holdingsOf([]*lab.Proc{l.Containerd().Proc})
			if err != nil {
				return err
			}
			kept["containerd"].add(ctrd.memory, false)
			size, err := storeSize(l.Dir)
			if err != nil {
				return err
			}
			kept["store"].add(size, false)
		}
		troubles := 0
		for _, p := range engines {
			troubles += strings.Count(p.Log(), "the runtime did not carry out an order")
		}
		r.emit(up.record("updown.up", "s").atMost(upWithin).noting("%d instances of one service on %d nodes, from submission to all observed running", instances, nodes))
		r.emit(down.record("updown.down", "s").atMost(downWithin).noting("from the application's deletion to the root's word that nothing is left; %d orders were not carried out by the runtime", troubles))
		r.emit(flat(kept["memory"], "updown.memory", "MiB", "RssAnon of all engines, netmanagers, the cluster and the root"))
		r.emit(flat(kept["descriptors"], "updown.descriptors", "", "open files of the same"))
		r.emit(flat(kept["store"], "updown.store", "MiB", "bytes in use in all their stores' files"))
		r.emit(kept["containerd"].record("updown.containerd-memory", "MiB").noting("RssAnon of containerd after each cycle, which is not ours to keep flat"))
		return nil
	})
}

// flat holds the last cycles to the first ones after the start.
func flat(s *series, name, unit, note string) Record {
	r := s.record(name, unit)
	third := max(1, len(s.values)/3)
	first, last := mean(s.values[:third]), mean(s.values[len(s.values)-third:])
	r.Held = "pass"
	if last > first*growthMost {
		r.Held = "FAIL"
	}
	return r.noting("%s; mean of the first %d cycles %s, of the last %s, at most %.2f times as much", note, third, number(first), number(last), growthMost)
}

func (w *routeWorld) roomyNode(c *lab.Cluster, name string) *lab.Node {
	h, _ := w.host(name)
	return c.Node(name, lab.NodeOptions{Containers: true, CPUs: 200, Memory: 1 << 20, Host: h, Overlay: true, Args: quiet, NetArgs: quiet})
}

// holdings are what processes hold, in sum.
type holdings struct{ memory, descriptors float64 }

func holdingsOf(procs []*lab.Proc) (h holdings, err error) {
	for _, p := range procs {
		m, err := memoryOf(p.PID())
		if err != nil {
			return h, err
		}
		open, err := os.ReadDir("/proc/" + strconv.Itoa(p.PID()) + "/fd")
		if err != nil {
			return h, err
		}
		h.memory += m.anonymous
		h.descriptors += float64(len(open))
	}
	return h, nil
}

// storeSize is the size of all stores below dir, in MiB.
func storeSize(dir string) (mib float64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".db" || strings.HasPrefix(path, filepath.Join(dir, "c")+"/") {
			return nil //nolint:nilerr // what went while we looked counts nothing
		}
		if info, err := e.Info(); err == nil {
			mib += float64(info.Size()) / (1 << 20)
		}
		return nil
	})
	return mib, err
}
