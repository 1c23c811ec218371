package sim

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane/planetest"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// NetMachine runs a netmanager beside a node engine. A model replaces the data plane in the
// kernel and outlives the netmanager. The tunnel reaches every peer.
type NetMachine struct {
	w        *World
	node     *NodeMachine
	name     string
	core     *overlay.Core
	proc     process[overlay.Input]
	plane    planetest.Model
	ready    bool   // as reported to the node engine
	flows    uint64 // observed by the plane
	coord    api.Coordinate
	detour   time.Duration  // added to each round trip by its connection
	measures int            // requested round trips
	lies     []wire.NetPair // false reports about connections, in each message
}

func (m *NodeMachine) addNet() {
	n := &NetMachine{w: m.w, node: m, name: m.name + "/net"}
	n.plane.Sync(plane.State{})
	n.proc = process[overlay.Input]{w: m.w, name: n.name, clock: m.clock, disk: newDisk(), tick: overlay.Tick{}, send: n.send, watch: n.noticed}
	n.proc.fell = func() { n.fell(); m.w.after(m.w.downTime(), n.start) }
	n.proc.holds = n.holds
	m.net = n
}

func (n *NetMachine) start() {
	if n.proc.alive || n.node.gone {
		return
	}
	// Addresses are reserved for less than the time to settle, because the end of a reservation is saved.
	n.core = overlay.New(overlay.Config{Quarantine: 5 * time.Second})
	if err := n.core.Restore(n.proc.disk.load(n.w.chance)); err != nil {
		n.w.violate("restore", n.name, "%v", err)
		return
	}
	n.w.note(n.name, "starts")
	n.proc.start(n.core, overlay.Start{})
	if !n.proc.alive {
		return
	}
	n.plane.Sync(n.core.View().Plane())
	for _, a := range n.core.View().Unready() {
		n.listens(a)
	}
	n.proc.give(overlay.Self{NetSelf: wire.NetSelf{Key: n.key(), Chain: [][]byte{{1}}, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4000")}}})
	n.linked(n.node.proc.alive && n.node.link.conn != 0)
	n.reconcile()
}

func (n *NetMachine) crash() {
	if n.proc.alive {
		n.w.note(n.name, "the netmanager crashes")
		n.proc.crash()
		n.fell()
	}
}

func (n *NetMachine) fell() { n.noticed() }

// machineEnds discards the kernel's state and, if the disk is lost, the store.
func (n *NetMachine) machineEnds(wipe bool) {
	n.proc.crash()
	n.plane.Sync(plane.State{})
	if wipe {
		n.proc.disk.wipe()
		n.proc.before = nil
	}
	n.fell()
}

// noticed tells the node engine whether the netmanager is ready.
func (n *NetMachine) noticed() {
	if was := n.ready; was == n.isReady() {
		return
	}
	n.ready = !n.ready
	n.w.after(time.Millisecond, func() {
		m := n.node
		if m.proc.alive && !m.runtime.down {
			m.proc.give(node.Info{Info: m.present(), Found: m.runtime.found(), Fresh: true})
		}
		n.reconcile()
	})
}

func (n *NetMachine) isReady() bool {
	if !n.proc.alive {
		return false
	}
	_, ok := n.core.View().Lease()
	return ok
}

func (n *NetMachine) linked(up bool) { n.proc.give(overlay.Link{Up: up}) }

// reconcile detaches workloads that the runtime no longer has, and attaches running ones
// that are not attached, as the driver does when the runtime or the netmanager is back.
func (n *NetMachine) reconcile() {
	if !n.proc.running() || !n.node.proc.alive || n.node.runtime.down {
		return
	}
	for _, a := range n.core.View().List() {
		if n.node.runtime.find(a.Key) == nil {
			n.proc.give(overlay.Detach{Key: a.Key})
		}
	}
	for _, v := range n.node.runtime.all() {
		if _, ok := n.core.View().Attached(v.Key); !ok && v.phase == wire.WorkloadRunning && n.proc.running() {
			if _, err := n.attach(v); err == nil {
				n.tell(v)
			}
		}
	}
}

// attach attaches a workload, as the driver does before its start.
func (n *NetMachine) attach(v *workload) (wire.Attached, error) {
	a := wire.Attach{
		Key: v.Key, NetNS: fmt.Sprintf("/proc/%d/ns/net", v.attempt+1), Ports: v.spec.Ports(), Access: v.spec.Access(), Addresses: v.addresses,
		Checked: v.spec.Health.Gates(),
	}
	if got := n.proc.give(overlay.Attach{Attach: a}); !got.taken || got.err != nil {
		return wire.Attached{}, cmp.Or(got.err, api.ErrUnavailable)
	}
	at, _ := n.core.View().Attached(v.Key)
	if !at.Ready && !a.Checked {
		n.listens(a)
	}
	return at, nil
}

// listens makes the workload listen after a while, or the netmanager stop waiting for that.
func (n *NetMachine) listens(a wire.Attach) {
	core := n.core
	n.w.after(n.w.between(time.Millisecond, 3*time.Second), func() {
		switch {
		case n.core != core || !n.proc.alive: // the next start looks again
		case !n.proc.running():
			n.listens(a)
		default:
			n.proc.give(overlay.Ready{Key: a.Key, NetNS: a.NetNS})
			n.tell(n.node.runtime.find(a.Key))
		}
	})
}

// tell reports a workload's attachment to the node engine.
func (n *NetMachine) tell(v *workload) {
	if v == nil || n.node.runtime.down {
		return // reported when the runtime is back
	}
	if at, ok := n.core.View().Attached(v.Key); ok && n.proc.alive {
		n.node.happened(wire.WorkloadEvent{Key: v.Key, Attempt: v.attempt, Address: at.Address, Ready: at.Ready})
	}
}

// detach is repeated until it is done; a stopped netmanager gets it when it is back.
func (n *NetMachine) detach(k wire.Key) { n.proc.give(overlay.Detach{Key: k}) }

func (n *NetMachine) send(e wire.Envelope) {
	switch msg := e.Msg.(type) {
	case wire.NetUp:
		n.w.traffic(msg)
		if n.w.opts.Plant == PlantNoDemand {
			msg.Demand = nil
		}
		if !n.node.proc.alive {
			return
		}
		msg.Between = append(slices.Clip(msg.Between), n.lies...)
		m, get := n.node, encoded(msg)
		m.link.carry(up, msg, func() { m.cluster.proc.give(cluster.NetUp{Node: m.id, NetUp: get()}) })
	case plane.Change:
		n.plane.Apply(msg)
	case overlay.Ask:
		n.w.after(time.Millisecond, func() { n.proc.give(overlay.Used{Usage: n.used()}) })
	case overlay.TunnelCoord:
		n.coord = msg.Coordinate
	case overlay.TunnelMeasure:
		n.measures++
		n.measure(msg.Key)
	case overlay.TunnelPeer:
		rtt := n.w.between(time.Millisecond, 100*time.Millisecond)
		n.w.after(rtt, func() {
			n.proc.give(overlay.Path{Key: msg.Key, Kind: api.PathDirect, Addr: netip.MustParseAddrPort("192.0.2.1:4000"), RTT: rtt, MTU: 1400})
		})
	}
}

// measure returns the answer of a peer that is alive, with its coordinate. Once all faults
// have ended, the round trip is the estimate of both, so that coordinates do not move.
func (n *NetMachine) measure(k api.PeerKey) {
	for _, c := range n.w.clusters {
		for _, m := range c.nodes {
			if o := m.net; o != nil && o != n && o.key() == k && o.proc.alive && !m.gone {
				rtt := n.w.roundTrip(n, o)
				if c := n.w.chaos; c != nil && c.ended {
					rtt = vivaldi.Distance(n.coord, o.coord)
				}
				at := o.coord
				n.w.after(rtt, func() { n.proc.give(overlay.Measured{Key: k, RTT: rtt, Coord: &at}) })
				return
			}
		}
	}
}

func (n *NetMachine) key() api.PeerKey { return sha256.Sum256([]byte(n.name)) }

// roundTrip returns the round trip between two machines at positions in a square, each with
// an access delay.
func (w *World) roundTrip(a, b *NetMachine) time.Duration {
	p, q := a.key(), b.key()
	away := math.Hypot(float64(p[0])-float64(q[0]), float64(p[1])-float64(q[1])) / 256 * 80
	return time.Duration((away+4+float64(p[2]%8+q[2]%8)/2)*float64(time.Millisecond)) + a.detour + b.detour
}

// used reports all routes as used.
func (n *NetMachine) used() plane.Usage {
	n.flows++
	u := plane.Usage{Services: map[netip.Addr]uint64{}, Sources: map[netip.Addr]uint64{}, Backends: map[netip.Addr]uint64{}}
	for a := range n.plane.Services {
		u.Services[a] = n.flows
	}
	for a := range n.plane.Sources {
		u.Sources[a], u.Backends[a] = n.flows, n.flows
	}
	return u
}

// call makes a workload send a packet: to any service, to an instance, or to an unused
// address.
func (c *chaos) call() {
	n, ok := c.anyNode()
	if !ok || n.net == nil || !n.net.proc.running() {
		return
	}
	from, ok := pickOf(c, n.net.core.View().List())
	if !ok {
		return
	}
	w := c.w
	to := netip.AddrFrom4([4]byte{10, byte(16 + w.chance.IntN(16)), byte(w.chance.IntN(2)), byte(w.chance.IntN(256))})
	if s, ok := pickOf(c, w.root.core.Services("")); ok && w.chance.IntN(4) > 0 {
		switch w.chance.IntN(3) {
		case 0:
			n.net.proc.give(overlay.Query{Local: from.Address, Name: s.ID.Name() + "." + wire.Domain})
			return
		case 1:
			to = s.Addresses.RoundRobin
		default:
			for _, in := range w.root.core.Instances(s.ID.Tenant()) {
				if in.Service == s.ID && in.Address.IsValid() {
					to = in.Address
				}
			}
		}
	}
	if to.IsValid() {
		n.net.proc.give(overlay.Miss{Local: from.Address, Remote: to})
	}
}

// netFault is a random fault of a netmanager.
func (c *chaos) netFault(n *NetMachine) {
	w := c.w
	switch w.chance.IntN(3) {
	case 0:
		n.crash()
		w.after(w.between(100*time.Millisecond, 20*time.Second), n.start)
	case 1:
		c.pause(n.name, n.proc.pause, func() { n.proc.resume(); n.reconcile() })
	default:
		n.proc.fuse = 1 + w.chance.IntN(20)
	}
}

// checkAddresses checks that no address is used twice.
func (w *World) checkAddresses() {
	has := map[netip.Addr]string{}
	for _, c := range w.clusters {
		for _, n := range c.nodes {
			if n.net == nil || !n.net.proc.alive || n.gone {
				continue
			}
			for _, a := range n.net.core.View().List() {
				if other, taken := has[a.Address]; taken {
					w.violate("address", a.Address.String(), "%s has it on %s, and so does %s", key(a.Key), n.name, other)
				}
				has[a.Address] = key(a.Key) + " on " + n.name
			}
		}
	}
	if !w.root.proc.alive {
		return
	}
	owner := map[netip.Addr]api.ServiceID{}
	for _, s := range w.root.core.Services("") {
		for _, a := range append([]netip.Addr{s.Addresses.RoundRobin, s.Addresses.Closest}, sortedValues(s.Addresses.Instances)...) {
			if other, taken := owner[a]; a.IsValid() && taken && other != s.ID {
				w.violate("address", a.String(), "is %s's and %s's", other, s.ID)
			}
			owner[a] = s.ID
		}
	}
}

func sortedValues(m map[int]netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range m {
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// misled lists differences between a node's network and the truth: routes to places where
// instances do not run, and a data plane that differs from the core's state.
func (w *World) misled(say sayFunc) {
	truth := map[api.ServiceID][]string{}
	for id, live := range w.running {
		for _, r := range live {
			if at, ok := r.machine.net.core.View().Attached(r.Key); ok {
				if !at.Ready {
					say(r.machine.name, "%s listens, but gets no flows", key(r.Key))
				}
				truth[id.Service()] = append(truth[id.Service()], fmt.Sprintf("%s %s", key(r.Key), at.Address))
			} else {
				say(r.machine.name, "%s runs, but is not attached", key(r.Key))
			}
		}
	}
	for _, c := range w.living() {
		for _, m := range c.living() {
			n := m.net
			for _, a := range n.core.View().List() {
				if !slices.ContainsFunc(w.running[a.Instance], func(r *running) bool { return r.Epoch == a.Epoch && r.machine == m }) && m.runtime.find(a.Key) == nil {
					say(n.name, "%s is attached, but does not exist", key(a.Key))
				}
			}
			for _, r := range n.core.View().Routes() {
				if r.Refused != "" {
					continue
				}
				var has []string
				for _, b := range r.Backends {
					has = append(has, fmt.Sprintf("%s %s", key(wire.Key{Instance: b.Instance, Epoch: b.Epoch}), b.Address))
				}
				slices.Sort(has)
				want := truth[r.Service]
				slices.Sort(want)
				if !slices.Equal(has, want) {
					say(n.name, "its route to %s leads to %v, want %v", r.Service, has, want)
				}
			}
			if diff := n.plane.Differs(n.core.View().Plane()); diff != "" {
				say(n.name, "its kernel has %s", diff)
			}
		}
	}
}
