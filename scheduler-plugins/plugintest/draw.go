package plugintest

import (
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Node returns an idle amd64 node that runs containers.
func Node(id string, capacity api.Resources) sched.Candidate {
	return sched.Candidate{
		ID: id, Level: sched.Nodes, Capacity: capacity, Free: capacity,
		Slots: []sched.Slot{{
			Runtimes: []string{"container"}, Arch: "amd64", Free: capacity, Largest: capacity,
		}},
	}
}

// Values of candidates and requests. There are few, so that they often match.
var (
	runtimes = []string{"container", "process", "runsc"}
	arches   = []string{"amd64", "arm64"}
	ids      = []string{"c0", "c1", "c2", "c3", "c4", "c5"}
	addons   = []string{"ocr", "maps"}
	features = []string{"health", "volumes"}
	areas    = []string{"munich", "de", "fiji"}
	ports    = []sched.Port{{Protocol: "tcp", Number: 80}, {Protocol: "udp", Number: 53}}
	kinds    = []string{api.DeviceGPU, api.DeviceTPU, "acme.com/lidar"}
	bys      = []string{"node", "cluster", "zone"}

	// Two in Germany, two on both sides of the date line, one near a pole.
	places = []api.Geo{{Lat: 48.14, Lon: 11.58}, {Lat: 52.52, Lon: 13.4}, {Lat: -17.7, Lon: 177.9}, {Lat: -16.8, Lon: -179.8}, {Lat: 89.5, Lon: 30}}
	// Roughly Bavaria; around Fiji; more than half of the northern hemisphere above 40°.
	polygons = [][]api.Geo{
		{{Lat: 47.2, Lon: 9}, {Lat: 47.3, Lon: 13.9}, {Lat: 50.6, Lon: 12.1}, {Lat: 50.1, Lon: 8.9}},
		{{Lat: -20, Lon: 175}, {Lat: -20, Lon: -175}, {Lat: -14, Lon: -175}, {Lat: -14, Lon: 175}},
		{{Lat: 40, Lon: -100}, {Lat: 40, Lon: 0}, {Lat: 40, Lon: 100}, {Lat: 90, Lon: 100}, {Lat: 90, Lon: 0}, {Lat: 90, Lon: -100}},
	}
	hulls = [][]api.Geo{
		nil,
		{places[0]},
		{places[1]},
		{places[3]},
		{places[0], {Lat: 48.4, Lon: 10.9}},
		{{Lat: 47, Lon: 7}, {Lat: 47, Lon: 15}, {Lat: 54, Lon: 15}, {Lat: 54, Lon: 7}},
		{{Lat: -18, Lon: 178}, {Lat: -18, Lon: -179}, {Lat: -16, Lon: -179}},
	}
)

// Requests draws requests with all kinds of constraints.
func Requests() *rapid.Generator[sched.Request] {
	return rapid.Custom(func(t *rapid.T) sched.Request {
		req := sched.Request{
			ID:             "acme/a.b.c.d#0",
			Needs:          resources(t, "needs", 0),
			Virtualization: mostlyFirst(runtimes).Draw(t, "virtualization"),
			Arch:           mostlyNil(subset(arches, 1)).Draw(t, "arch"),
			Privileged:     oneIn(t, 9, "privileged"),
			Network:        oneIn(t, 6, "network"),
			Address:        rapid.Bool().Draw(t, "address"),
			Clusters:       mostlyNil(subset(ids, 3)).Draw(t, "clusters"),
			Nodes:          mostlyNil(subset(ids, 3)).Draw(t, "nodes"),
			Avoid:          mostlyNil(subset(ids, 2)).Draw(t, "avoid"),
			Addons:         mostlyNil(subset(addons, 2)).Draw(t, "addons"),
			Features:       mostlyNil(subset(features, 2)).Draw(t, "features"),
			Ports:          mostlyNil(rapid.SliceOfNDistinct(rapid.SampledFrom(ports), 0, 2, rapid.ID[sched.Port])).Draw(t, "ports"),
			Labels:         mostlyNil(rapid.SliceOfN(rapid.Custom(selector), 0, 2)).Draw(t, "labels"),
			Zones:          mostlyNil(rapid.SliceOfN(rapid.Custom(zone), 0, 2)).Draw(t, "zones"),
			Bounds:         mostlyNil(rapid.SliceOfN(rapid.Custom(bound), 0, 2)).Draw(t, "bounds"),
			Domains:        mostlyNil(rapid.SliceOfN(rapid.Custom(fullDomain), 0, 3)).Draw(t, "domains"),
			Peers:          rapid.MapOf(rapid.SampledFrom(ids), rapid.IntRange(0, 3)).Draw(t, "peers"),
			Urgency:        rapid.IntRange(0, 3).Draw(t, "urgency"),
			Convergence:    5 * time.Second,
		}
		if oneIn(t, 8, "has a volume") {
			req.VolumeAt = rapid.SampledFrom(ids).Draw(t, "volume at")
		}
		if oneIn(t, 8, "has a volume with a topology") {
			req.VolumeKeys, req.VolumeIn = "zone=a", subset(ids, 4).Draw(t, "volume in")
		}
		if oneIn(t, 8, "takes turns") {
			req.TogetherAt = rapid.SampledFrom(ids).Draw(t, "together at")
		}
		for _, kind := range mostlyNil(subset(kinds, 2)).Draw(t, "devices") {
			req.Devices = append(req.Devices, api.Device{Name: kind, Count: rapid.IntRange(1, 2).Draw(t, "count")})
		}
		return req
	})
}

// Candidates draws up to 6 candidates with distinct ids, including full and overbooked ones.
func Candidates() *rapid.Generator[[]sched.Candidate] {
	return rapid.Custom(func(t *rapid.T) []sched.Candidate {
		cs := make([]sched.Candidate, rapid.IntRange(0, len(ids)).Draw(t, "n"))
		for i := range cs {
			cs[i] = Candidate(ids[i]).Draw(t, ids[i])
		}
		return cs
	})
}

// Candidate draws one candidate, a node or a cluster.
func Candidate(id string) *rapid.Generator[sched.Candidate] {
	return rapid.Custom(func(t *rapid.T) sched.Candidate {
		c := sched.Candidate{
			ID:       id,
			Level:    rapid.SampledFrom([]sched.Level{sched.Nodes, sched.Clusters}).Draw(t, "level"),
			Out:      mostlyFirst([]string{"", "silent"}).Draw(t, "out"),
			Capacity: resources(t, "capacity", 0),
			Free:     resources(t, "free", -500),
			Slots:    rapid.SliceOfN(rapid.Custom(slot), 0, 4).Draw(t, "rooms"),
			Load:     rapid.IntRange(0, 9).Draw(t, "load"),
			Coord:    maybe(rapid.Custom(coordinate)).Draw(t, "coordinate"),
		}
		if c.Level == sched.Clusters {
			c.Hull = rapid.SampledFrom(hulls).Draw(t, "hull")
			c.Unplaced = rapid.IntRange(-3, 1).Draw(t, "unplaced")
			c.Unplaced = max(c.Unplaced, 0)
			c.Radius = rapid.SampledFrom([]time.Duration{0, 5 * time.Millisecond}).Draw(t, "radius")
			c.Age = rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(t, "age")
			c.Nodes = rapid.IntRange(1, 9).Draw(t, "nodes")
			c.Spread = resources(t, "spread", 0)
			return c
		}
		if !oneIn(t, 6, "odd rooms") {
			c.Slots = []sched.Slot{rapid.Custom(slot).Draw(t, "room")}
		}
		c.Geo = maybe(rapid.SampledFrom(places)).Draw(t, "geo")
		c.Ports = map[sched.Port]int{}
		for _, p := range ports {
			c.Ports[p] = rapid.IntRange(0, 1).Draw(t, "port")
		}
		if oneIn(t, 4, "says what may be published") {
			c.Own = &api.NodePorts{Publish: []api.PortRange{{First: 1, Last: rapid.SampledFrom([]uint16{79, 65535}).Draw(t, "last")}}}
			for _, p := range ports {
				if oneIn(t, 3, "own") {
					c.Own.Own = append(c.Own.Own, api.HostPort{Port: p.Number, Protocol: p.Protocol})
				}
			}
		}
		c.Labels = rapid.MapOfN(rapid.SampledFrom([]string{"zone", "disk"}), rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "labels")
		return c
	})
}

func slot(t *rapid.T) sched.Slot {
	r := sched.Slot{
		Runtimes:   append(subset([]string{sched.Unreported, "process", "runsc"}, 2).Draw(t, "runtimes"), mostlyFirst([]string{"container", "kata"}).Draw(t, "runtime")),
		Arch:       rapid.SampledFrom(append([]string{sched.Unreported}, arches...)).Draw(t, "arch"),
		Privileged: rapid.Bool().Draw(t, "privileged"),
		Network:    rapid.Bool().Draw(t, "network"),
		Full:       oneIn(t, 6, "full"),
		Areas:      subset(append([]string{sched.Unreported}, areas...), 3).Draw(t, "areas"),
		Addons:     subset(append([]string{sched.Unreported}, addons...), 2).Draw(t, "addons"),
		Features:   subset(features, 2).Draw(t, "features"),
		Free:       resources(t, "free", -500),
		Largest:    resources(t, "largest", -500),
		Devices:    rapid.MapOf(rapid.SampledFrom(append([]string{sched.Unreported}, kinds...)), rapid.IntRange(0, 3)).Draw(t, "devices"),
	}
	return r
}

func selector(t *rapid.T) sched.Selector {
	return sched.Selector{
		Key:   rapid.SampledFrom([]string{"zone", "disk"}).Draw(t, "key"),
		Value: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "value"),
		Any:   rapid.Bool().Draw(t, "any"),
		Not:   rapid.Bool().Draw(t, "not"),
	}
}

