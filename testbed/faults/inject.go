package faults

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// part is a daemon of the installation as a component of the matrix.
type part struct {
	name  string
	of    func(*World) daemon
	disk  func(*World) *lab.Disk // nil: none of its own
	state func(*World) string    // path of its store; nil: not of this product
	clock bool                   // it is a Go program at a fixed address
	// blocked is whether requests are lost while it is stopped: it carries them.
	blocked bool
	// cut is whether this package ends it together with all others: cutsTest has no such part.
	cut bool
}

// root returns the root that is active, or the other one.
func root(w *World, active bool) int {
	i := w.Replicas.Active()
	if !active {
		i = 1 - i
	}
	return i
}

func rootOf(active bool) func(*World) daemon {
	return func(w *World) daemon {
		p := w.Replicas.Both[root(w, active)]
		return daemon{p, p.Start}
	}
}

var parts = []part{
	{name: "active root", of: rootOf(true), clock: true},
	{name: "standby root", of: rootOf(false), clock: true, cut: true},
	{
		name: "cluster", of: func(w *World) daemon { return daemon{w.First.Proc, w.First.Start} }, clock: true,
		disk: func(w *World) *lab.Disk { return w.First.Disk }, state: func(w *World) string { return filepath.Join(w.First.Data, "cluster.db") },
	},
	{name: "broker", of: func(w *World) daemon { return daemon{w.First.Broker, w.First.StartBroker} }, cut: true},
	{
		name: "store", of: func(w *World) daemon { return daemon{w.Replicas.Store, w.Replicas.StartStore} }, clock: true, cut: true,
		disk: func(w *World) *lab.Disk { return w.StoreDisk },
	},
	{
		name: "node engine", of: func(w *World) daemon { return daemon{w.n1.Proc, w.n1.Start} }, clock: true,
		disk: func(w *World) *lab.Disk { return w.n1.Disk }, state: func(w *World) string { return filepath.Join(w.n1.Data, "node.db") },
	},
	{
		name: "netmanager", of: func(w *World) daemon { return daemon{w.n1.Net, w.n1.Net.Start} }, clock: true, cut: true,
		state: func(w *World) string { return filepath.Join(w.n1.Data+"-net", "net.db") }, blocked: true,
	},
	{name: "containerd", of: func(w *World) daemon { return daemon{w.Containerd().Proc, w.Containerd().Start} }},
}

// Expectations that many cells share.
const (
	unharmed  = "Nothing moves and nothing restarts; it continues where it was."
	takeover  = "The other root is active within its lease of 3 s and what was acknowledged is there."
	elsewhere = "After the dead time the instances run elsewhere; the exclusive one has stopped before."
	cutOff    = "The nodes are cut off: what runs continues, except exclusive instances and those that stop then, which start again."
	loud      = "It refuses to start and names the file; with the right file it continues where it was."
	again     = "The root or the cluster sends what it has missed since."
	full      = "Writes fail with an error that names the disk, reads and workloads continue; afterwards it goes on by itself."
	remount   = "Writes fail, workloads continue; after the disk is mounted again and the daemon is started, it continues where it was."
	darkness  = "Every process ends, and this one starts 3 s after the others: what was acknowledged is there, and everything runs again."
)

