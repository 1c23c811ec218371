package plugintest

import (
	"math"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Fits is a simple reference implementation of sched's filters, without grants. It reports
// whether one slot of the candidate meets the whole request. It checks the hulls of clusters
// by sample points.
func Fits(req *sched.Request, c sched.Candidate) bool {
	among := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	only := req.Nodes
	if c.Level == sched.Clusters {
		only = req.Clusters
	}
	if c.Out != "" || slices.Contains(req.Avoid, c.ID) || !among(only, c.ID) || req.VolumeAt != "" && req.VolumeAt != c.ID || req.TogetherAt != "" && req.TogetherAt != c.ID || req.VolumeKeys != "" && !slices.Contains(req.VolumeIn, c.ID) || !fitsDomains(req, c) {
		return false
	}
	if c.Level == sched.Nodes && (!fitsLabels(req, c) || !nodeFitsPlace(req, c)) || c.Level == sched.Clusters && !clusterFitsPlace(req, c) {
		return false
	}
	for _, p := range req.Ports {
		if c.Ports[p] > 0 {
			return false
		}
		if c.Own == nil {
			continue
		}
		within := func(r api.PortRange) bool { return p.Number >= r.First && p.Number <= r.Last }
		if !slices.ContainsFunc(c.Own.Publish, within) || slices.Contains(c.Own.Own, api.HostPort{Port: p.Number, Protocol: p.Protocol}) {
			return false
		}
	}
	return slices.ContainsFunc(c.Slots, func(r sched.Slot) bool {
		has := func(list []string, s string) bool {
			return slices.Contains(list, s) || c.Level == sched.Clusters && slices.Contains(list, sched.Unreported)
		}
		enough := func(part func(api.Resources) int64) bool {
			need := part(req.Needs)
			return need == 0 || need <= part(r.Largest) && need <= part(r.Free) && need <= part(c.Free)
		}
		for _, a := range req.Addons {
			if !has(r.Addons, a) {
				return false
			}
		}
		for _, f := range req.Features {
			if !slices.Contains(r.Features, f) {
				return false
			}
		}
		for _, z := range req.Zones {
			if z.Area != "" && !has(r.Areas, z.Area) {
				return false
			}
		}
		for _, d := range req.Devices {
			if r.Devices[d.Name] < d.Count && (c.Level == sched.Nodes || r.Devices[sched.Unreported] == 0) {
				return false
			}
		}
		return (r.Privileged || !req.Privileged) && (r.Network || !req.Network) && !(r.Full && req.Address) &&
			has(r.Runtimes, req.Virtualization) && (among(req.Arch, r.Arch) || c.Level == sched.Clusters && r.Arch == sched.Unreported) &&
			enough(func(r api.Resources) int64 { return r.MilliCPU }) && enough(func(r api.Resources) int64 { return r.MemoryMB }) &&
			enough(func(r api.Resources) int64 { return r.StorageMB }) &&
			enough(func(r api.Resources) int64 { return r.InMbit }) && enough(func(r api.Resources) int64 { return r.OutMbit })
	})
}

func fitsLabels(req *sched.Request, c sched.Candidate) bool {
	for _, s := range req.Labels {
		v, ok := c.Labels[s.Key]
		matches := ok && (s.Any || v == s.Value)
		if s.Not {
			matches = !matches
		}
		if !matches {
			return false
		}
	}
	return true
}

func fitsDomains(req *sched.Request, c sched.Candidate) bool {
	for _, d := range req.Domains {
		in := false
		switch d.By {
		case "node":
			in = c.Level == sched.Nodes && c.ID == d.Name
		case "cluster":
			in = c.Level == sched.Nodes || c.ID == d.Name // a cluster's core names its own
		default:
			in = c.Level == sched.Nodes && d.Name != "" && c.Labels[d.By] == d.Name
		}
		if in {
			return false
		}
	}
	return true
}

func nodeFitsPlace(req *sched.Request, c sched.Candidate) bool {
	located := c.Geo != nil && c.Geo.Valid()
	for _, z := range req.Zones {
		if z.Circle != nil && (!located || c.Geo.Kilometres(*z.Circle) > z.Radius) || z.Polygon != nil && (!located || !windsAround(z.Polygon, *c.Geo)) {
			return false
		}
	}
	for _, b := range req.Bounds {
		if b.Unknown != "" {
			return false
		}
		kept := false
		for _, p := range b.Points {
			kept = kept || p.Node != "" && string(p.Node) == c.ID || b.Km > 0 && located && p.Geo != nil && c.Geo.Kilometres(*p.Geo) <= b.Km ||
				b.RTT > 0 && vivaldi.Valid(c.Coord) && vivaldi.Valid(p.Coord) && vivaldi.Distance(*c.Coord, *p.Coord) <= b.RTT
		}
		if rtt, ok := b.Measured[c.ID]; ok && b.RTT > 0 {
			kept = rtt <= b.RTT
		}
		if !kept {
			return false
		}
	}
	return true
}

func clusterFitsPlace(req *sched.Request, c sched.Candidate) bool {
	hull := samples(c.Hull)
	anywhere := len(c.Hull) == 0 || c.Unplaced > 0
	for _, z := range req.Zones {
		in := anywhere || z.Area != ""
		for _, h := range hull {
			in = in || z.Circle != nil && h.Kilometres(*z.Circle) <= z.Radius || z.Polygon != nil && windsAround(z.Polygon, h)
		}
		for _, p := range samples(z.Polygon) {
			in = in || windsAround(c.Hull, p)
		}
		if !in {
			return false
		}
	}
	for _, b := range req.Bounds {
		if b.Unknown != "" {
			return false
		}
		least, anywhere, centre := time.Duration(math.MaxInt64), anywhere || len(b.Points) == 0, vivaldi.Valid(c.Coord)
		for _, p := range b.Points {
			if b.Km > 0 {
				anywhere = anywhere || p.Geo == nil
				for _, h := range hull {
					anywhere = anywhere || p.Geo != nil && h.Kilometres(*p.Geo) <= b.Km
				}
				continue
			}
			if centre = centre && vivaldi.Valid(p.Coord); centre {
				least = min(least, vivaldi.Distance(*c.Coord, *p.Coord)-c.Radius)
			}
		}
		if b.Km > 0 && !anywhere {
			return false
		}
		if rtt, ok := b.Measured[c.ID]; ok {
			least = min(least, rtt)
		}
		if b.RTT > 0 && len(b.Points) > 0 && centre && least > b.RTT {
			return false
		}
	}
	return true
}

// windsAround reports whether the polygon winds around g, by the sum of the angles.
func windsAround(corners []api.Geo, g api.Geo) bool {
	for _, shift := range []float64{-360, 0, 360} {
		turned, lon := 0.0, 0.0
		for i := range corners {
			a, b := corners[i], corners[(i+1)%len(corners)]
			if i == 0 {
				lon = a.Lon
			}
			next := lon + math.Remainder(b.Lon-a.Lon, 360)
			x, y := lon-g.Lon-shift, a.Lat-g.Lat
			u, v := next-g.Lon-shift, b.Lat-g.Lat
			turned += math.Atan2(x*v-u*y, x*u+y*v)
			lon = next
		}
		if math.Abs(turned) > math.Pi {
			return true
		}
	}
	return false
}

func samples(corners []api.Geo) []api.Geo {
	var out []api.Geo
	if len(corners) == 0 {
		return nil
	}
	var mid api.Geo
	lon := corners[0].Lon
	for i := range corners {
		lon += math.Remainder(corners[i].Lon-corners[max(i-1, 0)].Lon, 360)
		mid.Lat, mid.Lon = mid.Lat+corners[i].Lat/float64(len(corners)), mid.Lon+lon/float64(len(corners))
	}
	for i := range corners {
		a, b := corners[i], corners[(i+1)%len(corners)]
		d := math.Remainder(b.Lon-a.Lon, 360)
		for k := range 12 {
			f := float64(k) / 12
			edge := api.Geo{Lat: a.Lat + f*(b.Lat-a.Lat), Lon: a.Lon + f*d}
			for _, g := range []float64{1, 0.75, 0.5, 0.25, 0} { // towards the middle
				lon := mid.Lon + g*math.Remainder(edge.Lon-mid.Lon, 360)
				out = append(out, api.Geo{Lat: mid.Lat + g*(edge.Lat-mid.Lat), Lon: math.Remainder(lon, 360)})
			}
		}
	}
	return out
}
