// Package account keeps the bookings of instances on a node and what is left: amounts,
// devices, addresses and ports. It computes how many devices of each kind one more instance
// can get if devices are of several kinds at once.
package account

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Urgencies is the number of api.Priorities.
const Urgencies = 4

// Node is the account of one node. Maps and slices that its methods return are read-only.
// The zero Node has no resources. It is not safe for concurrent use.
type Node struct {
	capacity  api.Resources
	devices   Devices
	addresses int // number in the subnet; 0: not limited

	booked    map[api.InstanceID]Claim
	used      api.Resources                   // the sum of booked
	addressed int                             // number of bookings with an address
	urgency   map[api.InstanceID]int          // of assigned instances
	byUrgency [Urgencies]api.Resources        // booked for assigned instances, by urgency
	reported  map[api.InstanceID][]string     // ids of devices that the node reports for instances
	free      map[string]int                  // devices by kind; nil: to be computed
	ports     map[api.InstanceID][]sched.Port // published by instances
	published map[sched.Port]int              // number of instances that publish the port
	freed     bool                            // a port was released since the last Changed
	changed   bool                            // devices may have changed since the last Changed
}

// Demand is what an instance needs of a node.
type Demand struct {
	Claim Claim
	Ports []sched.Port
}

func (n *Node) Describe(capacity api.Resources, d Devices) {
	n.capacity, n.devices = capacity, d
	n.invalidateDevices()
}

// SetAddresses sets how many addresses the node's subnet holds. 0: it is not limited.
func (n *Node) SetAddresses(count int) { n.addresses = count }

// Changed reports whether a port was released (freed) and whether devices may have changed
// since the last call.
func (n *Node) Changed() (freed, devices bool) {
	freed, devices = n.freed, n.changed
	n.freed, n.changed = false, false
	return freed, devices
}

func (n *Node) invalidateDevices() { n.free, n.changed = nil, true }

// Book sets the claim of an instance, replacing an earlier one. A zero claim removes it.
func (n *Node) Book(id api.InstanceID, k Claim) {
	if n.booked == nil {
		n.booked = map[api.InstanceID]Claim{}
	}
	old := n.booked[id]
	n.used = n.used.Minus(old.Resources).Plus(k.Resources)
	if len(old.Devices)+len(k.Devices) > 0 {
		n.invalidateDevices()
	}
	n.addressed += boolInt(k.Address) - boolInt(old.Address)
	if u, assigned := n.urgency[id]; assigned {
		n.byUrgency[u] = n.byUrgency[u].Minus(old.Resources).Plus(k.Resources)
	}
	if n.booked[id] = k; k.IsZero() {
		delete(n.booked, id)
	}
}

// Assign counts an instance's booking in BookedByUrgency.
func (n *Node) Assign(id api.InstanceID, urgency int) {
	n.Unassign(id)
	if n.urgency == nil {
		n.urgency = map[api.InstanceID]int{}
	}
	u := min(max(urgency, 0), Urgencies-1)
	n.urgency[id] = u
	n.byUrgency[u] = n.byUrgency[u].Plus(n.booked[id].Resources)
}

// Unassign undoes Assign. The booking stays.
func (n *Node) Unassign(id api.InstanceID) {
	if u, assigned := n.urgency[id]; assigned {
		n.byUrgency[u] = n.byUrgency[u].Minus(n.booked[id].Resources)
		delete(n.urgency, id)
	}
}

// SetDevices sets the ids of the devices that the node reports for an instance.
func (n *Node) SetDevices(id api.InstanceID, devices []string) {
	if slices.Equal(n.reported[id], devices) {
		return
	}
	n.invalidateDevices()
	if len(devices) == 0 {
		delete(n.reported, id)
		return
	}
	if n.reported == nil {
		n.reported = map[api.InstanceID][]string{}
	}
	n.reported[id] = devices
}

// Publish books ports for an instance in addition to those that it has.
func (n *Node) Publish(id api.InstanceID, ports []sched.Port) {
	fresh := false
	for _, p := range ports {
		if slices.Contains(n.ports[id], p) {
			continue
		}
		if n.ports == nil {
			n.ports, n.published = map[api.InstanceID][]sched.Port{}, map[sched.Port]int{}
		}
		if !fresh {
			n.published, fresh = maps.Clone(n.published), true // callers of Left hold the old map
		}
		n.ports[id] = append(slices.Clip(n.ports[id]), p)
		n.published[p]++
	}
}

func (n *Node) Republish(id api.InstanceID, ports []sched.Port) {
	if slices.ContainsFunc(n.ports[id], func(p sched.Port) bool { return !slices.Contains(ports, p) }) {
		n.unpublish(id)
		n.Publish(id, ports)
	}
}

