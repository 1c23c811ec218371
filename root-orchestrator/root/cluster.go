package root

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
)

// cluster is what the root knows of one cluster. What is exported is saved.
type cluster struct {
	Info     api.ClusterInfo `json:"info"`
	Joined   time.Time       `json:"joined"`
	Revision api.Revision    `json:"revision"`
	Shares   []netip.Prefix  `json:"shares,omitempty"` // of the instance network, in order
	Grant    *api.Grant      `json:"grant,omitempty"`  // nil, as earlier releases saved it: see grant
	Agg      api.Aggregate   `json:"-"`

	heard     bool // in this life
	silent    bool
	lastHeard time.Time
	beat      time.Duration // the longest of its recent pauses between reports
	boot, seq uint64
	kinds     uint64         // counts how often its nodes became others
	places    uint64         // counts how often they moved
	ack       api.Generation // the newest that it said it holds

	gen      api.Generation // of its desired set
	from     api.Generation // before this step's changes
	floor    api.Generation // the removals since then are in log
	log      []removal
	wanted   api.Digest
	assigned map[api.InstanceID]*instance
	others   int                               // that a sketch leaves out of assigned
	leaving  map[api.InstanceID]api.Generation // withdrawn at, and not confirmed
	put      map[api.InstanceID]bool
	drop     map[api.InstanceID]bool
	sentAt   time.Time

	pending   map[api.InstanceID]reservation // put there, and not in its aggregate yet
	reserved  api.Resources                  // Σ of them
	byRuntime map[string]taken

	observed      map[api.InstanceID]api.Digest
	known         api.Digest
	noticed       noticed
	refusals      bounds.Log // of its messages' values
	capped        time.Time  // when it was last said that it claims more than its caps
	cappedAt      string     // and of what
	refusedValues uint64
	telling       telling
	tenants       map[api.Tenant]*tenantEvents // of the topmost tenants that it has or had lately
	hosted        int                          // the most instances that it had lately
	hostedAt      time.Time                    // and when

	net clusterNet
}

type removal struct {
	gen api.Generation
	id  api.InstanceID
}

// keptRemovals bounds the log that lets a cluster resume without the whole set.
const keptRemovals = 1024

func newCluster(info api.ClusterInfo) *cluster {
	return &cluster{
		Info:     info,
		assigned: map[api.InstanceID]*instance{},
		leaving:  map[api.InstanceID]api.Generation{},
		put:      map[api.InstanceID]bool{},
		drop:     map[api.InstanceID]bool{},
		pending:  map[api.InstanceID]reservation{},
		observed: map[api.InstanceID]api.Digest{},
		tenants:  map[api.Tenant]*tenantEvents{},

		byRuntime: map[string]taken{},
	}
}

func (c *Core) restoreCluster(d store.Doc) error {
	cl := newCluster(api.ClusterInfo{})
	if err := json.Unmarshal(d.Data, cl); err != nil {
		return err
	}
	c.restoreShares(cl)
	c.addCluster(cl)
	return nil
}

func (c *Core) addCluster(cl *cluster) {
	c.clusters[cl.Info.ID] = cl
	c.refresh(cl)
}

func (c *Core) changedCluster(cl *cluster) {
	if c.dirty.first("cluster", string(cl.Info.ID)) {
		c.dirty.clusters = append(c.dirty.clusters, cl.Info.ID)
	}
}

func (c *Core) joinCluster(info api.ClusterInfo, open *bool) error {
	if cl := c.clusters[info.ID]; cl != nil {
		if cl.Info.Tenant != info.Tenant {
			return fmt.Errorf("cluster %s belongs to another tenant; choose another name: %w", info.ID, api.ErrConflict)
		}
		info.Block = cl.Info.Block
		if cl.Info != info {
			cl.Info = info
			c.changedCluster(cl)
		}
		return nil
	}
	// A block is given once: what a forgotten cluster added may still be around.
	info.Block = c.blocks
	c.blocks++
	c.journal.Put(kindMeta, metaBlocks, c.blocks)
	cl := newCluster(info)
	cl.Grant = &api.Grant{Open: info.Tenant == ""}
	if open != nil {
		cl.Grant.Open = *open
	}
	cl.Joined, cl.lastHeard = c.wall, c.now
	c.addCluster(cl)
	c.changedCluster(cl)
	c.touch(cl)
	cl.floor = cl.gen
	c.timers.Set(timerKey{what: timerDead, cluster: info.ID}, c.now.Add(c.cfg.Dead))
	c.event(api.Event{Kind: "cluster", Object: string(info.ID), Cluster: info.ID, Detail: "joined"})
	return nil
}

func (c *Core) forgetCluster(id api.ClusterID) error {
	cl := c.clusters[id]
	if cl == nil {
		return c.noCluster(id)
	}
	c.forgetWants(cl)
	lost := c.byUrgency(cl.assigned)
	leaving := step.Keys(cl.leaving)
	for _, i := range lost {
		switch in := cl.assigned[i]; {
		case in.trialAt(cl) != nil:
			c.endTrial(in)
		case in.Next != nil:
			c.promote(in, api.ClusterScheduled)
		default:
			if !in.ended() { // whose reason says that it has
				in.Reason = api.ReasonClusterLost
			}
			c.takeBack(in, cl)
		}
	}
	delete(c.clusters, id)
	for _, s := range c.services {
		delete(s.refused.by, id)
		delete(s.refused.taken, id)
		delete(s.refused.probes, id)
	}
	c.forgetExports(cl)
	c.timers.Clear(timerKey{what: timerDead, cluster: id})
	c.timers.Clear(timerKey{what: timerAge, cluster: id})
	c.table.Drop(string(id))
	c.journal.Delete(kindCluster, string(id))
	c.event(api.Event{Kind: "cluster", Object: string(id), Cluster: id, Detail: "forgotten"})
	c.show(api.Change{Kind: "cluster", ID: string(id), Revision: c.nextRev()})
	for _, i := range leaving {
		c.nothingLeft(i, cl)
	}
	for _, i := range lost {
		in := c.instances[i]
		switch {
		case in.ended():
			c.changed(in)
			continue
		case in.Cluster != "": // it goes on elsewhere, or did not run here yet
			c.tryPlaceOffered(in)
			continue
		}
		c.become(in, api.Requested, api.ReasonClusterLost, "cluster "+string(id)+" was forgotten")
		c.tryPlace(in)
	}
	for _, i := range lost {
		if s := c.services[i.Service()]; s != nil {
			c.reconcile(s) // a roll-out that waited for this cluster goes on
		}
	}
	return nil
}

func (c *Core) noCluster(id api.ClusterID) error {
	var known []string
	for _, k := range step.Keys(c.clusters) {
		known = append(known, string(k))
	}
	return fmt.Errorf("cluster %s is not known (there is %s): %w", id, strings.Join(known, ", "), api.ErrNotFound)
}

func (c *Core) backFromSilence(cl *cluster) {
	c.timers.Set(timerKey{what: timerDead, cluster: cl.Info.ID}, c.now.Add(c.cfg.Dead))
	c.event(api.Event{Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID, Detail: "is heard again"})
	for _, id := range step.Keys(cl.assigned) {
		if in := cl.assigned[id]; in.trialAt(cl) == nil && in.Reason == api.ReasonClusterLost {
			in.Offered = false
			c.stopWaiting(in)
			c.become(in, in.State, api.ReasonNone, "")
			cl.forget(id) // what its cluster last said was overwritten: have it say it again
		}
	}
}
