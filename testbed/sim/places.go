package sim

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// city is the location of a cluster's nodes; each is up to half a degree away.
type city struct {
	name, country string
	lat, lon      float64
}

// No two are within 600 km of each other, or within a box of four degrees, so that no node
// is near the edge of a circle or box in an SLA.
var cities = []city{
	{"munich", "de", 48.1, 11.6}, {"oslo", "no", 59.9, 10.8}, {"lisbon", "pt", 38.7, -9.1}, {"athens", "gr", 38, 23.7},
}

// The kinds of devices that nodes may have.
var deviceKinds = []string{api.DeviceGPU, "acme.com/camera"}

// newInfo returns a random machine near a cluster's city.
func (c *chaos) newInfo(cluster int) api.NodeInfo {
	r := c.w.chance
	n := api.NodeInfo{
		Arch: "amd64", OS: "linux", Runtimes: []string{"container"},
		Capacity: api.Resources{
			MilliCPU: int64(500 * (1 + r.IntN(8))), MemoryMB: int64(512 << r.IntN(4)), StorageMB: int64(4096 << r.IntN(4)),
			InMbit: int64(100 << r.IntN(4)), OutMbit: int64(100 << r.IntN(4)),
		},
		Labels: map[string]string{"zone": string(rune('a' + r.IntN(3))), "disk": []string{"ssd", "hdd"}[r.IntN(2)]},
	}
	if r.IntN(5) == 0 {
		n.Arch = "arm64"
	}
	if r.IntN(3) == 0 {
		n.Addons = []string{"cache"}
	}
	for _, kind := range deviceKinds {
		for i := range max(0, r.IntN(4)-1) {
			n.Devices = append(n.Devices, api.NodeDevice{ID: fmt.Sprintf("%s=%d", kind, i), Kinds: []string{kind}})
		}
	}
	at := cities[cluster%len(cities)]
	if r.IntN(8) > 0 { // the others do not say
		n.Location = &api.Geo{Lat: at.lat + r.Float64() - 0.5, Lon: at.lon + r.Float64() - 0.5}
		n.Areas = []string{at.country, at.name}
	}
	return n
}

// habits sets the cluster's configuration, which applies from its next start on.
func (c *chaos) habits(m *ClusterMachine) {
	r := c.w.chance
	m.preempt = r.IntN(2) == 0
	if r.IntN(4) == 0 {
		m.offer = uplink.Offer{
			Share: 0.5 + r.Float64()/2, Detail: []string{uplink.DetailFull, uplink.DetailSlots, uplink.DetailSums}[r.IntN(3)],
			Round: float64(r.IntN(2)) * 0.125,
		}
	}
}

// relabel changes those properties of a node that its operator can change.
func (c *chaos) relabel(n *NodeMachine) {
	r := c.w.chance
	labels := map[string]string{"zone": string(rune('a' + r.IntN(3))), "disk": []string{"ssd", "hdd"}[r.IntN(2)]}
	if r.IntN(4) == 0 {
		labels["retired"] = "yes"
	}
	n.info.Labels, n.info.Addons = labels, nil
	if r.IntN(2) == 0 {
		n.info.Addons = []string{"cache"}
	}
	c.w.note("operators", "%s is now %v %v", n.name, labels, n.info.Addons)
	n.proc.give(node.Info{Info: n.present()})
}

// firstOnes returns the first devices of each kind, whoever has them.
func firstOnes(devices []string) (out []string) {
	for _, id := range devices {
		kind, _, _ := strings.Cut(id, "=")
		if first := kind + "=0"; !slices.Contains(out, first) {
			out = append(out, first)
		} else {
			out = append(out, id)
		}
	}
	return out
}

// Targets of latency constraints. Nodes may not measure the last one.
var users = []string{"8.8.8.8", "1.1.1.1:443", "gate.example.org:443", "10.9.9.9"}

// probe makes a node measure a target. It mostly returns the true round trip.
func (m *NodeMachine) probe(o wire.ProbeOrder) {
	w, out := m.w, wire.Probed{ID: o.ID, How: "icmp"}
	took := m.userTrip(o.Target)
	switch {
	case o.Target == users[len(users)-1]:
		out.Error, out.Refused = "private", true
	case w.oneIn(8):
		out.Error, took = "no answer", o.Wait
	default:
		out.RTT = took
	}
	w.after(took, func() {
		if m.proc.running() {
			m.link.carry(up, out, func() { m.cluster.proc.give(cluster.NodeProbed{Node: m.id, Probed: out}) })
		}
	})
}

// userTrip returns the round trip to a target in the square of roundTrip.
func (m *NodeMachine) userTrip(target string) time.Duration {
	p, q := sha256.Sum256([]byte(m.name+"/net")), sha256.Sum256([]byte(target))
	away := math.Hypot(float64(p[0])-float64(q[0]), float64(p[1])-float64(q[1])) / 256 * 80
	return time.Duration((away + 4 + float64(p[2]%8)/2) * float64(time.Millisecond))
}
