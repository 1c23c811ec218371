package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// World is a busy installation: two roots on a shared store, a cluster with Mosquitto, three nodes
// on the overlay network and one with plain processes, each on a host of its own. A client on n0
// sends numbered requests to a service by name, and numbered writes go to the root.
type World struct {
	*lab.Overlay
	n1     *lab.Node // a server of the requests; its faults are those of "node engine" and "netmanager"
	p0     *lab.Node // plain processes
	h1     *netlab.Host
	hc     *netlab.Host // the cluster's
	cables struct{ cluster, n1 *netlab.Slow }
	calls  *lab.Numbered // nil: settled starts them
	writes *lab.Writes

	t     T
	mu    sync.Mutex // guards twice
	twice string     // the first time that an exclusive instance ran twice
}

// T is the part of testing.T that a World needs.
type T interface {
	lab.T
	Skip(args ...any)
}

// instances is the number of instances of the application shop.
const instances = 8

// Bounds of the installation's parts.
const (
	disk       = 64 << 20
	settleTime = 2 * time.Minute // from the end of a fault until all holds again
	more       = 20              // requests that must be answered then
)

// New starts a World, which ends with the test.
func New(t T) *World {
	t.Helper()
	w := &World{t: t, Overlay: &lab.Overlay{
		Lab: lab.New(t, lab.Options{Replicas: true, StoreDisk: disk}), Net: netlab.New(t),
	}}
	w.WAN = w.Net.Switch("wan")
	w.hc = w.Net.Host("c1")
	w.cables.cluster = w.cable(w.hc, "203.0.113.1", 1)
	w.First = w.Cluster("c1", lab.ClusterOptions{
		Host: w.hc, Address: "203.0.113.1", Disk: disk, Mosquitto: filepath.Join("..", "..", "deploy", "mosquitto"),
	})
	for i, o := range []lab.NodeOptions{
		{Containers: true, Overlay: true},
		{Containers: true, Overlay: true, Disk: disk},
		{Containers: true, Overlay: true},
		{},
	} {
		h := w.Net.Host(fmt.Sprintf("h%d", i))
		at := fmt.Sprintf("203.0.113.%d", 10+i)
		if i == 1 {
			w.h1, w.cables.n1 = h, w.cable(h, at, 2)
		} else {
			h.Plug(w.WAN, "eth0", at+"/24")
		}
		name := fmt.Sprintf("n%d", i)
		if !o.Overlay {
			name = "p0"
		}
		o.CPUs, o.Host = 4, h
		w.Nodes = append(w.Nodes, w.First.Node(name, o))
	}
	w.n1, w.p0 = w.Nodes[1], w.Nodes[3]
	w.Ready(w.First, len(w.Nodes))
	tidy := w.Process("tidy", 1)
	tidy.OnDisconnect = api.StopWhenCutOff
	web := lab.On(w.Server("web", 2), "c1", "n0;n1;n2")
	web.Constraints = append(web.Constraints, api.Constraint{Type: api.ConstrainSpread, Limit: 1})
	w.Apply(lab.App("shop",
		lab.On(w.Container("client", 1), "c1", "n0"), web, lab.Exclusive(lab.On(w.Container("ledger", 1), "c1", "n0;n1")),
		lab.Exclusive(lab.On(w.Process("vault", 1), "c1", "p0")), lab.On(w.Process("job", 2), "c1", "p0"), lab.On(tidy, "c1", "p0")))
	lab.Within(t, settleTime, "all run", func() error { return w.AsShown("shop", instances) })
	w.call()
	t.Cleanup(w.hangUp)
	lab.Within(t, settleTime, "requests by name are answered", func() error { return w.calls.Since(0, more) })
	w.writes = w.Write()
	t.Cleanup(w.writes.Stop)
	ctx, stop := context.WithCancel(w.Context())
	watched := make(chan struct{})
	go func() { defer close(watched); w.watch(ctx) }()
	t.Cleanup(func() { stop(); <-watched })
	return w
}

// call starts the numbered requests.
func (w *World) call() { w.calls = lab.Number(w.Inside(w.ID("shop", "client", 0)), "web:80") }

// hangUp ends the numbered requests, before a fault that ends the process that they come from.
func (w *World) hangUp() {
	if w.calls != nil {
		w.calls.Stop()
		w.calls = nil
	}
}

// direct waits until n0 reaches its peers without the relay, which is in the cluster.
func (w *World) direct(t T) {
	t.Helper()
	lab.Within(t, settleTime, "n0 has direct paths", func() error {
		peers, err := w.First.API.OwnNodes().Peers(w.Context(), "n0") // fails while the node is connecting again
		if err != nil {
			return err
		}
		for _, p := range peers {
			if p.Path == api.PathRelay || p.Path == api.PathRelayTLS {
				return fmt.Errorf("%s is reached by %s: %s", p.Node, p.Path, p.Reason)
			}
		}
		return nil
	})
}

