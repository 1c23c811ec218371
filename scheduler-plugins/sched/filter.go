package sched

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// The constraints that exclude a candidate, as in Rejection.Constraint. An Explanation counts
// candidates that fit under Fits.
const (
	ConstraintTrust          = "trust"          // the cluster is not open to the instance's tenant
	ConstraintOut            = "out"            // the candidate takes no work now
	ConstraintAvoid          = "avoid"          // it refused or failed this instance just now
	ConstraintCluster        = "cluster"        // the SLA names other clusters
	ConstraintNode           = "node"           // the SLA names other nodes
	ConstraintPrivileged     = "privileged"     // its operator forbids privileged workloads
	ConstraintVirtualization = "virtualization" // it has no such runtime
	ConstraintArch           = "arch"           // it has another processor architecture
	ConstraintNetwork        = "network"        // it has no overlay network
	ConstraintVolume         = "volume"         // the instance's volumes are elsewhere
	ConstraintTogether       = "together"       // the service's other instances, which it takes turns or shares a volume with, are in another cluster
	ConstraintFeatures       = "features"       // its release does not support a field of the SLA
	ConstraintAddons         = "addons"         // it lacks an addon
	ConstraintLabels         = "labels"         // its labels do not match
	ConstraintArea           = "area"           // it is not in the named area
	ConstraintGeo            = "geo"            // it is outside a circle or polygon, or too many km from a service
	ConstraintAddress        = "address"        // no address on its overlay network is left
	ConstraintDevice         = "device:"        // prefix of a kind of device of which too few are free
	ConstraintPort           = "port"           // another instance publishes the port there
	ConstraintSpread         = "spread"         // the domain has enough instances of the service
	ConstraintAntiAffinity   = "apart"          // anti-affinity; the old name is kept for earlier releases
	ConstraintLatency        = "latency"        // its round trip to an area, a service or a user is too long
	ConstraintVCPUs          = "vcpus"          // too little processor is free
	ConstraintMemory         = "memory"         // too little memory is free
	ConstraintStorage        = "storage"        // too little disk is free
	ConstraintBandwidthIn    = "bandwidth_in"   // too little inbound bandwidth is free
	ConstraintBandwidthOut   = "bandwidth_out"  // too little outbound bandwidth is free
	Fits                     = "fits"
)

// Unreported in a cluster's Slot stands for values that the cluster does not report. As an entry
// of Runtimes, Areas, Addons or Devices, it means that there may be other values too; as
// Arch, that any value is possible. The slots of nodes do not have it.
const Unreported = "*"

// stage is a filter's index in the fixed order. A candidate is rejected by the first filter
// that none of its slots passes.
type stage int

const (
	trustStage stage = iota
	outStage
	avoidStage
	directStage
	volumeStage
	togetherStage
	privilegedStage
	virtualizationStage
	archStage
	networkStage
	featuresStage
	addonsStage
	labelsStage
	areaStage
	geoStage
	addressStage
	deviceStage
	portStage
	spreadStage
	antiAffinityStage
	latencyStage
	vcpusStage
	memoryStage
	storageStage
	inStage
	outwardStage
	fit // passed all filters
)

// constraintsOf lists the constraints that the filter of each stage reports.
var constraintsOf = [fit][]string{
	trustStage:          {ConstraintTrust},
	outStage:            {ConstraintOut},
	avoidStage:          {ConstraintAvoid},
	directStage:         {ConstraintCluster, ConstraintNode},
	volumeStage:         {ConstraintVolume},
	togetherStage:       {ConstraintTogether},
	privilegedStage:     {ConstraintPrivileged},
	virtualizationStage: {ConstraintVirtualization},
	archStage:           {ConstraintArch},
	networkStage:        {ConstraintNetwork},
	featuresStage:       {ConstraintFeatures},
	addonsStage:         {ConstraintAddons},
	labelsStage:         {ConstraintLabels},
	areaStage:           {ConstraintArea},
	geoStage:            {ConstraintGeo},
	addressStage:        {ConstraintAddress},
	deviceStage:         {ConstraintDevice},
	portStage:           {ConstraintPort},
	spreadStage:         {ConstraintSpread},
	antiAffinityStage:   {ConstraintAntiAffinity},
	latencyStage:        {ConstraintLatency},
	vcpusStage:          {ConstraintVCPUs},
	memoryStage:         {ConstraintMemory},
	storageStage:        {ConstraintStorage},
	inStage:             {ConstraintBandwidthIn},
	outwardStage:        {ConstraintBandwidthOut},
}

