package uplink

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Supply is the input of an aggregate.
type Supply struct {
	Candidates  []sched.Candidate // one per node
	Nodes       int               // number of nodes
	Capacity    api.Resources     // of all nodes that are not silent
	Share       api.Resources     // part of Capacity that the root may use
	Left        api.Resources     // free part of Share
	Preemptible []api.Preemptible // resources that preemption could free
}

// Aggregate returns the sum, mean and deviation of the free resources of the nodes that take
// work, the largest free slot of each kind of node, and the nodes' locations, limited to what
// the operator offers. The result is cached until version changes.
func (m *Machine) Aggregate(version uint64, supply func() Supply) api.Aggregate {
	if m.aggregate == nil || m.version != version {
		a := m.cfg.Offer.aggregate(supply())
		m.aggregate, m.version = &a, version
	}
	return *m.aggregate
}

// sums are the intermediate values of an aggregate.
type sums struct {
	api.Aggregate
	overlay int // number of nodes with an overlay network
	squares [5]float64
	slots   map[slotKey]*slot
	places  []api.Geo
	coords  []*api.Coordinate
}

type slotKey struct {
	runtime, arch, areas, addons, features string
	privileged, network                    bool
}

type slot struct {
	api.Slot
	devices map[string]api.SlotDevice
}

// maxSlots bounds the kinds of nodes in an aggregate. Further ones are reported without
// their areas and addons.
const maxSlots = 64

func (o Offer) aggregate(in Supply) api.Aggregate {
	detail := cmp.Or(o.Detail, DetailFull)
	s := sums{slots: map[slotKey]*slot{}}
	for i := range in.Candidates {
		if in.Candidates[i].Out == "" {
			s.add(&in.Candidates[i], detail)
		}
	}
	a := &s.Aggregate
	a.Overlay = new(s.overlay)
	all := parts(a.Free)
	if o.Part() < 1 {
		a.Capacity, a.Free = a.Capacity.Min(in.Share), a.Free.Min(in.Left)
		a.Largest = a.Largest.Min(in.Left)
	}
	if a.Nodes > 0 && detail != DetailSums {
		free, nodes := parts(a.Free), s.known()
		var mean, dev [5]int64
		for i := range mean {
			n := float64(nodes[i])
			if n == 0 {
				continue
			}
			mu := float64(all[i]) / n
			mean[i], dev[i] = free[i]/nodes[i], int64(math.Sqrt(max(0, s.squares[i]/n-mu*mu)))
		}
		a.Mean, a.StdDev = resources(mean), resources(dev)
	}
	if detail != DetailSums {
		for _, k := range slices.SortedFunc(maps.Keys(s.slots), slotKey.compare) {
			a.Slots = append(a.Slots, s.slots[k].limited(in.Left))
		}
	}
	if detail == DetailFull {
		grid := 0.0
		if o.Round > 0 {
			grid = 1
		}
		a.Hull, a.Unplaced = sched.Hull(s.places, grid), a.Nodes-len(s.places)
		a.Latency = spreadOf(s.coords)
	} else {
		a.Unplaced = a.Nodes
	}
	a.Preemptible = in.Preemptible
	if o.Round > 0 {
		o.round(a, in)
	}
	return *a
}

func (s *sums) add(cand *sched.Candidate, detail string) {
	free := cand.Free.Max(api.Resources{})
	s.Nodes++
	if slices.ContainsFunc(cand.Slots, func(r sched.Slot) bool { return r.Network }) {
		s.overlay++
	}
	s.Capacity, s.Free, s.Largest = s.Capacity.Plus(cand.Capacity), s.Free.Plus(free), s.Largest.Max(free)
	for i, p := range parts(free) {
		s.squares[i] += float64(p) * float64(p)
	}
	if cand.Geo != nil {
		s.places = append(s.places, *cand.Geo)
	}
	if cand.Coord != nil {
		s.coords = append(s.coords, cand.Coord)
	}
	s.BandwidthUnknown += cand.Slots[0].BandwidthUnknown
	for i := range cand.Slots {
		for _, f := range cand.Slots[i].Features {
			if at, known := slices.BinarySearch(s.Features, f); !known {
				s.Features = slices.Insert(s.Features, at, f)
			}
		}
	}
	if detail == DetailSums {
		return
	}
	for i := range cand.Slots {
		r := &cand.Slots[i]
		areas, addons := r.Areas, r.Addons
		if detail == DetailSlots {
			areas = unreported
		}
		for _, runtime := range r.Runtimes {
			s.slot(r, runtime, areas, addons).add(free, r)
		}
	}
}

