package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/rollcall"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/routes"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// node is what the cluster knows of one node.
type node struct {
	info     api.NodeInfo // claims, limited by its caps
	claims   api.NodeInfo // as reported
	caps     capping
	traits   traits          // of info
	coord    *api.Coordinate // in the latency space, as the candidate has it; nil: not known
	said     api.Digest      // of claims
	joined   time.Time
	token    string // id of the join token of its last join
	cordoned bool
	draining bool
	purging  bool   // it is ordered to delete its workloads, keys and data
	failing  string // why its last attempt to purge failed

	heard     bool // in this life
	silent    bool
	suspect   bool      // its connection broke, or a sign of life is missing
	answers   bool      // it answers a roll call
	silentAt  time.Time // when it was last declared silent
	lastAlive time.Time

	boot      uint64
	reportSeq uint64
	aliveSeq  uint64
	synced    bool           // a whole report was taken in this boot and life
	must      api.Generation // that it must hold before its report counts, see mustHold
	complete  bool           // no report of this boot is missing: what it did not say is not there
	awaited   bool           // the time after our start lasts until it has reported
	ack       api.Generation // the newest that it said it holds
	cpu, mem  uint8

	gen       api.Generation // of its desired set
	from      api.Generation // before this step's changes
	wanted    api.Digest
	assigned  map[api.InstanceID]*instance
	stays     map[api.InstanceID]api.Assignment // that go when their new placement runs elsewhere
	leaving   map[api.InstanceID]bool           // vacated, and perhaps still running
	booked    map[api.InstanceID]claim          // what is taken; used is its sum
	drop      map[api.InstanceID]bool           // taken away in this step
	put       map[api.InstanceID]bool           // given or changed in this step
	used      api.Resources
	addressed int                      // how many of those have an address on its network, or get one
	yields    [urgencies]api.Resources // of that what is booked for assigned instances, by their urgency
	weight    weight                   // in the sums over all nodes
	free      map[string]int           // devices by kind; the table refers to it
	counts    bool                     // and they may have changed
	shifted   bool                     // its place in the latency space is another
	described bool                     // the candidate has what info says

	ports     map[api.InstanceID][]sched.Port // that instances take on it, assigned or leaving
	published map[sched.Port]int              // how many do
	freed     bool                            // one was given back since the last refresh

	leased int // assigned instances that stop when cut off
	sentAt time.Time

	refusals bounds.Log // of its messages' values

	observed map[api.InstanceID]api.Observed
	room     map[api.InstanceID]claim // of what it was ever seen with, while it is
	unknown  map[api.InstanceID]bool  // that it has and nobody remembers how large
	known    api.Digest
	differ   int // signs of life in a row whose digest was not ours

	net      nodeNet
	reserved map[api.InstanceID]*instance // for which room is kept
	measured measured
	areas    []string // as the core has it noted

	moved map[routes.Place]bool // the core's: places that may have changed in this step
}

type nodeRecord struct {
	Info   api.NodeInfo `json:"info"` // as reported, since caps may change
	Joined time.Time    `json:"joined"`
	// Token is the id of the join token of the last join; empty: an earlier release saved
	// the record.
	Token    string       `json:"token,omitempty"`
	Cordoned bool         `json:"cordoned,omitempty"`
	Draining bool         `json:"draining,omitempty"`
	Purging  bool         `json:"purging,omitempty"`
	Subnet   netip.Prefix `json:"subnet,omitzero"`
	Net      *api.NetSelf `json:"net,omitempty"` // so that routes are whole before it speaks again
	// Existing is whether the node accepted privileged workloads before node caps existed.
	// nil: an earlier release saved the record, and Info.Privileged is the value.
	Existing *bool `json:"existing_privileged,omitempty"`
	// Must is the generation of the desired set that the node must hold before its
	// report counts, see mustHold.
	Must api.Generation `json:"must,omitempty"`
	// Caps are those that an order set.
	Caps api.Caps `json:"caps,omitzero"`
}

