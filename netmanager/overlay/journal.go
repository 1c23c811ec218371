package overlay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/peers"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

// The core's own documents. The machines save the others.
const (
	kindMeta  = "meta"
	kindLease = "lease"

	keyMeta, keyLease = "overlay", "lease"
)

type metaRecord struct {
	Boot  uint64         `json:"boot"`
	Coord api.Coordinate `json:"coord"`
}

func (c *Core) saveMeta() {
	c.journal.Put(kindMeta, keyMeta, metaRecord{Boot: c.boot, Coord: c.measure.Reported()})
}

// order is the order in which documents are restored: each after those that it depends on.
var order = []string{
	kindMeta, kindLease, services.KindCounter, services.KindIdent, endpoints.KindAttachment, endpoints.KindFreed, peers.KindPeer,
	services.KindRoute, services.KindSource, subscriptions.Kind, kernelpath.Kind, notice.Kind, peers.KindInUse,
}

// Restore loads the documents that an earlier process saved, or a prefix of them, before Start. It
// ignores other kinds, and deletes documents whose owner was not saved. It fails if a document cannot be
// read.
func (c *Core) Restore(docs []store.Doc) error {
	docs = slices.DeleteFunc(slices.Clone(docs), func(d store.Doc) bool { return !slices.Contains(order, d.Kind) })
	slices.SortFunc(docs, func(a, b store.Doc) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind)), cmp.Compare(a.Key, b.Key))
	})
	for _, d := range docs {
		if err := c.restore(d); err != nil {
			return fmt.Errorf("restore %s %s: %w", d.Kind, d.Key, err)
		}
	}
	c.subs.Restored(c.View().outcome)
	if c.lease != nil {
		c.subs.SetRenewal(c.lease.Interest)
	}
	for _, id := range c.services.IDs() {
		c.release(id) // the subscription to a route may not have been saved
	}
	c.services.Restored()
	c.send, c.late = nil, nil
	return nil
}

func (c *Core) restore(d store.Doc) (err error) {
	switch d.Kind {
	case kindMeta:
		c.journal.Restored(d)
		var m metaRecord
		if err = json.Unmarshal(d.Data, &m); err == nil {
			c.boot = m.Boot
			c.measure.Restore(m.Coord)
		}
	case kindLease:
		c.journal.Restored(d)
		var l wire.NetLease
		if err = json.Unmarshal(d.Data, &l); err == nil {
			err = c.endpoints.SetSubnet(l.Subnet)
			c.useLease(l)
		}
	case services.KindCounter, services.KindIdent:
		return c.services.RestoreIdent(d)
	case endpoints.KindAttachment, endpoints.KindFreed:
		var a endpoints.Attachment
		if a, err = c.endpoints.Restore(d); err == nil && a.Address.IsValid() {
			c.setLocal(a.Service(), a.Address)
		}
	case peers.KindPeer, peers.KindInUse:
		return c.peers.Restore(d)
	case services.KindRoute:
		var r api.Route
		if err = c.services.Restoring(d, c.lease != nil, &r); err == nil && c.lease != nil {
			c.referAll(&r)
			c.applyServices(c.services.SetRoute(r, true))
		}
	case services.KindSource:
		var s wire.Source
		if err = c.services.Restoring(d, c.lease != nil, &s); err == nil && c.lease != nil {
			c.applyPeers(c.peers.Refer(s.Peer))
			c.applyServices(c.services.SetSource(s, true))
		}
	case subscriptions.Kind:
		return c.subs.Restore(d, func(k wire.Subscription) bool { return k.For == "" || c.endpoints.Count(k.For) > 0 })
	case kernelpath.Kind:
		k, known := c.peers.Named(d.Key)
		return c.kernel.Restore(d, k, known)
	case notice.Kind:
		k, known := c.peers.Named(d.Key)
		return c.received.Restore(d, k, known)
	}
	return err
}

var _ step.Core[Input] = (*Core)(nil)