// known returns, for each resource, the number of nodes that report it.
func (s *sums) known() [5]int64 {
	all, speed := int64(s.Nodes), int64(s.Nodes-s.BandwidthUnknown)
	return parts(api.Resources{MilliCPU: all, MemoryMB: all, StorageMB: all, InMbit: speed, OutMbit: speed})
}

var unreported = []string{sched.Unreported}

// slot returns the slot of a kind of node, and adds it if necessary.
func (s *sums) slot(r *sched.Slot, runtime string, areas, addons []string) *slot {
	const sep = "\x00"
	k := slotKey{runtime, r.Arch, strings.Join(areas, sep), strings.Join(addons, sep), strings.Join(r.Features, sep), r.Privileged, r.Network}
	if s.slots[k] == nil && len(s.slots) >= maxSlots {
		areas, addons = unreported, unreported
		k.areas, k.addons = sched.Unreported, sched.Unreported
	}
	if s.slots[k] == nil {
		s.slots[k] = &slot{Slot: api.Slot{
			Runtime: runtime, Arch: r.Arch, Privileged: r.Privileged, Network: r.Network, Areas: areas, Addons: addons, Features: r.Features,
		}}
	}
	return s.slots[k]
}

func (s *slot) add(free api.Resources, r *sched.Slot) {
	s.Nodes++
	s.BandwidthUnknown += r.BandwidthUnknown
	s.Free, s.Largest = s.Free.Plus(free), s.Largest.Max(free)
	for kind, n := range r.Devices {
		if s.devices == nil {
			s.devices = map[string]api.SlotDevice{}
		}
		d := s.devices[kind]
		s.devices[kind] = api.SlotDevice{Name: kind, Free: d.Free + n, Largest: max(d.Largest, n)}
	}
}

// limited returns the slot limited to left, the free part of the root's share.
func (s *slot) limited(left api.Resources) api.Slot {
	out := s.Slot
	out.Free, out.Largest = s.Free.Min(left), s.Largest.Min(left)
	for _, kind := range step.Keys(s.devices) {
		out.Devices = append(out.Devices, s.devices[kind])
	}
	return out
}

func (k slotKey) compare(o slotKey) int {
	return cmp.Or(
		cmp.Compare(k.runtime, o.runtime), cmp.Compare(k.arch, o.arch), compareBool(k.privileged, o.privileged),
		compareBool(k.network, o.network), cmp.Compare(k.areas, o.areas), cmp.Compare(k.addons, o.addons),
		cmp.Compare(k.features, o.features),
	)
}

func compareBool(a, b bool) int {
	number := map[bool]int{true: 1}
	return number[a] - number[b]
}

// spreadOf returns the mean of the coordinates and the largest distance from it.
func spreadOf(coords []*api.Coordinate) *api.CoordSpread {
	if len(coords) == 0 {
		return nil
	}
	out := &api.CoordSpread{Center: vivaldi.New(), Nodes: len(coords)}
	out.Center.Error = 0
	for _, c := range coords {
		for i, v := range c.Vec {
			out.Center.Vec[i] += v / float64(len(coords))
		}
		out.Center.Error += c.Error / float64(len(coords))
	}
	for _, c := range coords {
		out.Radius = max(out.Radius, vivaldi.Distance(out.Center, *c))
	}
	return out
}

func parts(r api.Resources) [5]int64 {
	return [5]int64{r.MilliCPU, r.MemoryMB, r.StorageMB, r.InMbit, r.OutMbit}
}

func resources(p [5]int64) api.Resources {
	return api.Resources{MilliCPU: p[0], MemoryMB: p[1], StorageMB: p[2], InMbit: p[3], OutMbit: p[4]}
}
