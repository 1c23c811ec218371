package sched

import (
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// The constraints that rule a candidate out, as a Rejection names them. Fits is
// the name under which an Explanation counts candidates that none ruled out.
const (
	ConstraintOut            = "out"            // it takes no work now
	ConstraintAvoid          = "avoid"          // it refused or failed this instance just now
	ConstraintCluster        = "cluster"        // the SLA names other clusters
	ConstraintNode           = "node"           // the SLA names other nodes
	ConstraintPrivileged     = "privileged"     // its operator forbids privileged workloads
	ConstraintVirtualization = "virtualization" // it has no such runtime
	ConstraintArch           = "arch"           // it has another processor
	ConstraintNetwork        = "network"        // it has no overlay network
	ConstraintAddons         = "addons"         // it lacks an addon
	ConstraintLabels         = "labels"         // its labels do not match
	ConstraintArea           = "area"           // it is not in the area of that name
	ConstraintGeo            = "geo"            // it is outside a circle or polygon, or too many km from a service
	ConstraintDevice         = "device:"        // too few devices of the kind that follows are free
	ConstraintPort           = "port"           // another instance publishes that port there
	ConstraintSpread         = "spread"         // enough instances of the service are there
	ConstraintApart          = "apart"          // an instance of a service is there from which it is to be apart
	ConstraintLatency        = "latency"        // its round trip to an area, a service or a user is too long
	ConstraintVCPUs          = "vcpus"          // too little processor is free
	ConstraintMemory         = "memory"         // too little memory is free
	ConstraintStorage        = "storage"        // too little disk is free
	ConstraintBandwidthIn    = "bandwidth_in"   // too little of what its network takes in is free
	ConstraintBandwidthOut   = "bandwidth_out"  // too little of what its network sends is free
	Fits                     = "fits"
)

// Untold stands in a cluster's room for what the cluster does not tell: among
// Runtimes, Areas and Addons and as a kind of Devices it means that there may be
// any other, as Arch that there may be each. A node's room has no such thing.
const Untold = "*"

// stage is a filter's place in the fixed order. A candidate is rejected by the
// first filter that no room of it passes, so that a reason names the one thing
// that stands in the way before all later ones.
type stage int

const (
	outStage stage = iota
	avoidStage
	directStage
	privilegedStage
	virtualizationStage
	archStage
	networkStage
	portStage
	vcpusStage
	memoryStage
	fit // passed them all
)

// stageOf is the filter that rules the candidate out, or fit.
func stageOf(req *Request, c *Candidate) stage {
	switch {
	case c.Out != "":
		return outStage
	case slices.Contains(req.Avoid, c.ID):
		return avoidStage
	case !named(req, c):
		return directStage
	}
	// A candidate gets as far as the room that gets furthest.
	reached := privilegedStage
	if !req.Privileged {
		reached = virtualizationStage
	}
	for i := range c.Rooms {
		if s := roomStage(req, c, &c.Rooms[i]); s > reached {
			reached = s
		}
	}
	return reached
}

func named(req *Request, c *Candidate) bool {
	names := req.Nodes
	if c.Level == Clusters {
		names = req.Clusters
	}
	return len(names) == 0 || slices.Contains(names, c.ID)
}

func roomStage(req *Request, c *Candidate, r *Room) stage {
	free := available(c, r)
	switch {
	case req.Privileged && !r.Privileged:
		return privilegedStage
	case !slices.Contains(r.Runtimes, req.Virtualization):
		return virtualizationStage
	case len(req.Arch) > 0 && !slices.Contains(req.Arch, r.Arch):
		return archStage
	case req.Network && !r.Network:
		return networkStage
	case taken(req, c) != (Port{}):
		return portStage
	case lacks(req.Needs.MilliCPU, free.MilliCPU):
		return vcpusStage
	case lacks(req.Needs.MemoryMB, free.MemoryMB):
		return memoryStage
	}
	return fit
}

// available is what one instance can get in the room: never more than the
// largest place in it, than the room has left, or than the whole candidate has
// left. The last counts where rooms overlap (one node, two runtimes) and where
// the owner has booked reservations on the candidate alone.
func available(c *Candidate, r *Room) api.Resources {
	return api.Resources{
		MilliCPU: min(r.Largest.MilliCPU, r.Free.MilliCPU, c.Free.MilliCPU),
		MemoryMB: min(r.Largest.MemoryMB, r.Free.MemoryMB, c.Free.MemoryMB),
	}
}

// taken is the first port of the request that the candidate has given away.
func taken(req *Request, c *Candidate) Port {
	for _, p := range req.Ports {
		if c.Ports[p] > 0 {
			return p
		}
	}
	return Port{}
}

// lacks reports whether a need is not met. Who needs nothing lacks nothing,
// even of a candidate that is booked over.
func lacks(need, have int64) bool { return need > 0 && need > have }

// reject says why the candidate, ruled out at stage s, is ruled out.
func reject(req *Request, c *Candidate, s stage) api.Rejection {
	r := api.Rejection{Candidate: c.ID, Shortfall: 1}
	switch s {
	case outStage:
		r.Constraint, r.Need, r.Have = ConstraintOut, "takes work", c.Out
	case avoidStage:
		r.Constraint, r.Have = ConstraintAvoid, "refused or failed it just now"
	case directStage:
		r.Constraint, r.Need = ConstraintNode, strings.Join(req.Nodes, " or ")
		if c.Level == Clusters {
			r.Constraint, r.Need = ConstraintCluster, strings.Join(req.Clusters, " or ")
		}
		r.Have = c.ID
	case privilegedStage:
		r.Constraint, r.Need, r.Have = ConstraintPrivileged, "privileged allowed", "forbidden"
	case virtualizationStage:
		r.Constraint, r.Need = ConstraintVirtualization, req.Virtualization
		r.Have = offered(req, c, s)
	case archStage:
		r.Constraint, r.Need = ConstraintArch, strings.Join(req.Arch, " or ")
		r.Have = offered(req, c, s)
	case networkStage:
		r.Constraint, r.Need, r.Have = ConstraintNetwork, "an overlay network", "none"
	case portStage:
		p := taken(req, c)
		port := strconv.Itoa(int(p.Number)) + "/" + p.Protocol
		r.Constraint, r.Need, r.Have = ConstraintPort, "port "+port+" free", "port "+port+" taken"
	case vcpusStage:
		need, have := req.Needs.MilliCPU, most(req, c, s)
		r.Constraint, r.Need, r.Have = ConstraintVCPUs, vcpus(need), vcpus(have)
		r.Short, r.Shortfall = vcpus(need-have), share(need, have)
	case memoryStage:
		need, have := req.Needs.MemoryMB, most(req, c, s)
		r.Constraint, r.Need, r.Have = ConstraintMemory, mebibytes(need), mebibytes(have)
		r.Short, r.Shortfall = mebibytes(need-have), share(need, have)
	}
	return r
}

// most is the most that a room which fails at stage s, and no earlier, has free.
func most(req *Request, c *Candidate, s stage) int64 {
	best, found := int64(0), false
	for i := range c.Rooms {
		if roomStage(req, c, &c.Rooms[i]) != s {
			continue
		}
		free := available(c, &c.Rooms[i])
		have := free.MilliCPU
		if s == memoryStage {
			have = free.MemoryMB
		}
		if !found || have > best {
			best, found = have, true
		}
	}
	return max(best, 0) // booked over is nothing left, to a person
}

// offered lists the runtimes or processors of the rooms that fail at stage s.
func offered(req *Request, c *Candidate, s stage) string {
	var have []string
	for i := range c.Rooms {
		r := &c.Rooms[i]
		switch {
		case roomStage(req, c, r) != s:
		case s == archStage:
			have = append(have, r.Arch)
		default:
			have = append(have, r.Runtimes...)
		}
	}
	slices.Sort(have)
	if have = slices.Compact(have); len(have) == 0 {
		return "none"
	}
	return strings.Join(have, ", ")
}

// share is how much of the need is missing, more than 0 and at most 1.
func share(need, have int64) float64 {
	return float64(need-have) / float64(need)
}

func vcpus(milli int64) string {
	return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64) + " vCPU"
}

func mebibytes(n int64) string { return strconv.FormatInt(n, 10) + " MiB" }