// stageOf returns the filter that excludes the candidate, or fit.
func (q *query) stageOf(c *Candidate) stage {
	switch {
	case c.Level == Clusters && !c.Grant.admits(q.Tenant):
		return trustStage
	case c.Out != "":
		return outStage
	case slices.Contains(q.Avoid, c.ID):
		return avoidStage
	case !allowsName(q.Request, c):
		return directStage
	case q.VolumeAt != "" && q.VolumeAt != c.ID, q.VolumeKeys != "" && !slices.Contains(q.VolumeIn, c.ID):
		return volumeStage
	case q.TogetherAt != "" && q.TogetherAt != c.ID:
		return togetherStage
	}
	// The candidate reaches the furthest stage that one of its slots reaches.
	reached := privilegedStage
	if !q.Privileged {
		reached = virtualizationStage
	}
	for i := range c.Slots {
		if s := q.slotStage(c, &c.Slots[i]); s > reached {
			reached = s
		}
	}
	return q.candidateStage(c, reached)
}

func allowsName(req *Request, c *Candidate) bool {
	names := req.Nodes
	if c.Level == Clusters {
		names = req.Clusters
	}
	return len(names) == 0 || slices.Contains(names, c.ID)
}

// slotStage returns the first of the filters of slots that the slot fails, or fit.
func (q *query) slotStage(c *Candidate, r *Slot) stage {
	if s := q.kindStage(c.Level, r); s != fit {
		return s
	}
	if missingDevice(q.Devices, c.Level, r) >= 0 {
		return deviceStage
	}
	return resourceStage(q.Needs, slotCapacity(c, r))
}

// kindStage returns the first filter of rarely changing properties that the slot fails, or
// fit.
func (q *query) kindStage(level Level, r *Slot) stage {
	switch {
	case q.Privileged && !r.Privileged:
		return privilegedStage
	case !offers(r.Runtimes, q.Virtualization, level):
		return virtualizationStage
	case len(q.Arch) > 0 && !slices.Contains(q.Arch, r.Arch) && (level == Nodes || r.Arch != Unreported):
		return archStage
	case q.Network && !r.Network:
		return networkStage
	case lacking(q.Features, r.Features) != "":
		return featuresStage
	}
	for _, a := range q.Addons {
		if !offers(r.Addons, a, level) {
			return addonsStage
		}
	}
	for i := range q.Zones {
		if z := &q.Zones[i]; z.Area != "" && !offers(r.Areas, z.Area, level) {
			return areaStage
		}
	}
	if q.Address && r.Full {
		return addressStage
	}
	return fit
}

// offers reports whether a list of a slot has a name, or is an incomplete list of a cluster.
func offers(list []string, name string, level Level) bool {
	return slices.Contains(list, name) || level == Clusters && slices.Contains(list, Unreported)
}

// lacking returns the first feature that a slot does not have, or "". A cluster that reports no
// features has none: its release may ignore the fields of the SLA.
func lacking(need, have []string) string {
	for _, f := range need {
		if !slices.Contains(have, f) {
			return f
		}
	}
	return ""
}

// missingDevice returns the index of the first device of which the slot has too few, or -1.
func missingDevice(devices []api.Device, level Level, r *Slot) int {
	for i, d := range devices {
		if d.Count > r.Devices[d.Name] && (level == Nodes || r.Devices[Unreported] == 0) {
			return i
		}
	}
	return -1
}

// resourceStage returns the first resource that is too scarce, or fit.
func resourceStage(needs, free api.Resources) stage {
	switch {
	case exceeds(needs.MilliCPU, free.MilliCPU):
		return vcpusStage
	case exceeds(needs.MemoryMB, free.MemoryMB):
		return memoryStage
	case exceeds(needs.StorageMB, free.StorageMB):
		return storageStage
	case exceeds(needs.InMbit, free.InMbit):
		return inStage
	case exceeds(needs.OutMbit, free.OutMbit):
		return outwardStage
	}
	return fit
}

// exceeds reports whether a need is not met. A need of 0 is always met, even on an overbooked
// candidate.
func exceeds(need, have int64) bool { return need > 0 && need > have }

// slotCapacity returns what one instance can get in the slot. It is limited by Largest,
// by what is free in the slot, and by what is free on the candidate: slots may overlap (a node
// with two runtimes), and reservations are booked on the candidate only.
func slotCapacity(c *Candidate, r *Slot) api.Resources { return r.Largest.Min(r.Free).Min(c.Free) }