func zone(t *rapid.T) sched.Zone {
	switch rapid.IntRange(0, 2).Draw(t, "shape") {
	case 0:
		return sched.Zone{Area: rapid.SampledFrom(areas).Draw(t, "area")}
	case 1:
		at := rapid.SampledFrom(places).Draw(t, "centre")
		return sched.Zone{Circle: &at, Radius: kilometres(t)}
	}
	return sched.Zone{Polygon: rapid.SampledFrom(polygons).Draw(t, "polygon")}
}

func kilometres(t *rapid.T) float64 {
	return rapid.SampledFrom([]float64{120, 1000, 9000, 20500}).Draw(t, "km")
}

func bound(t *rapid.T) sched.Bound {
	b := sched.Bound{To: "pre.prod", Unknown: rapid.SampledFrom([]string{"", "", "", "", "its position is being measured"}).Draw(t, "unknown")}
	if b.Unknown == "" {
		b.Points = rapid.SliceOfN(rapid.Custom(position), 0, 3).Draw(t, "points")
	}
	if rapid.Bool().Draw(t, "by distance") {
		b.Km = kilometres(t)
		return b
	}
	b.RTT = time.Duration(rapid.IntRange(1, 120).Draw(t, "rtt")) * time.Millisecond
	b.Measured = rapid.MapOfN(rapid.SampledFrom(ids), rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.IntRange(1, 120).Draw(t, "measured")) * time.Millisecond
	}), 0, 2).Draw(t, "measurements")
	return b
}

