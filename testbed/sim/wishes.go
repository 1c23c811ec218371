package sim

import (
	"crypto/sha256"
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// wishes adds one or two requirements to a service that some node mostly meets.
func (p *person) wishes(m *api.Microservice) {
	w := p.w
	m.Priority = p.priority(m.Name)
	if p.keepsData(m.Name) {
		m.Volumes = []api.Volume{{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 64}}
		if p.movesData(m.Name) {
			m.Move = api.MoveVolume
		}
	}
	pick := func(n int) bool { return w.chance.IntN(n) == 0 }
	if pick(4) {
		m.Storage = int64(512 << w.chance.IntN(4))
	}
	if pick(6) {
		m.BandwidthIn, m.BandwidthOut = int64(10+w.chance.IntN(60)), int64(10+w.chance.IntN(60))
	}
	if pick(8) {
		m.VGPUs = 1 + w.chance.IntN(2)
	}
	if pick(10) {
		m.Devices = []api.Device{{Name: deviceKinds[1], Count: 1}}
	}
	for range w.chance.IntN(3) {
		if pick(2) {
			p.constrain(m)
		}
	}
	if m.Name != firstService && pick(8) {
		k := api.LinkConstraint{Rigidness: float64(5 + w.chance.IntN(20)), ConvergenceTime: 2}
		switch w.chance.IntN(3) {
		case 0:
			k.Type, k.Threshold = api.LinkBandwidth, float64(5+w.chance.IntN(20))
		case 1:
			k.Type, k.Threshold = api.LinkLatency, float64(30+w.chance.IntN(90))
		default:
			k.Type, k.Threshold = api.LinkGeo, 400
		}
		m.Connectivity = []api.Connectivity{{Target: firstService + ".v1", Constraints: []api.LinkConstraint{k}}}
	}
}

// firstService is in each application, so that other services can refer to it.
const firstService = "s0"

// constrain adds a constraint of any type.
func (p *person) constrain(m *api.Microservice) {
	r, w := p.w.chance, p.w
	at := cities[r.IntN(len(w.clusters))%len(cities)]
	k := api.Constraint{Rigidness: float64(5 + r.IntN(20)), ConvergenceTime: float64(1 + r.IntN(3))}
	latency := func() { k.Type, k.Threshold = api.ConstrainLatency, float64(30+r.IntN(90)) }
	switch r.IntN(11) {
	case 0:
		k.Type, k.Labels = api.ConstrainLabels, []string{[]string{"zone=a", "zone!=b", "disk=ssd", "!retired", "zone"}[r.IntN(5)]}
	case 1:
		k.Type, k.Needs = api.ConstrainAddons, []string{"cache"}
	case 2:
		k.Type, k.Area = api.ConstrainGeo, []string{at.name, at.country}[r.IntN(2)]
	case 3:
		k.Type, k.Location, k.Threshold = api.ConstrainGeo, api.Geo{Lat: at.lat, Lon: at.lon}.String(), 300
	case 4:
		k.Type = api.ConstrainGeo
		for _, by := range [][2]float64{{-2, -2}, {-2, 2}, {2, 2}, {2, -2}} {
			k.Polygon = append(k.Polygon, api.Geo{Lat: at.lat + by[0], Lon: at.lon + by[1]}.String())
		}
	case 5:
		latency()
		k.Area = at.name
	case 6, 7:
		latency()
		k.Target = users[r.IntN(len(users))]
		if k.Target == users[len(users)-1] && r.IntN(2) == 0 {
			k.Target = users[0]
		}
	case 8:
		k = api.Constraint{Type: api.ConstrainSpread, Limit: 1 + r.IntN(2), By: []string{"node", "zone", "cluster"}[r.IntN(3)]}
	case 9:
		if m.Name == firstService {
			return
		}
		latency()
		k.Service = firstService + ".v1"
	default:
		if m.Name == firstService {
			return
		}
		k = api.Constraint{Type: api.ConstrainAntiAffinity, Services: []string{firstService + ".v1"}, By: []string{"node", "zone"}[r.IntN(2)]}
	}
	m.Constraints = append(m.Constraints, k)
}

func (p *person) urgency(service string) int {
	u, ok := p.urgencies[service]
	if !ok {
		u = api.Microservice{Priority: p.priority(service)}.Urgency()
		p.urgencies[service] = u
	}
	return u
}

// keepsData reports whether a service has a local volume. That never changes, so that its volumes are used
// again after others were deleted.
func (p *person) keepsData(service string) bool {
	h := sha256.Sum256([]byte(fmt.Sprintf("%s %s", p.app(), service)))
	return service != firstService && h[1]%6 == 0
}

// movesData reports whether a service with a local volume moves with it.
func (p *person) movesData(service string) bool {
	h := sha256.Sum256([]byte(fmt.Sprintf("%s %s", p.app(), service)))
	return h[2]%3 > 0
}

// priority of a service never changes, so that preemptions can be checked later.
func (p *person) priority(service string) string {
	h := sha256.Sum256([]byte(fmt.Sprintf("%s %s", p.app(), service)))
	return append([]string{""}, api.Priorities...)[int(h[0])%(1+len(api.Priorities))]
}