// newNode returns a node that claims this. existing and caps are as in nodeRecord.
func (c *Core) newNode(claims api.NodeInfo, existing bool, caps api.Caps) *node {
	n := &node{
		moved:    c.net.moved,
		caps:     capping{existing: existing, ordered: caps},
		assigned: map[api.InstanceID]*instance{},
		leaving:  map[api.InstanceID]bool{},
		booked:   map[api.InstanceID]claim{},
		unknown:  map[api.InstanceID]bool{},
		drop:     map[api.InstanceID]bool{},
		put:      map[api.InstanceID]bool{},
		observed: map[api.InstanceID]api.Observed{},
		room:     map[api.InstanceID]claim{},
	}
	c.takeClaims(n, claims)
	return n
}

// takeClaims stores what a node reports, and the values limited by its caps.
func (c *Core) takeClaims(n *node, claims api.NodeInfo) {
	n.claims, n.said = claims, claims.Digest()
	n.info, n.caps.above = c.cfg.Caps.Of(claims.ID).With(n.caps.ordered).Limit(claims, n.caps.existing)
	n.traits = c.traitsOf(&n.info)
}

func (c *Core) saveNode(n *node) {
	c.journal.Put(kindNode, string(n.info.ID), nodeRecord{
		n.claims, n.joined, n.token, n.cordoned, n.draining, n.purging, n.net.subnet, n.net.self, &n.caps.existing, n.must, n.caps.ordered,
	})
}

// mustHold has the node's reports count only once it holds its present desired set.
// It is called where room is freed that the node did not confirm to be free: a broker
// or a link may still hand the node an older set, and it would begin what that has. It
// is saved, because after a restart the older set is there all the same.
func (c *Core) mustHold(n *node) {
	if n.must != n.gen {
		n.must = n.gen
		c.saveNode(n)
	}
}

func (c *Core) restoreNode(d store.Doc) error {
	var r nodeRecord
	if err := json.Unmarshal(d.Data, &r); err != nil {
		return err
	}
	existing := r.Info.Privileged
	if r.Existing != nil {
		existing = *r.Existing
	}
	n := c.newNode(r.Info, existing, r.Caps)
	n.joined, n.token, n.cordoned, n.draining, n.purging, n.net.self, n.must = r.Joined, r.Token, r.Cordoned, r.Draining, r.Purging, r.Net, r.Must
	c.restoreSubnet(n, r.Subnet)
	c.addNode(n)
	return nil
}

func (c *Core) addNode(n *node) {
	c.nodes[n.info.ID] = n
	c.locate(n, n.traits.areas)
	if n.net.self != nil {
		c.moved(n, n.net.self.Coord)
	}
	c.refresh(n)
}

// joinNode takes a node in. What it says of itself later comes with its reports. token is
// as in JoinNode.
func (c *Core) joinNode(info api.NodeInfo, token string) {
	if n := c.nodes[info.ID]; n != nil {
		if n.token != token {
			n.token = token
			c.endPurge(n)
			c.saveNode(n)
		}
		c.nodeInfo(n, info)
		// It may have lost its store, and with it the count of its starts.
		n.boot = 0
		c.newLife(n)
		n.net.boot, n.net.seq = 0, 0 // and its netmanager too
		c.net.book.Lost(info.ID)
		for _, in := range n.sorted() {
			if in.ended() {
				c.unassign(in, false) // or it would run again there
				c.mustHold(n)
				c.changed(in)
			}
		}
		return
	}
	n := c.newNode(info, false, api.Caps{})
	n.joined, n.token, n.lastAlive = c.wall, token, c.now
	c.addNode(n)
	c.rescale()
	c.saveNode(n)
	c.touch(n)
	c.timers.Set(timerKey{what: timerDead, node: info.ID}, c.now.Add(c.dead()-rollcall.Lead))
	c.aggregateChanged(true)
	c.sayCapped(n)
}