func position(t *rapid.T) api.Position {
	return api.Position{
		Node:  api.NodeID(rapid.SampledFrom(append([]string{"", "", ""}, ids...)).Draw(t, "node")),
		Geo:   maybe(rapid.SampledFrom(places)).Draw(t, "geo"),
		Coord: maybe(rapid.Custom(coordinate)).Draw(t, "coordinate"),
	}
}

func coordinate(t *rapid.T) api.Coordinate {
	c := vivaldi.New()
	for i := range 3 {
		c.Vec[i] = rapid.Float64Range(-0.05, 0.05).Draw(t, "part")
	}
	c.Height = rapid.Float64Range(1e-5, 0.01).Draw(t, "height")
	c.Error = rapid.Float64Range(0, 1.5).Draw(t, "error")
	if oneIn(t, 10, "spoilt") {
		c.Vec = c.Vec[:5]
	}
	return c
}

func fullDomain(t *rapid.T) sched.Domain {
	d := sched.Domain{
		By:           rapid.SampledFrom(bys).Draw(t, "by"),
		AntiAffinity: rapid.SampledFrom([]string{"", "db.prod"}).Draw(t, "apart"),
		Have:         rapid.IntRange(1, 3).Draw(t, "have"),
	}
	d.Limit = d.Have
	names := ids
	if d.By == "zone" {
		names = []string{"a", "b"}
	}
	d.Name = rapid.SampledFrom(names).Draw(t, "name")
	return d
}

func resources(t *rapid.T, name string, least int64) api.Resources {
	part := func(of string, seldom int) int64 {
		if least == 0 && !oneIn(t, seldom, name+" any "+of) {
			return 0
		}
		return rapid.Int64Range(least, 2000-16*least).Draw(t, name+" "+of)
	}
	return api.Resources{
		MilliCPU: part("cpu", 2), MemoryMB: part("memory", 2), StorageMB: part("storage", 6), InMbit: part("in", 6), OutMbit: part("out", 6),
	}
}

func subset(of []string, most int) *rapid.Generator[[]string] {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, most, rapid.ID[string])
}

// mostlyNil draws nil in four of five cases, so that requests are not excluded everywhere by one
// of many constraints.
func mostlyNil[E any](g *rapid.Generator[[]E]) *rapid.Generator[[]E] {
	return rapid.Custom(func(t *rapid.T) []E {
		if !oneIn(t, 5, "seldom") {
			return nil
		}
		return g.Draw(t, "some")
	})
}

// mostlyFirst draws the first element most of the time.
func mostlyFirst[E any](of []E) *rapid.Generator[E] {
	return rapid.Custom(func(t *rapid.T) E {
		if !oneIn(t, 5, "seldom") {
			return of[0]
		}
		return rapid.SampledFrom(of).Draw(t, "any")
	})
}

// oneIn draws true in one of n cases.
func oneIn(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == n }

func maybe[E any](g *rapid.Generator[E]) *rapid.Generator[*E] { return rapid.Ptr(g, true) }
