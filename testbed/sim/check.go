package sim

import (
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Violation is a broken guarantee.
type Violation struct {
	At      moment
	Promise string // "exclusive", "capacity", "lost", …
	Subject string // an instance, a machine, …
	Detail  string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%.3f s: %s: %s: %s", v.At.Seconds(), v.Promise, v.Subject, v.Detail)
}

// violate records the first broken guarantee and stops the world.
func (w *World) violate(promise, subject, format string, args ...any) {
	if w.violation != nil {
		return
	}
	w.violation = &Violation{w.now, promise, subject, fmt.Sprintf(format, args...)}
	w.note(subject, "VIOLATION %s: %s", promise, w.violation.Detail)
}

// running is a live process. Only the checker knows it.
type running struct {
	machine *NodeMachine
	*workload
}

func (w *World) began(m *NodeMachine, v *workload) {
	w.note(m.name, "runs %s", key(v.Key))
	for _, o := range w.running[v.Instance] {
		if v.spec.Exclusive && o.spec.Exclusive {
			w.violate("exclusive", string(v.Instance), "starts as %s on %s while %s runs on %s", v.Epoch, m.name, o.Epoch, o.machine.name)
		}
	}
	w.running[v.Instance] = append(w.running[v.Instance], &running{m, v})
	w.checkRun(m, v)
}

func (w *World) ended(m *NodeMachine, v *workload) {
	w.note(m.name, "runs %s no more", key(v.Key))
	left := w.running[v.Instance][:0]
	for _, o := range w.running[v.Instance] {
		if o.workload != v {
			left = append(left, o)
		}
	}
	if len(left) == 0 {
		delete(w.running, v.Instance)
		return
	}
	w.running[v.Instance] = left
}

// checkCapacity checks that the workloads of a machine do not exceed its capacity.
func (w *World) checkCapacity(m *NodeMachine) {
	var used api.Resources
	var what []string
	for _, v := range m.runtime.all() {
		if v.phase != wire.WorkloadExited {
			used = used.Plus(v.spec.Needs())
			what = append(what, key(v.Key))
		}
	}
	if !used.Fits(m.info.Capacity) {
		w.violate("capacity", m.name, "has %s, but its workloads take %s: %s", m.info.Capacity, used, strings.Join(what, ", "))
	}
}

// checkDevices checks that no device belongs to two workloads that run or may run, and that
// the newest workload has the devices that it requested.
func (w *World) checkDevices(m *NodeMachine, newest *workload) {
	count := 0
	for _, d := range newest.spec.NeedsDevices() {
		count += d.Count
	}
	if count != len(newest.devices) {
		w.violate("devices", m.name, "%s requests %v, but has %v", key(newest.Key), newest.spec.NeedsDevices(), newest.devices)
	}
	has := map[string]wire.Key{}
	for _, v := range m.runtime.all() {
		if v.phase == wire.WorkloadExited {
			continue
		}
		for _, id := range v.devices {
			if other, ok := has[id]; ok {
				w.violate("devices", m.name, "%s and %s both have %s", key(other), key(v.Key), id)
			}
			has[id] = v.Key
		}
	}
}

// image returns the name of a service's image. It contains the tenant, so that a
// specification in an instance of another tenant is detected.
func image(t api.Tenant, service, kind string) string {
	return "registry.example/" + string(t) + "/" + service + ":" + kind
}

func (w *World) checkImage(m *NodeMachine, o wire.CreateWorkload) {
	if !strings.HasPrefix(o.Spec.Code, "registry.example/"+string(o.Instance.Tenant())+"/") {
		w.violate("tenant", string(o.Instance), "%s is to run %s", m.name, o.Spec.Code)
	}
}

func (w *World) checkChange(c api.Change) {
	owner := c.Tenant
	switch c.Kind {
	case "app":
		owner = api.AppID(c.ID).Tenant()
	case "service":
		owner = api.ServiceID(c.ID).Tenant()
	case "instance":
		owner = api.InstanceID(c.ID).Tenant()
	}
	if owner != c.Tenant {
		w.violate("tenant", c.ID, "its change is shown to tenant %q", c.Tenant)
	}
}

// look checks periodically what no single event shows.
func (w *World) look() {
	if w.root.proc.alive {
		core := w.root.core
		for _, t := range []api.Tenant{"acme", "bolt"} { // there is nobody else
			for _, in := range core.Instances(t) {
				if in.ID.Tenant() != t {
					w.violate("tenant", string(in.ID), "is shown to %s", t)
				}
				if in.Epoch == 0 {
					continue // not placed yet
				}
				if in.Epoch < w.epochs[in.ID] {
					w.violate("epoch", string(in.ID), "the root went back from %s to %s", w.epochs[in.ID], in.Epoch)
				}
				w.epochs[in.ID] = in.Epoch
			}
			for _, a := range core.Apps(t) {
				if a.Tenant != t || a.ID.Tenant() != t {
					w.violate("tenant", string(a.ID), "is shown to %s", t)
				}
			}
		}
	}
	if w.opts.Plans && w.chaos != nil {
		w.plan()
	}
	w.checkLeases()
	w.checkGhosts()
	if w.Network {
		w.checkAddresses()
	}
	for _, c := range w.clusters {
		if !c.proc.alive {
			continue
		}
		for _, n := range c.core.Nodes() { // reserved capacity is not included until others have left
			if !n.Allocated.Fits(n.Capacity) {
				w.violate("capacity", c.name+"/"+string(n.ID), "has %s, but %s are allocated", n.Capacity, n.Allocated)
			}
		}
	}
}

// talk records messages that a settled world should not send.
type talk struct {
	listening bool
	noise     []string
}

func (w *World) traffic(msg any) {
	if !w.talk.listening || heartbeat(msg) {
		return
	}
	w.talk.noise = append(w.talk.noise, describe(msg))
}

func heartbeat(msg any) bool {
	switch m := msg.(type) {
	case wire.Alive, wire.GuardWorkload, wire.ProbeOrder:
		return true
	case wire.Lease:
		return !m.RequestWhole
	case wire.Report:
		return len(m.Observed) == 0 && !m.Whole
	case wire.ReportAck:
		return !m.RequestWhole
	case wire.NetUp:
		return m.Self == nil && len(m.Unsubscribe) == 0 && (m.Whole || len(m.Subscribe) == 0) // subscriptions that stay are repeated
	case wire.NetDown:
		return !m.Whole && len(m.Routes)+len(m.Sources)+len(m.Peers)+len(m.Refused)+len(m.RemovedRoutes) == 0 && m.Lease == nil
	}
	return false
}