func (c *Core) nodeInfo(n *node, info api.NodeInfo) {
	info.ID = n.info.ID
	if info.Digest() == n.said {
		return
	}
	if !maps.Equal(n.info.Labels, info.Labels) { // they are in other domains now
		for _, in := range n.assigned {
			c.leaves(in.id().Service())
		}
	}
	c.takeClaims(n, info)
	c.claimed(n)
}

// claimed goes on from what counts of a node now.
func (c *Core) claimed(n *node) {
	n.described, n.counts = false, true
	c.locate(n, n.traits.areas)
	c.saveNode(n)
	c.refresh(n)
	c.stood(n)
	c.sayCapped(n)
}

// out says why the node takes no new work, or nothing.
func (n *node) out() string {
	switch {
	case n.silent:
		return "silent"
	case !n.heard:
		return "not heard yet"
	case !n.synced:
		return "has not reported yet" // what it still runs takes room
	case len(n.unknown) > 0:
		return "still has instances of an earlier time" // and nobody knows how large they are
	case n.suspect:
		return "connection lost"
	case n.draining:
		return "draining"
	case n.cordoned:
		return "cordoned"
	case n.info.RuntimeError != "":
		return "runtime: " + n.info.RuntimeError
	case n.info.NetworkError != "":
		return "network: " + n.info.NetworkError
	}
	return ""
}

// closed reports whether the node will take no work for some time; one that was
// not heard for a moment will.
func (n *node) closed() bool {
	return n.silent || n.draining || n.cordoned || n.info.RuntimeError != "" || n.info.NetworkError != ""
}

// The root is told such details, and it knows no node.
const (
	lostDetail    = "its node has not been heard"
	removedDetail = "its node was removed"
)

// removeNode removes a node. With gone, the node has deleted its workloads, so that none
// of them can run twice.
func (c *Core) removeNode(id api.NodeID, gone bool) error {
	n := c.nodes[id]
	if n == nil {
		return c.noNode(id)
	}
	if !gone && !n.silent && n.heard && len(n.assigned)+len(n.leaving) > 0 {
		return fmt.Errorf("node %s is alive and has %d instances; drain it first: %w", id, len(n.assigned)+len(n.leaving), api.ErrConflict)
	}
	if !gone && !n.silent && c.now.Sub(n.lastAlive) < c.dead() && n.leased+len(n.leaving) > 0 {
		return fmt.Errorf("node %s may still run instances that must not run twice; try again in %s: %w", id, c.dead(), api.ErrConflict)
	}
	for _, lid := range step.Keys(n.leaving) {
		n.release(lid)
		if in := c.instances[lid]; in != nil {
			c.dropVacancy(in, id)
		}
	}
	lost := n.sorted()
	for _, in := range lost {
		c.unassign(in, false)
	}
	c.timers.Clear(timerKey{what: timerDead, node: id})
	c.netSilent(n)
	c.endLease(n)
	if n.silent {
		c.silent--
	}
	delete(c.nodes, id)
	delete(c.grown, id)
	delete(c.touched, id)
	if n.awaited {
		c.noLongerAwaited(n)
	}
	c.table.Drop(string(id))
	c.short = shortlist{}
	c.version++
	c.weigh(n, nil)
	c.locate(n, nil)
	c.unmeasured(n)
	reserved := n.reserved
	for _, rid := range step.Keys(reserved) {
		c.unreserve(reserved[rid])
	}
	c.journal.Delete(kindNode, string(id))
	for _, in := range lost {
		if in.ended() {
			c.changed(in)
			continue
		}
		if in.State != api.ClusterScheduled {
			c.become(in, lifecycle.NodeLost, api.ReasonNodeLost, removedDetail)
		}
		c.tryPlace(in)
	}
	for _, rid := range step.Keys(reserved) {
		c.elsewhere(reserved[rid])
	}
	c.aggregateChanged(true)
	return nil
}

func (c *Core) noNode(id api.NodeID) error {
	known := step.Keys(c.nodes)
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	return fmt.Errorf("cluster %s has no node %s (it has %s): %w", c.cfg.ID, id, strings.Join(names, ", "), api.ErrNotFound)
}
