package root

import (
	"reflect"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// ageStep is how coarsely the age of what is known of a cluster counts: its
// candidate changes that often while nothing is heard of it, and no more.
const ageStep = 5 * time.Second

// refresh brings the cluster's candidate up to date: its aggregate less what the
// root placed there since.
func (c *Core) refresh(cl *cluster) {
	agg := &cl.Agg
	cand := sched.Candidate{
		ID: string(cl.Info.ID), Level: sched.Clusters, Out: cl.out(), Capacity: agg.Capacity,
		Grant: &sched.Grant{Owner: cl.Info.Tenant, Grant: cl.grant()},
		Free:  agg.Free.Minus(cl.reserved), Rooms: cl.rooms(), Load: len(cl.assigned) + cl.others,
		Hull: agg.Hull, Unplaced: agg.Unplaced, Spread: agg.StdDev, Nodes: agg.Nodes,
	}
	if cl.heard {
		cand.Age = max(0, c.now.Sub(cl.lastHeard)).Truncate(ageStep)
	}
	if l := agg.Latency; l != nil {
		cand.Coord, cand.Radius = &l.Center, l.Radius
	}
	c.table.Put(cand)
}

func (cl *cluster) out() string {
	switch {
	case cl.silent:
		return "silent"
	case !cl.heard:
		return "not heard yet"
	case cl.Agg.Nodes == 0:
		return "no node takes work"
	}
	return ""
}

// rooms are the cluster's kinds of nodes. One that tells of no kinds, as its
// operator may choose, may have any, but an overlay network only on the nodes that
// it says have one.
func (cl *cluster) rooms() []sched.Room {
	agg := &cl.Agg
	if len(agg.Slots) == 0 && agg.Nodes > 0 {
		free := agg.Free.Minus(cl.reserved)
		return []sched.Room{{
			Runtimes: untold, Arch: sched.Untold, Privileged: !cl.grant().Caps.NoPrivileged, Network: agg.Overlay == nil || *agg.Overlay > 0, Areas: untold, Addons: untold,
			Free: free, Largest: agg.Largest.Min(free), Devices: cl.untoldDevices(),
			BandwidthUnknown: agg.BandwidthUnknown,
		}}
	}
	rooms := make([]sched.Room, 0, len(agg.Slots))
	for i := range agg.Slots {
		s := &agg.Slots[i]
		taken := cl.byRuntime[s.Runtime]
		free := s.Free.Minus(taken.Resources)
		rooms = append(rooms, sched.Room{
			Runtimes: []string{s.Runtime}, Arch: s.Arch, Privileged: s.Privileged, Network: s.Network,
			Areas: s.Areas, Addons: s.Addons, Free: free, Largest: s.Largest.Min(free), Devices: taken.left(s.Devices),
			BandwidthUnknown: s.BandwidthUnknown,
		})
	}
	return rooms
}

var (
	untold        = []string{sched.Untold}
	untoldDevices = map[string]int{sched.Untold: 1 << 20}
)

// untoldDevices are any, unless caps name some.
func (cl *cluster) untoldDevices() map[string]int {
	if caps := cl.grant().Caps.Devices; len(caps) > 0 {
		return caps
	}
	return untoldDevices
}

// grown says in what way a cluster may take what it could not take before.
type grown int

const (
	notGrown grown = iota
	moved          // it may be near enough to something, or in a place
	roomier        // there is more of anything
)

// growth compares a candidate with what it was.
func growth(was, is *sched.Candidate) grown {
	switch {
	case is.Out != "":
		return notGrown
	case was.Out != "", !reflect.DeepEqual(was.Grant, is.Grant), len(is.Rooms) > len(was.Rooms), !is.Free.Fits(was.Free):
		return roomier
	}
	for i := range is.Rooms {
		a, b := &was.Rooms[i], &is.Rooms[i]
		if !b.Largest.Fits(a.Largest) || a.Arch != b.Arch || a.Privileged != b.Privileged || a.Network != b.Network ||
			!slices.Equal(a.Runtimes, b.Runtimes) || !slices.Equal(a.Areas, b.Areas) || !slices.Equal(a.Addons, b.Addons) {
			return roomier
		}
		for kind, n := range b.Devices {
			if n > a.Devices[kind] {
				return roomier
			}
		}
	}
	if is.Unplaced > was.Unplaced || !slices.Equal(is.Hull, was.Hull) || movedBy(was, is) {
		return moved
	}
	return notGrown
}

// movedBy reports whether the candidate's extent in the latency space changed by
// more than the jitter of coordinates.
func movedBy(was, is *sched.Candidate) bool {
	if is.Coord == nil || was.Coord == nil {
		return is.Coord != was.Coord
	}
	return farther(was.Coord, is.Coord, is.Radius-was.Radius)
}

// farther reports whether a cluster whose centre moved and whose radius grew may
// reach what it did not, by more than the jitter of coordinates.
func farther(was, is *api.Coordinate, grown time.Duration) bool {
	const jitter = time.Millisecond
	return distance(*was, *is)+grown > jitter
}

// kindsDiffer reports whether a cluster's nodes are others than they were, whatever
// is free on them.
func kindsDiffer(was, is *api.Aggregate) bool {
	if (was.Overlay == nil) != (is.Overlay == nil) || was.Overlay != nil && *was.Overlay != *is.Overlay {
		return true
	}
	return was.Nodes != is.Nodes || was.Capacity != is.Capacity || was.BandwidthUnknown != is.BandwidthUnknown || !slices.EqualFunc(was.Slots, is.Slots, func(a, b api.Slot) bool {
		return a.Runtime == b.Runtime && a.Arch == b.Arch && a.Privileged == b.Privileged && a.Network == b.Network &&
			a.Nodes == b.Nodes && a.BandwidthUnknown == b.BandwidthUnknown && slices.Equal(a.Areas, b.Areas) && slices.Equal(a.Addons, b.Addons)
	})
}

// placesDiffer reports whether a cluster's nodes may be elsewhere than they were.
func placesDiffer(was, is *api.Aggregate) bool {
	a, b := was.Latency, is.Latency
	switch {
	case was.Unplaced != is.Unplaced, !slices.Equal(was.Hull, is.Hull), (a == nil) != (b == nil):
		return true
	case a == nil:
		return false
	}
	return farther(&a.Center, &b.Center, b.Radius-a.Radius)
}

// timeToAge notes when the cluster's candidate is older by a step.
func (c *Core) timeToAge(cl *cluster) {
	next := cl.lastHeard.Add(c.now.Sub(cl.lastHeard).Truncate(ageStep) + ageStep)
	c.timers.Set(timerKey{what: timerAge, cluster: cl.Info.ID}, next)
}

func (c *Core) age(cl *cluster) {
	if cl.silent {
		return // it is out; nothing hangs on how long
	}
	c.refresh(cl)
	c.timeToAge(cl)
}