// home moves what has left n1 back to it: an instance of web, and ledger. The other instance of web
// is on n2 then.
func (w *World) home(t T) {
	t.Helper()
	settled := func() {
		t.Helper()
		lab.Within(t, settleTime, "all run", func() error { return w.AsShown("shop", instances) })
	}
	there := func() error {
		on := map[api.ServiceID]bool{}
		for _, p := range w.Workloads() {
			on[p.Instance.Service()] = on[p.Instance.Service()] || p.Node == "n1"
		}
		for _, s := range []string{"web", "ledger"} {
			if !on[w.ServiceID("shop", s)] {
				return fmt.Errorf("no instance of %s runs on n1", s)
			}
		}
		return nil
	}
	settled()
	if there() == nil {
		return
	}
	nodes := w.First.API.OwnNodes()
	lab.Within(t, settleTime, "n0 drains", func() error { return nodes.Drain(w.Context(), "n0") })
	lab.Within(t, settleTime, "instances move to n1", there)
	lab.Within(t, settleTime, "n0 takes work", func() error { return nodes.Uncordon(w.Context(), "n0") })
	settled()
}

// cable connects a host to the network by a cable that can be slow.
func (w *World) cable(h *netlab.Host, at string, seed uint64) *netlab.Slow {
	dev := "slow" + h.Name
	s := w.Net.Slow(h, "eth0", at+"/24", w.WAN, dev, "", 0, 0, seed)
	w.WAN.Run("ip", "link", "set", dev, "master", "br")
	return s
}

// watch notes the first time that an exclusive instance has two processes. It looks at the kernel's
// processes four times a second.
func (w *World) watch(ctx context.Context) {
	for ctx.Err() == nil {
		seen := map[api.InstanceID]lab.Workload{}
		for _, now := range w.Workloads() {
			s := now.Instance.Service()
			if s != w.ServiceID("shop", "ledger") && s != w.ServiceID("shop", "vault") {
				continue
			}
			if was, twice := seen[now.Instance]; twice && was.Alive() && now.Alive() {
				w.mu.Lock()
				if w.twice == "" {
					w.twice = fmt.Sprintf("%+v and %+v", was, now)
				}
				w.mu.Unlock()
			}
			seen[now.Instance] = now
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// daemons returns all daemons with how they start, in the order of a machine's start.
func (w *World) daemons() []daemon {
	all := []daemon{
		{w.Replicas.Store, w.Replicas.StartStore},
		{w.Replicas.Both[0], w.Replicas.Both[0].Start},
		{w.Replicas.Both[1], w.Replicas.Both[1].Start},
		{w.First.Broker, w.First.StartBroker},
		{w.First.Proc, w.First.Start},
		{w.Containerd().Proc, w.Containerd().Start},
	}
	for _, n := range w.Nodes {
		if n.Net != nil {
			all = append(all, daemon{n.Net, n.Net.Start})
		}
		all = append(all, daemon{n.Proc, n.Start})
	}
	return all
}

type daemon struct {
	*lab.Proc
	start func()
}

// revive starts what has ended, as a service manager does.
func (w *World) revive() {
	for _, d := range w.daemons() {
		if !d.Alive() {
			d.start()
		}
	}
}

// settled waits until all invariants hold after the fault that ended now, and returns how long that
// took.
func (w *World) settled(t T) time.Duration {
	t.Helper()
	took, from := lab.Stopwatch(), 0
	lab.Within(t, settleTime, "all invariants hold again", func() error {
		w.revive()
		if err := w.AsShown("shop", instances); err != nil {
			from = 0
			return err
		}
		if w.calls == nil {
			w.call()
		}
		if from == 0 {
			from = w.calls.Sent()
		}
		return w.calls.Since(from, more)
	})
	recovered := took()
	w.writes.Kept(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.twice != "" {
		t.Errorf("an exclusive instance ran twice: %s", w.twice)
		w.twice = ""
	}
	return recovered
}

// processes returns the processes of the lab whose arguments all texts are in, by their order.
func (w *World) processes(first string, also ...string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
next:
	for _, path := range all {
		text, _ := os.ReadFile(path)
		name, rest, _ := strings.Cut(string(text), "\x00")
		if !strings.Contains(filepath.Base(name), first) {
			continue
		}
		for _, a := range also {
			if !strings.Contains(rest, a) {
				continue next
			}
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		pids = append(pids, pid)
	}
	return pids
}

// signal sends a signal to processes.
func signal(pids []int, s unix.Signal) error {
	if len(pids) == 0 {
		return errors.New("no such process")
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, s); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