// candidateStage returns the first filter before limit of the whole candidate that it fails, or
// limit.
func (q *query) candidateStage(c *Candidate, limit stage) stage {
	if limit > labelsStage && c.Level == Nodes && api.Mismatch(q.Labels, c.Labels) >= 0 {
		return labelsStage // checked for nodes only: labels stay within a cluster
	}
	var at position
	if q.boundsLocation() && c.Level == Nodes && limit > geoStage {
		at.read(c)
	}
	switch {
	case limit > geoStage && !q.meetsZones(c, &at):
		return geoStage
	case limit > portStage && unavailablePort(q.Request, c) != (Port{}):
		return portStage
	case limit > spreadStage && q.fullDomain(c, false) != nil:
		return spreadStage
	case limit > antiAffinityStage && q.fullDomain(c, true) != nil:
		return antiAffinityStage
	case limit > latencyStage && !q.meetsRTT(c, &at):
		return latencyStage
	}
	return limit
}

// unavailablePort returns the first port of the request that is already published on the candidate or
// may not be published there, or the zero Port.
func unavailablePort(req *Request, c *Candidate) Port {
	for _, p := range req.Ports {
		if c.Ports[p] > 0 || p.refusal(c) != "" {
			return p
		}
	}
	return Port{}
}

// refusal returns why the port may not be published on the candidate, or "" if it may.
func (p Port) refusal(c *Candidate) string {
	return c.Own.Refuses(api.HostPort{Port: p.Number, Protocol: p.Protocol})
}

// meetsZones reports whether the candidate is in all circles and polygons and within all
// distances. For a cluster, it reports whether this is possible for one of its nodes.
func (q *query) meetsZones(c *Candidate, at *position) bool {
	if c.Level == Clusters {
		return q.clusterMayMeetZones(c)
	}
	return q.nodeMeetsZones(at)
}

func (q *query) nodeMeetsZones(at *position) bool {
	for i := range q.circles {
		if z := &q.circles[i]; !at.located || at.point.chord(&z.centre) > z.chord {
			return false
		}
	}
	for i := range q.Zones {
		if z := &q.Zones[i]; len(z.Polygon) > 0 && (!at.located || !inside(z.Polygon, at.geo)) {
			return false
		}
	}
	for i := range q.bounds {
		if b := &q.bounds[i]; b.Km > 0 && (b.Unknown != "" || !(b.chordTo(q, at) <= b.chord)) {
			return false
		}
	}
	return true
}

func (q *query) clusterMayMeetZones(c *Candidate) bool {
	hull := hullOf(c)
	for i := range q.Zones {
		switch z := &q.Zones[i]; {
		case len(hull) == 0:
		case z.Circle != nil && !mayBeWithin(hull, *z.Circle, z.Radius):
			return false
		case len(z.Polygon) > 0 && !intersect(hull, z.Polygon):
			return false
		}
	}
	for i := range q.bounds {
		b := &q.bounds[i]
		switch {
		case b.Km <= 0:
		case b.Unknown != "":
			return false
		case len(hull) > 0 && !b.unknownPoint && len(b.geo) > 0 && !slices.ContainsFunc(b.Points, func(p api.Position) bool { return mayBeWithin(hull, *p.Geo, b.Km) }):
			return false
		}
	}
	return true
}

// meetsRTT reports whether the candidate meets all bounds on round trips. For a cluster, it
// reports whether this is possible for one of its nodes.
func (q *query) meetsRTT(c *Candidate, at *position) bool {
	if c.Level == Nodes {
		return q.nodeMeetsRTT(c.ID, at)
	}
	own := position{latency: latencyPointOf(c.Coord)} // a cluster's centre
	for i := range q.bounds {
		if b := &q.bounds[i]; b.Km <= 0 && (b.Unknown != "" || b.minRTT(q, c, &own) > b.RTT) {
			return false
		}
	}
	return true
}

func (q *query) nodeMeetsRTT(id string, at *position) bool {
	for i := range q.bounds {
		b := &q.bounds[i]
		if b.Km > 0 {
			continue
		}
		if b.Unknown != "" {
			return false
		}
		if rtt, _, ok := b.nearest(q, id, at); !ok || rtt > b.RTT {
			return false
		}
	}
	return true
}

// minRTT returns a lower bound of the round trip from any node of the cluster to the bound's
// points; 0 if unknown. By the triangle inequality, no node is nearer than the distance of
// the cluster's centre minus its radius.
func (b *bound) minRTT(q *query, c *Candidate, at *position) time.Duration {
	if !at.latency.known || b.unknownPoint || len(b.coord) == 0 {
		return 0
	}
	rtt, _, _ := b.nearest(q, "", at)
	rtt = max(rtt-c.Radius, 0)
	if measured, ok := b.Measured[c.ID]; ok {
		rtt = min(rtt, measured)
	}
	return rtt
}