func (n *Node) unpublish(id api.InstanceID) {
	if len(n.ports[id]) > 0 {
		n.published, n.freed = n.publishedByOthers(id), true
		delete(n.ports, id)
	}
}

func (n *Node) publishedByOthers(id api.InstanceID) map[sched.Port]int {
	if len(n.ports[id]) == 0 {
		return n.published
	}
	others := maps.Clone(n.published)
	for _, p := range n.ports[id] {
		if others[p]--; others[p] == 0 {
			delete(others, p)
		}
	}
	return others
}

// Release removes the booking and ports of an instance.
func (n *Node) Release(id api.InstanceID) {
	n.Book(id, Claim{})
	n.unpublish(id)
}

// Left is what is left of a node for one more instance.
type Left struct {
	Free    api.Resources      // below 0 where more is booked than the node has
	Full    bool               // no address is left
	Devices map[string]int     // free devices by kind
	Ports   map[sched.Port]int // published ports, with the number of instances
}

func (n *Node) Left() Left {
	if n.free == nil {
		n.free = n.devices.Free(n.booked, n.reported)
	}
	return Left{n.capacity.Minus(n.used), n.full(0), n.free, n.published}
}

// Without returns what would be left without an instance.
func (n *Node) Without(id api.InstanceID) Left {
	l, k := n.Left(), n.booked[id]
	l.Free, l.Full, l.Ports = l.Free.Plus(k.Resources), n.full(boolInt(k.Address)), n.publishedByOthers(id)
	if len(k.Devices) > 0 {
		others := maps.Clone(n.booked)
		delete(others, id)
		l.Devices = n.devices.Free(others, n.reported)
	}
	return l
}

// full reports whether no address would be left after freed of them were released.
func (n *Node) full(freed int) bool { return n.addresses > 0 && n.addressed-freed >= n.addresses }

func (n *Node) Capacity() api.Resources { return n.capacity }

// Used returns the sum of what is booked.
func (n *Node) Used() api.Resources { return n.used }

func (n *Node) Booked(id api.InstanceID) Claim { return n.booked[id] }

// BookedByUrgency returns what is booked for assigned instances, by urgency.
func (n *Node) BookedByUrgency() [Urgencies]api.Resources { return n.byUrgency }

// FitTogether reports whether one instance can get all devices of want at once from free. See
// Devices.FitTogether.
func (n *Node) FitTogether(want []api.Device, free map[string]int) bool {
	return n.devices.FitTogether(want, free)
}

func (n *Node) Sum(of map[api.InstanceID]bool) (r api.Resources) {
	for id := range of {
		r = r.Plus(n.booked[id].Resources)
	}
	return r
}

// LargestShare returns the larger of the shares of processor and memory that an instance takes.
func (n *Node) LargestShare(id api.InstanceID) float64 {
	k, of := n.booked[id].Resources, n.capacity
	return max(float64(k.MilliCPU)/float64(max(of.MilliCPU, 1)), float64(k.MemoryMB)/float64(max(of.MemoryMB, 1)))
}

// FitsWithout reports whether an instance fits without the instances of gone. own limits the
// ports that may be published; nil: no limit.
func (n *Node) FitsWithout(gone map[api.InstanceID]bool, d Demand, own *api.NodePorts) bool {
	k, freed := d.Claim, 0
	if !k.Resources.Fits(n.capacity.Minus(n.used).Plus(n.Sum(gone)).Max(api.Resources{})) {
		return false
	}
	for id := range gone {
		freed += boolInt(n.booked[id].Address)
	}
	if k.Address && n.full(freed) {
		return false
	}
	for _, p := range d.Ports {
		taken := n.published[p]
		for id := range gone {
			taken -= boolInt(slices.Contains(n.ports[id], p))
		}
		if taken > 0 || own.Refuses(api.HostPort{Port: p.Number, Protocol: p.Protocol}) != "" {
			return false
		}
	}
	if len(k.Devices) == 0 {
		return true
	}
	still := maps.Clone(n.booked)
	maps.DeleteFunc(still, func(id api.InstanceID, _ Claim) bool { return gone[id] })
	free := n.devices.Free(still, n.reported)
	return !slices.ContainsFunc(k.Devices, func(w api.Device) bool { return w.Count > free[w.Name] }) && n.devices.FitTogether(k.Devices, free)
}

func (n *Node) Clone() *Node {
	c := *n
	c.booked, c.urgency, c.ports, c.reported = maps.Clone(n.booked), maps.Clone(n.urgency), maps.Clone(n.ports), maps.Clone(n.reported)
	return &c
}

func (n *Node) Ports() map[api.InstanceID][]sched.Port { return n.ports }

func (n *Node) Bookings() map[api.InstanceID]Claim { return n.booked }

func boolInt(is bool) int {
	if is {
		return 1
	}
	return 0
}