// injected returns the cells that this package injects.
func injected() (cells []Cell) {
	add := func(component, fault, expect string, loses bool, inject func(*injection)) {
		cells = append(cells, Cell{Component: component, Fault: fault, Expect: expect, Loses: loses, Inject: inject})
	}
	for _, p := range parts {
		expect := unharmed
		if p.name == "active root" {
			expect = takeover
		}
		moves := expect
		switch p.name {
		case "node engine":
			moves = elsewhere
		case "cluster", "broker":
			moves = cutOff
		}
		add(p.name, "kill -9", expect, false, func(i *injection) {
			d := p.of(i.World)
			d.Kill9()
			d.start()
		})
		add(p.name, "restart", expect, false, func(i *injection) {
			d := p.of(i.World)
			d.Stop()
			d.start()
		})
		if p.cut {
			add(p.name, "all at once", darkness, true, func(i *injection) {
				last := p.of(i.World)
				i.hangUp()
				i.PowerCut()
				for _, d := range i.daemons() {
					if d.Proc != last.Proc {
						d.Launch()
					}
				}
				i.wait(late)
				last.Launch()
			})
		}
		add(p.name, "SIGSTOP 30 s", moves, p.blocked || p.name == "node engine", func(i *injection) {
			d := p.of(i.World)
			d.Pause()
			i.wait(i.stop)
			d.Resume()
		})
		if p.disk != nil {
			add(p.name, "disk full", full, false, func(i *injection) {
				p.disk(i.World).Fill()
				i.busy()
				p.disk(i.World).Free()
			})
			if p.name != "node engine" {
				add(p.name, "read-only disk", remount, false, func(i *injection) {
					d, k := p.of(i.World), p.disk(i.World)
					k.ReadOnly()
					i.busy()
					d.Kill9()
					k.Repair()
					d.start()
				})
			}
			add(p.name, "slow disk", "Writes take a second; nothing is lost and nothing moves.", false, func(i *injection) {
				k := p.disk(i.World)
				for end := time.Now().Add(i.hold); time.Now().Before(end); {
					k.Freeze()
					time.Sleep(time.Second) // the disk's delay
					k.Thaw()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		if p.state != nil {
			cells = append(cells, p.damaged()...)
		}
		if p.clock {
			add(p.name, "clock ±1 h", "Leases and dead times are measured on the monotonic clock: nothing moves.", false, func(i *injection) {
				i.moveClock(p.of(i.World))
			})
		}
	}
	return slices.Concat(cells, partitions(), small())
}

// damaged returns the cells of damage to the file of a store.
func (p part) damaged() []Cell {
	damage := func(fault, expect string, fn func(i *injection, text []byte) []byte) Cell {
		return Cell{Component: p.name, Fault: fault, Expect: expect, Inject: func(i *injection) {
			d, path := p.of(i.World), p.state(i.World)
			d.Kill9()
			kept, err := os.ReadFile(path)
			if err != nil {
				i.Fatalf("%v", err)
			}
			write(i, path, fn(i, slices.Clone(kept)))
			if err := d.TryStart(10 * time.Second); err == nil || d.Alive() {
				i.Errorf("%s started with a damaged store (%v), want it to refuse", p.name, err)
				d.Kill9()
			}
			if text := d.Log(); !strings.Contains(text[max(0, len(text)-4096):], filepath.Base(path)) {
				i.Errorf("the error does not name %s: %s", path, text[max(0, len(text)-1024):])
			}
			write(i, path, kept)
			d.start()
		}}
	}
	return []Cell{
		damage("corrupt state", loud, func(_ *injection, text []byte) []byte {
			copy(text, bytes.Repeat([]byte{0xa5}, 2*os.Getpagesize())) // both meta pages of the file
			return text
		}),
		damage("truncated state", loud, func(_ *injection, text []byte) []byte { return text[:os.Getpagesize()+17] }),
		{Component: p.name, Fault: "older state", Expect: again, Inject: func(i *injection) {
			d, path := p.of(i.World), p.state(i.World)
			d.Kill9()
			older, err := os.ReadFile(path)
			if err != nil {
				i.Fatalf("%v", err)
			}
			d.start()
			i.busy()
			i.settled(i.T)
			d.Kill9()
			write(i, path, older)
			d.start()
		}},
	}
}

func write(i *injection, path string, text []byte) {
	i.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0) // keeps its owner and mode
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		i.Fatalf("write %s: %v", path, err)
	}
}

// partitions returns the cells of partitions, loss, delay and addresses.
func partitions() (cells []Cell) {
	both := func(component, expect string, loses bool, begin func(w *World, oneWay bool) (end func())) {
		for _, fault := range []string{"partition", "one-way partition"} {
			cells = append(cells, Cell{Component: component, Fault: fault, Expect: expect, Loses: loses, Inject: func(i *injection) {
				end := begin(i.World, fault != "partition")
				i.wait(i.hold)
				end()
			}})
		}
	}
	cut := func(links ...*lab.Link) func(bool) func() {
		return func(oneWay bool) func() {
			for _, k := range links {
				if oneWay {
					k.CutBack()
				} else {
					k.Cut()
				}
			}
			return func() {
				for _, k := range links {
					k.Heal()
				}
			}
		}
	}
	both("active root", "Cut off from its store: "+takeover, false, func(w *World, oneWay bool) func() {
		return cut(w.Replicas.ToStore[root(w, true)])(oneWay)
	})
	both("standby root", "Cut off from its store: "+unharmed, false, func(w *World, oneWay bool) func() {
		return cut(w.Replicas.ToStore[root(w, false)])(oneWay)
	})
	both("cluster", "Cut off from its roots: "+unharmed, false, func(w *World, oneWay bool) func() {
		return cut(append([]*lab.Link{w.First.Up}, w.First.Roots...)...)(oneWay)
	})
	both("store", "The roots answer no writes; afterwards one of them is active.", false, func(w *World, oneWay bool) func() {
		return cut(w.Replicas.ToStore[:]...)(oneWay)
	})
	drop := func(host interface {
		Nft(rules string)
		Run(args ...string) string
	}, in, out string, oneWay bool,
	) func() {
		rules := "table inet faults {\nchain in { type filter hook input priority -300; " + in + " drop; }\n"
		if !oneWay {
			rules += "chain out { type filter hook output priority -300; " + out + " drop; }\n"
		}
		host.Nft(rules + "}\n")
		return func() { host.Run("nft", "delete", "table", "inet", "faults") }
	}
	both("broker", cutOff, true, func(w *World, oneWay bool) func() {
		return drop(w.hc, "tcp dport 8883", "tcp sport 8883", oneWay)
	})
	both("node engine", "Cut off from its cluster: "+elsewhere, true, func(w *World, oneWay bool) func() {
		return drop(w.h1, "tcp sport { 7443, 8883 }", "tcp dport { 7443, 8883 }", oneWay)
	})
	both("netmanager", "Its node's datagrams are lost: packets go over the relay by TLS.", true, func(w *World, oneWay bool) func() {
		return drop(w.h1, "meta l4proto udp iifname eth0", "meta l4proto udp oifname eth0", oneWay)
	})
	both("whole machine", elsewhere, true, func(w *World, oneWay bool) func() {
		return drop(w.h1, "iifname eth0", "oifname eth0", oneWay)
	})

	slow := func(component, expect string, loses bool, parts func(w *World) []slowable) {
		for _, fault := range []string{"20 % loss", "250 ms delay"} {
			delay, loss := 250*time.Millisecond, 0.0
			if fault == "20 % loss" {
				delay, loss = 0, 0.2
			}
			cells = append(cells, Cell{Component: component, Fault: fault, Expect: expect, Loses: loses && loss > 0, Inject: func(i *injection) {
				all := parts(i.World)
				for _, p := range all {
					p.Slow(delay, loss)
				}
				i.wait(i.hold)
				for _, p := range all {
					p.Slow(0, 0)
				}
			}})
		}
	}
	for n, c := range []string{"active root", "standby root"} {
		slow(c, "On its link to the store: "+unharmed, false, func(w *World) []slowable {
			return []slowable{w.Replicas.ToStore[root(w, n == 0)]}
		})
	}
	slow("store", "Writes take longer; a root that cannot renew its lease hands over.", false, func(w *World) []slowable {
		return []slowable{w.Replicas.ToStore[0], w.Replicas.ToStore[1]}
	})
	slow("cluster", "On its links to the roots and to the nodes: "+unharmed, true, func(w *World) []slowable {
		all := []slowable{w.First.Up, cable{w.cables.cluster}}
		for _, k := range w.First.Roots {
			all = append(all, k)
		}
		return all
	})
	slow("whole machine", "Requests to it take longer; the instances run elsewhere if it misses its dead time.", true, func(w *World) []slowable {
		return []slowable{cable{w.cables.n1}}
	})

	cells = append(cells, Cell{
		Component: "whole machine", Fault: "address change", Expect: "Its peers and the relay learn the new address from its packets.", Loses: true,
		Inject: func(i *injection) {
			for _, step := range [][2]string{{"203.0.113.11/24", "203.0.113.61/24"}, {"203.0.113.61/24", "203.0.113.11/24"}} {
				i.h1.Run("ip", "addr", "del", step[0], "dev", "eth0") // first: it takes secondary addresses along
				i.h1.Run("ip", "addr", "add", step[1], "dev", "eth0")
				i.wait(i.hold / 2)
			}
		},
	})
	return cells
}

// slowable is a link that can be slow.
type slowable interface {
	Slow(delay time.Duration, loss float64)
}

// cable is a slowable of packets.
type cable struct{ link *netlab.Slow }

func (c cable) Slow(delay time.Duration, loss float64) { c.link.Set(delay, loss) }

// small returns the cells of what is not a daemon of its own, and of a whole machine.
func small() (cells []Cell) {
	shims := func(w *World) []int { return w.processes("containerd-shim", filepath.Base(w.Dir)+"-n1\x00") }
	guard := func(w *World) []int { return w.processes("treeline-guard", w.p0.Data) }
	// server is the process of an instance of web on n1, or of the other one if it runs elsewhere.
	server := func(i *injection) lab.Workload {
		all := i.Service("shop", "web", 2)
		if n := slices.IndexFunc(all, func(x lab.Workload) bool { return x.Node == "n1" }); n >= 0 {
			return all[n]
		}
		return all[0]
	}
	engine := func(w *World) []int {
		pids := []int{w.n1.PID(), w.n1.Net.PID()}
		for _, x := range w.Workloads() {
			if x.Node == "n1" {
				pids = append(pids, x.PID)
			}
		}
		return append(pids, shims(w)...)
	}
	sent := func(i *injection, pids []int, s unix.Signal) {
		i.Helper()
		if err := signal(pids, s); err != nil {
			i.Errorf("%s: %v", s, err)
		}
	}
	paused := func(component, expect string, loses bool, pids func(*injection) []int) {
		cells = append(cells, Cell{Component: component, Fault: "SIGSTOP 30 s", Expect: expect, Loses: loses, Inject: func(i *injection) {
			all := pids(i)
			sent(i, all, unix.SIGSTOP)
			i.wait(i.stop)
			sent(i, all, unix.SIGCONT)
		}})
	}
	paused("shim", unharmed, false, func(i *injection) []int { return shims(i.World) })
	paused("guard", "The deadlines pass meanwhile: what it watches is stopped when it continues, and starts again.", false, func(i *injection) []int { return guard(i.World) })
	paused("workload", "Requests to it time out; without a health check nobody restarts it.", true, func(i *injection) []int { return []int{server(i).PID} })
	paused("whole machine", elsewhere, true, func(i *injection) []int { return engine(i.World) })

	killed := func(component, fault, expect string, loses bool, inject func(*injection)) {
		cells = append(cells, Cell{Component: component, Fault: fault, Expect: expect, Loses: loses, Inject: inject})
	}
	killed("shim", "kill -9", "Its container ends with it or is adopted; the engine starts the instance again.", true, func(i *injection) {
		sent(i, shims(i.World), unix.SIGKILL)
	})
	killed("guard", "kill -9", "The engine starts another one at the next renewal of the lease.", false, func(i *injection) {
		sent(i, guard(i.World), unix.SIGKILL)
		lab.Within(i.T, settleTime, "another guard runs", func() error {
			if len(guard(i.World)) == 0 {
				return errors.New("none")
			}
			return nil
		})
	})
	for _, fault := range []string{"corrupt state", "truncated state", "older state"} {
		expect := "The next guard refuses the file; without a guard the exclusive instance does not run."
		if fault == "older state" {
			expect = "The older deadlines are earlier: the exclusive instance stops before its lease ends, or continues."
		}
		killed("guard", fault, expect, false, func(i *injection) {
			path := filepath.Join(i.p0.Data, "guard", "guard.json")
			kept, err := os.ReadFile(path)
			if err != nil {
				i.Fatalf("%v", err)
			}
			if fault == "older state" {
				i.wait(i.hold)
			}
			sent(i, guard(i.World), unix.SIGKILL)
			switch fault {
			case "corrupt state":
				write(i, path, []byte("{\"a\x00"))
			case "truncated state":
				write(i, path, nil)
			case "older state":
				write(i, path, kept)
				return
			}
			i.wait(i.hold)
			write(i, path, kept)
		})
		killed("broker", fault, "The digests in heartbeats repair what retained messages lack or have too much. While Mosquitto refuses its file: see SIGSTOP.", fault != "older state", func(i *injection) {
			path := filepath.Join(i.First.Data+"-mosquitto", "data", "mosquitto.db")
			i.First.Broker.Stop() // it writes its file
			kept, err := os.ReadFile(path)
			if err != nil {
				i.Fatalf("%v", err)
			}
			switch fault {
			case "corrupt state":
				write(i, path, bytes.Repeat([]byte{0xa5}, len(kept)))
			case "truncated state":
				write(i, path, kept[:len(kept)/2])
			case "older state":
				i.First.StartBroker()
				i.busy()
				i.settled(i.T)
				i.First.Broker.Stop()
				write(i, path, kept)
				i.First.StartBroker()
				return
			}
			i.First.Broker.Launch() // it refuses the file, or starts with what it can read
			i.wait(i.hold)
			i.First.Broker.Stop()
			if err := os.Remove(path); err != nil {
				i.Errorf("%v", err)
			}
			i.First.StartBroker()
		})
	}
	killed("workload", "kill -9", "Its node starts it again after its back-off, with the same epoch.", true, func(i *injection) { server(i).Kill9() })
	off := func(i *injection) {
		i.n1.Net.Kill9()
		i.n1.Kill9()
		sent(i, shims(i.World), unix.SIGKILL)
		i.n1.KillAll()
	}
	killed("whole machine", "kill -9", "It starts its instances again, or they run elsewhere if it is away for longer than the dead time.", true, func(i *injection) {
		off(i)
		i.n1.Net.Start()
		i.n1.Start()
	})
	killed("whole machine", "restart", elsewhere, true, func(i *injection) {
		off(i)
		i.wait(i.hold)
		i.n1.Net.Start()
		i.n1.Start()
	})
	return cells
}

// wait waits for the duration of a fault.
func (i *injection) wait(d time.Duration) { time.Sleep(d) }

// busy makes every store write for the duration of a fault: an instance of job comes and goes.
func (i *injection) busy() {
	for end := time.Now().Add(i.hold); time.Now().Before(end); {
		for _, n := range []int{3, 2} {
			// A full or missing store refuses; the last order is repeated below.
			_, _ = i.API.Scale(i.Context(), i.ServiceID("shop", "job"), n, 0)
			_, _ = i.API.Scale(i.Context(), i.ServiceID("shop", "web"), n, 0)
			time.Sleep(time.Second) // leave the instances time to start
		}
	}
	for _, s := range []string{"job", "web"} {
		go func() {
			for i.Context().Err() == nil {
				if _, err := i.API.Scale(i.Context(), i.ServiceID("shop", s), 2, 0); err == nil {
					return
				}
				time.Sleep(100 * time.Millisecond) // there is no event when a store can write again
			}
		}()
	}
}

// moveClock moves the clock of a daemon an hour forth, an hour back and to where it was, and checks
// that the daemon's log shows it.
func (i *injection) moveClock(d daemon) {
	i.Helper()
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0} {
		from := len(d.Log())
		if err := moveClock(d.PID(), by); err != nil {
			i.Fatalf("move the clock of %s: %v", d.Name, err)
		}
		i.wait(i.hold / 2)
		if text := d.Log()[from:]; by != 0 && strings.Contains(text, "\n") {
			hour := time.Now().Add(by).UTC().Format("T15:")
			if !strings.Contains(text, hour) && !strings.Contains(text, time.Now().Add(by).Format("T15:")) {
				i.Errorf("after its clock moved by %s, the log of %s has no time %s: %s", by, d.Name, hour, text[:min(len(text), 200)])
			}
		}
	}
}
