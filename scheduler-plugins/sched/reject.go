package sched

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func (q *query) reject(c *Candidate, s stage) api.Rejection {
	r := api.Rejection{Candidate: c.ID, Shortfall: 1}
	switch s {
	case trustStage:
		r.Constraint, r.Need, r.Have = ConstraintTrust, "open to tenant "+string(q.Tenant), "owner "+c.Grant.owner()
	case outStage:
		r.Constraint, r.Need, r.Have = ConstraintOut, "takes work", c.Out
	case avoidStage:
		r.Constraint, r.Have = ConstraintAvoid, "refused or failed it just now"
	case directStage:
		r.Constraint, r.Need = ConstraintNode, strings.Join(q.Nodes, " or ")
		if c.Level == Clusters {
			r.Constraint, r.Need = ConstraintCluster, strings.Join(q.Clusters, " or ")
		}
		r.Have = c.ID
	case volumeStage:
		r.Constraint, r.Need, r.Have = ConstraintVolume, "to be where its volume is", "its volume is on "+q.VolumeAt
		if q.VolumeKeys != "" && (q.VolumeAt == "" || q.VolumeAt == c.ID) {
			r.Need, r.Have = "to have access to its volume", "its volume is accessible where "+q.VolumeKeys
		}
	case togetherStage:
		r.Constraint, r.Need, r.Have = ConstraintTogether, "to be where the service's other instances are", "the service's other instances are in "+q.TogetherAt
	case privilegedStage:
		r.Constraint, r.Need, r.Have = ConstraintPrivileged, "privileged allowed", "forbidden"
	case virtualizationStage:
		r.Constraint, r.Need = ConstraintVirtualization, q.Virtualization
		r.Have = q.slotValues(c, s, func(r *Slot) []string { return r.Runtimes })
	case archStage:
		r.Constraint, r.Need = ConstraintArch, strings.Join(q.Arch, " or ")
		r.Have = q.slotValues(c, s, func(r *Slot) []string { return []string{r.Arch} })
	case networkStage:
		r.Constraint, r.Need, r.Have = ConstraintNetwork, "an overlay network", "none: its workloads have the node's own network or none at all"
		if c.Level == Clusters {
			r.Have = "none on its nodes"
		}
	case featuresStage:
		r.Constraint, r.Need, r.Have = ConstraintFeatures, api.FeatureText(q.missing(c)), "not supported by the release or the runtime of the node"
		if c.Level == Clusters {
			r.Have = "not supported by the release of the cluster or of its nodes"
		}
	case addonsStage:
		r.Constraint, r.Need = ConstraintAddons, strings.Join(q.Addons, " and ")
		r.Have = q.slotValues(c, s, func(r *Slot) []string { return r.Addons })
	case labelsStage:
		miss := q.Labels[api.Mismatch(q.Labels, c.Labels)]
		r.Constraint, r.Need, r.Have = ConstraintLabels, miss.String(), labelText(miss.Key, c.Labels)
	case areaStage:
		r.Constraint, r.Need = ConstraintArea, strings.Join(q.areas(), " and ")
		r.Have = q.slotValues(c, s, func(r *Slot) []string { return r.Areas })
	case geoStage:
		r.Constraint = ConstraintGeo
		q.rejectGeo(c, &r)
	case addressStage:
		r.Constraint, r.Need, r.Have = ConstraintAddress, "an address on the node's network", "none left"
	case deviceStage:
		d, have := q.scarcestDevice(c)
		r.Constraint = ConstraintDevice + d.Name
		r.Need, r.Have = deviceText(d.Count, d.Name), deviceText(have, d.Name)
		r.Short, r.Shortfall = deviceText(d.Count-have, d.Name), missingFraction(int64(d.Count), int64(have))
	case portStage:
		p := unavailablePort(q.Request, c)
		port := strconv.Itoa(int(p.Number)) + "/" + p.Protocol
		r.Constraint, r.Need, r.Have = ConstraintPort, "port "+port+" free", "port "+port+" taken"
		if why := p.refusal(c); why != "" {
			r.Have = "port " + port + ": " + why
		}
	case spreadStage:
		d := q.fullDomain(c, false)
		r.Constraint, r.Need, r.Have = ConstraintSpread, "at most "+strconv.Itoa(d.Limit)+" per "+d.By, strconv.Itoa(d.Have)+" there"
	case antiAffinityStage:
		d := q.fullDomain(c, true)
		r.Constraint, r.Need, r.Have = ConstraintAntiAffinity, "no "+d.AntiAffinity+" on the same "+d.By, strconv.Itoa(d.Have)+" there"
	case latencyStage:
		r.Constraint = ConstraintLatency
		q.rejectLatency(c, &r)
	default:
		q.rejectLack(c, s, &r)
	}
	return r
}

