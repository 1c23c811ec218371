package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// The limits of deploying and deleting an application.
const (
	upDownInstances = 300
	upDownNodes     = 6
	upWithin        = 30.0 // s
	downWithin      = 30.0 // s
	growthMost      = 1.15 // of memory, descriptors and documents, between the first cycles and the last
)

// histories are the kinds of documents of which a store keeps a bounded number for some time.
// They fill up during the first cycles. The value is the maximum in one store.
var histories = map[string]int{
	"event":   4096, // root.Config.EventsKept
	"answer":  8192, // to Idempotency-Keys, for 24 h
	"address": 4096, // released service addresses, for 30 min
	"freed":   4096, // released addresses of a node's subnet, for 2 min
	"marks":   64,   // notices of each peer about its addresses, for 15 min, peermsg.MaxEntries at most
}

// The limit of a store's file is fileTimes its maximum content plus fileFirst: bbolt writes
// changed pages beside the old ones, half filled, and doubles its file.
const (
	fileTimes = 8.0
	fileFirst = 1.0 // MiB
)

// upDown repeatedly measures how long it takes until 300 instances of one application run on six
// nodes with the overlay network, and until nothing of them is left. It also measures the memory,
// descriptors and documents that the daemons keep.
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
		kept := map[string]*series{"memory": {}, "descriptors": {}, "documents": {}, "live": {}, "histories": {}, "store": {}, "containerd": {}}
		books := stores{dir: l.Dir, most: map[string]float64{}}
		for i := range r.n {
			w := watch(l.Dir)
			began := time.Now()
			l.Apply(lab.App("herd", idler(l, instances)))
			l.WaitWithin(5*time.Minute, "all run", l.Running("herd", "web", instances))
			up.add(time.Since(began).Seconds(), w.disturbed())
			if n := len(l.Workloads()); n != instances {
				return fmt.Errorf("cycle %d: %d processes run, want %d as the root shows", i, n, instances)
			}
			if _, err := books.look(r.ctx); err != nil {
				return err
			}
			w = watch(l.Dir)
			began = time.Now()
			l.Delete("herd")
			l.WaitWithin(15*time.Minute, "all are gone", l.Gone("herd"))
			down.add(time.Since(began).Seconds(), w.disturbed())
			if n := len(l.Workloads()); n != 0 {
				return fmt.Errorf("cycle %d: %d processes of the deleted application still run", i, n)
			}
			r.logf("cycle %d: up in %.1f s, down in %.1f s", i, up.values[i], down.values[i])
			if err := sleep(r.ctx, 2*time.Second); err != nil { // freed memory is returned
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
			s, err := books.look(r.ctx)
			if err != nil {
				return err
			}
			r.logf("cycle %d: the stores hold %s", i, books.summary())
			kept["documents"].add(float64(s.documents), false)
			kept["live"].add(s.live, false)
			kept["histories"].add(float64(s.histories), false)
			kept["store"].add(s.files, false)
		}
		troubles := 0
		for _, p := range engines {
			troubles += strings.Count(p.Log(), "runtime order failed")
		}
		r.emit(up.record("updown.up", "s").atMost(upWithin).noting("%d instances of one service on %d nodes, from submission to all observed running", instances, nodes))
		r.emit(down.record("updown.down", "s").atMost(downWithin).noting("from the application's deletion to the root's word that nothing is left; %d orders were not carried out by the runtime", troubles))
		r.emit(flat(kept["memory"], "updown.memory", "MiB", "RssAnon of all engines, netmanagers, the cluster and the root"))
		r.emit(flat(kept["descriptors"], "updown.descriptors", "", "open files of the same"))
		r.emit(flat(kept["documents"], "updown.documents", "", "documents in all their stores after each cycle, without bounded histories"))
		r.emit(flat(kept["live"], "updown.live", "KiB", "keys and data of these documents"))
		r.emit(unless(kept["histories"].record("updown.histories", "").noting("documents of bounded histories (events, answers, addresses that rest, what peers said of theirs); beyond a bound: %s", said(books.beyond)), books.beyond))
		r.emit(unless(kept["store"].record("updown.store", "MiB").noting("size of all stores' files, each at most %s times the most bytes that it held and %s MiB; larger: %s", number(fileTimes), number(fileFirst), said(books.large())), books.large()))
		r.emit(kept["containerd"].record("updown.containerd-memory", "MiB").noting("RssAnon of containerd after each cycle, which is not ours to keep flat"))
		return nil
	})
}

// flat compares the last cycles with the first ones after the start.
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

// holdings are the total resources of processes.
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

// stores are the embedded stores below a directory, except containerd's.
type stores struct {
	dir    string
	most   map[string]float64       // by path, the maximum bytes of documents
	files  map[string]float64       // by path, the size at the last reading
	kinds  map[string]embedded.Kind // by kind, the content of all stores at the last reading
	beyond []string                 // histories that exceeded their bound
}

// stored is the content of all stores.
type stored struct {
	documents, histories int
	live, files          float64 // KiB of documents that are not histories; MiB
}

// look measures all stores.
func (b *stores) look(ctx context.Context) (all stored, err error) {
	b.files, b.kinds = map[string]float64{}, map[string]embedded.Kind{}
	err = filepath.WalkDir(b.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".db" || strings.HasPrefix(path, filepath.Join(b.dir, "c")+"/") {
			return nil //nolint:nilerr // files removed during the search do not count
		}
		u, err := measure(ctx, path)
		if err != nil {
			return err
		}
		bytes := 0.0
		for kind, k := range u.Kinds {
			bytes += float64(k.Bytes)
			b.kinds[kind] = embedded.Kind{Documents: b.kinds[kind].Documents + k.Documents, Bytes: b.kinds[kind].Bytes + k.Bytes}
			bound, history := histories[kind]
			switch {
			case !history:
				all.documents += k.Documents
				all.live += float64(k.Bytes) / (1 << 10)
			case k.Documents > bound:
				b.beyond = append(b.beyond, fmt.Sprintf("%d of kind %s in %s", k.Documents, kind, filepath.Base(path)))
				fallthrough
			default:
				all.histories += k.Documents
			}
		}
		b.most[path] = max(b.most[path], bytes)
		b.files[path] = float64(u.File)
		all.files += float64(u.File) / (1 << 20)
		return nil
	})
	return all, err
}

// summary lists the kinds of documents, their numbers and bytes.
func (b *stores) summary() string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(b.kinds)) {
		out = append(out, fmt.Sprintf("%s %d (%d B)", kind, b.kinds[kind].Documents, b.kinds[kind].Bytes))
	}
	return strings.Join(out, ", ")
}

// measure reads a store, again if a commit happens in between.
func measure(ctx context.Context, path string) (u embedded.Usage, err error) {
	for range 100 {
		if u, err = embedded.Measure(path); !errors.Is(err, store.ErrCorrupt) {
			return u, err
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return u, err
		}
	}
	return u, err
}

// large names the files that exceed the limit for their content.
func (b *stores) large() (names []string) {
	for _, path := range slices.Sorted(maps.Keys(b.files)) {
		if size := b.files[path]; size > fileTimes*b.most[path]+fileFirst*(1<<20) {
			names = append(names, fmt.Sprintf("%s: %s MiB for %s KiB", filepath.Base(path), number(size/(1<<20)), number(b.most[path]/(1<<10))))
		}
	}
	return names
}

// unless marks the record as failed if there is a problem.
func unless(r Record, wrong []string) Record {
	if r.Held = "pass"; len(wrong) > 0 {
		r.Held = "FAIL"
	}
	return r
}

func said(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
