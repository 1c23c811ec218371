package root

import (
	"maps"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// reservation is what an instance takes of its cluster until the cluster's own
// aggregate counts it.
type reservation struct {
	gen     api.Generation
	needs   api.Resources
	devices []api.Device
	runtime string
}

// taken is a sum of reservations. Its devices are by kind.
type taken struct {
	api.Resources
	devices map[string]int
}

func (cl *cluster) reserve(in *instance) {
	r := reservation{
		gen: cl.gen, needs: in.Spec.Needs(), devices: in.Spec.NeedsDevices(),
		runtime: sched.RuntimeName(in.Spec.Virtualization),
	}
	cl.pending[in.ID] = r
	cl.count(r, 1)
}

// free gives a reservation up, and reports whether there was one.
func (cl *cluster) free(id api.InstanceID) bool {
	r, ok := cl.pending[id]
	if ok {
		delete(cl.pending, id)
		cl.count(r, -1)
	}
	return ok
}

func (cl *cluster) count(r reservation, by int) {
	t := cl.byRuntime[r.runtime]
	if by > 0 {
		cl.reserved, t.Resources = cl.reserved.Plus(r.needs), t.Plus(r.needs)
	} else {
		cl.reserved, t.Resources = cl.reserved.Minus(r.needs), t.Minus(r.needs)
	}
	if len(r.devices) > 0 {
		t.devices = maps.Clone(t.devices)
		if t.devices == nil {
			t.devices = map[string]int{}
		}
		for _, d := range r.devices {
			if t.devices[d.Name] += by * d.Count; t.devices[d.Name] == 0 {
				delete(t.devices, d.Name)
			}
		}
	}
	if t.Resources == (api.Resources{}) && len(t.devices) == 0 {
		delete(cl.byRuntime, r.runtime)
		return
	}
	cl.byRuntime[r.runtime] = t
}

// left is the most that one instance can get of each kind of device of a slot.
func (t taken) left(of []api.SlotDevice) map[string]int {
	if len(of) == 0 {
		return nil
	}
	left := make(map[string]int, len(of))
	for _, d := range of {
		left[d.Name] = max(0, min(d.Largest, d.Free-t.devices[d.Name]))
	}
	return left
}