// missing returns the feature that the slots at featuresStage do not have.
func (q *query) missing(c *Candidate) (feature string) {
	for i := range c.Slots {
		if r := &c.Slots[i]; q.slotStage(c, r) == featuresStage {
			feature = lacking(q.Features, r.Features)
		}
	}
	return feature
}

func (q *query) rejectLack(c *Candidate, s stage, r *api.Rejection) {
	d := &dimensions[s-vcpusStage]
	text, part := d.text, d.of
	r.Constraint = d.constraint
	need, have := part(q.Needs), int64(0) // show 0 instead of a negative amount
	for i := range c.Slots {
		if slot := &c.Slots[i]; q.slotStage(c, slot) == s {
			have = max(have, part(slotCapacity(c, slot)))
		}
	}
	if (s == inStage || s == outwardStage) && have == 0 {
		if unknown := q.bandwidthUnknown(c, s); unknown > 0 {
			r.Need, r.Have = text(need), unknownBandwidth(c.Level, unknown)
			return
		}
	}
	r.Need, r.Have = text(need), text(have)
	r.Short, r.Shortfall = text(need-have), missingFraction(need, have)
}

// bandwidthUnknown returns the number of nodes with unknown bandwidth in the slots of c that
// stage s excludes.
func (q *query) bandwidthUnknown(c *Candidate, s stage) (nodes int) {
	for i := range c.Slots {
		if slot := &c.Slots[i]; q.slotStage(c, slot) == s {
			nodes = max(nodes, slot.BandwidthUnknown) // slots overlap: one node, two runtimes
		}
	}
	return nodes
}

// unknownBandwidth explains unknown bandwidth and how to configure it.
func unknownBandwidth(level Level, nodes int) string {
	const fix = "; its operator states it with the key bandwidth in the node's configuration, such as 100/20"
	if level == Clusters {
		return "unknown bandwidth on " + strconv.Itoa(nodes) + " of its nodes" + fix
	}
	return "unknown bandwidth" + fix
}

// scarcestDevice returns the device with the smallest relative shortfall over all slots, and how many
// are free.
func (q *query) scarcestDevice(c *Candidate) (d api.Device, have int) {
	least := 2.0
	for i := range c.Slots {
		slot := &c.Slots[i]
		if q.slotStage(c, slot) != deviceStage {
			continue
		}
		miss := q.Devices[missingDevice(q.Devices, c.Level, slot)]
		n := max(slot.Devices[miss.Name], 0)
		if f := missingFraction(int64(miss.Count), int64(n)); f < least {
			d, have, least = miss, n, f
		}
	}
	return d, have
}

// rejectGeo explains the first zone or distance that the candidate fails.
func (q *query) rejectGeo(c *Candidate, r *api.Rejection) {
	var own position
	own.read(c)
	at, located := own.point, own.located
	hull := hullOf(c)
	for i := range q.Zones {
		z := &q.Zones[i]
		switch {
		case z.Circle != nil:
			r.Need = kilometreText(z.Radius, z.Radius) + " of " + z.Circle.String()
			centre := pointOf(*z.Circle)
			switch {
			case c.Level == Clusters:
				if len(hull) > 0 && !mayBeWithin(hull, *z.Circle, z.Radius) {
					tooFar(r, hullDistance(hull, *z.Circle), z.Radius)
					return
				}
			case !located:
				r.Have = "no location"
				return
			case at.chord(&centre) > chordOf(z.Radius):
				tooFar(r, kilometres(at.chord(&centre)), z.Radius)
				return
			}
		case len(z.Polygon) > 0:
			r.Need, r.Have = "within the polygon", "outside"
			switch {
			case c.Level == Clusters:
				if len(hull) > 0 && !intersect(hull, z.Polygon) {
					return
				}
			case !located:
				r.Have = "no location"
				return
			case !inside(z.Polygon, *c.Geo):
				return
			}
		}
	}
	for i := range q.bounds {
		b := &q.bounds[i]
		if b.Km <= 0 {
			continue
		}
		r.Need = kilometreText(b.Km, b.Km) + " of " + b.To
		switch {
		case b.Unknown != "":
			r.Have = b.Unknown
			return
		case c.Level == Clusters:
			least := math.Inf(1)
			for _, p := range b.Points {
				if len(hull) > 0 && !b.unknownPoint {
					least = min(least, hullDistance(hull, *p.Geo))
				}
			}
			if least > b.Km && !math.IsInf(least, 1) {
				tooFar(r, least, b.Km)
				return
			}
		default:
			chord := b.chordTo(q, &own)
			if math.IsNaN(chord) && !located {
				r.Have = "no location"
				return
			}
			if math.IsNaN(chord) {
				r.Have = "no location of " + b.To
				return
			}
			if chord > b.chord {
				tooFar(r, kilometres(chord), b.Km)
				return
			}
		}
	}
}

func tooFar(r *api.Rejection, have, limit float64) {
	have = max(have, limit) // it may be below because of rounding
	r.Have, r.Short = kilometreText(have, limit), kilometreText(have-limit, 0)
	r.Shortfall = excess(have, limit)
}

// rejectLatency explains the first round trip that is too long.
func (q *query) rejectLatency(c *Candidate, r *api.Rejection) {
	at := position{latency: latencyPointOf(c.Coord), node: nodeOf(c)}
	for i := range q.bounds {
		b := &q.bounds[i]
		if b.Km > 0 {
			continue
		}
		r.Need = milliText(b.RTT, 0) + " to " + b.To
		var rtt time.Duration
		ok := true
		switch {
		case b.Unknown != "":
			r.Have = b.Unknown
			return
		case c.Level == Clusters:
			rtt = b.minRTT(q, c, &at)
		default:
			rtt, _, ok = b.nearest(q, c.ID, &at)
		}
		switch {
		case !ok && at.latency.known:
			r.Have = "no coordinate of " + b.To + " yet"
			return
		case !ok:
			r.Have = "no coordinate yet"
			return
		case rtt > b.RTT:
			r.Have, r.Short = milliText(rtt, b.RTT), milliText(rtt-b.RTT, 0)
			r.Shortfall = excess(float64(rtt), float64(b.RTT))
			return
		}
	}
}

// slotValues lists what the slots that fail at stage s have.
func (q *query) slotValues(c *Candidate, s stage, of func(*Slot) []string) string {
	var have []string
	for i := range c.Slots {
		if r := &c.Slots[i]; q.slotStage(c, r) == s {
			have = append(have, of(r)...)
		}
	}
	slices.Sort(have)
	if have = slices.Compact(have); len(have) == 0 {
		return "none"
	}
	return strings.Join(have, ", ")
}

func (q *query) areas() []string {
	var out []string
	for i := range q.Zones {
		if a := q.Zones[i].Area; a != "" {
			out = append(out, a)
		}
	}
	return out
}

func labelText(key string, labels map[string]string) string {
	if v, ok := labels[key]; ok {
		return key + "=" + v
	}
	return "no " + key
}

// missingFraction returns the missing fraction of the need, in (0, 1].
func missingFraction(need, have int64) float64 { return float64(need-have) / float64(need) }

// excess returns the fraction by which have exceeds limit, in (0, 1].
func excess(have, limit float64) float64 {
	return min(max((have-limit)/have, 1e-9), 1)
}

func deviceText(n int, kind string) string { return strconv.Itoa(n) + " " + kind }

// kilometreText and milliText round a value for people. They keep enough decimals that the
// text differs from that of unlike, to which the value is compared.
func kilometreText(km, unlike float64) string { return rounded(km, unlike) + " km" }

func milliText(d, unlike time.Duration) string {
	const ms = float64(time.Millisecond)
	return rounded(float64(d)/ms, float64(unlike)/ms) + " ms"
}

func rounded(v, unlike float64) string {
	decimals := 1
	if v >= 100 {
		decimals = 0
	}
	for ; ; decimals++ {
		s := strconv.FormatFloat(v, 'f', decimals, 64)
		if decimals >= 4 || v == unlike || s != strconv.FormatFloat(unlike, 'f', decimals, 64) {
			if strings.Contains(s, ".") {
				s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
			}
			return s
		}
	}
}
