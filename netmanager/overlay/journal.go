package overlay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// The core's documents.
const (
	kindMeta       = "meta"
	kindLease      = "lease"
	kindAttachment = "attachment" // by key
	kindFreed      = "freed"      // addresses that rest
	kindIdent      = "ident"      // by service
	kindCounter    = "counter"
	kindRoute      = "route"  // by service
	kindSource     = "source" // by address
	kindPeer       = "peer"   // by key, those that came by themselves
	kindPath       = "path"   // by key, kernel paths in use
	kindWant       = "want"   // that were answered
	kindMarks      = "marks"  // by peer's key
	kindTalk       = "talk"   // by key, of peers that we talked with by the tunnel

	keyMeta, keyLease, keyIdent = "overlay", "lease", "ident"
)

type metaRecord struct {
	Boot  uint64         `json:"boot"`
	Coord api.Coordinate `json:"coord"`
}

// freedRecord is who had an address that rests; empty where that is not known.
type freedRecord struct {
	Key api.Key `json:"key"`
}

type identRecord struct {
	Ident plane.Ident `json:"ident"`
}

func (c *Core) saveMeta() {
	c.journal.Put(kindMeta, keyMeta, metaRecord{Boot: c.boot, Coord: c.coord.said})
}

// order in which documents are taken in, so that each finds what it needs.
var order = []string{
	kindMeta, kindLease, kindCounter, kindIdent, kindAttachment, kindFreed, kindPeer, kindRoute, kindSource, kindWant, kindPath, kindMarks, kindTalk,
}

// Restore takes in what an earlier life saved, or any prefix of it, before Start.
// Kinds that are not the core's are left alone. A document that cannot be read is
// an error.
func (c *Core) Restore(docs []store.Doc) error {
	docs = slices.Clone(docs)
	slices.SortFunc(docs, func(a, b store.Doc) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind)), cmp.Compare(a.Key, b.Key))
	})
	var stray []store.Doc
	for _, d := range docs {
		if !slices.Contains(order, d.Kind) {
			continue
		}
		c.journal.Restored(d)
		kept, err := c.restore(d)
		if err != nil {
			return fmt.Errorf("restore %s %s: %w", d.Kind, d.Key, err)
		}
		if !kept {
			stray = append(stray, d)
		}
	}
	for _, d := range stray {
		c.journal.Delete(d.Kind, d.Key) // with the first step's saves
	}
	for k, w := range c.wants {
		if c.outcome(w) != answered {
			c.asking[k.For].pending[k] = struct{}{}
		}
	}
	for _, id := range sortedKeys(c.services) {
		if s := c.services[id]; s.route != nil && len(c.wantsOf(s)) == 0 {
			// Its want was not saved; whoever needs it asks again.
			c.loseRoute(s, false)
		}
	}
	for _, id := range sortedKeys(c.known) {
		if c.services[id] == nil { // what it was given for was not saved
			delete(c.known, id)
			c.journal.Delete(kindIdent, string(id))
		}
	}
	c.link = link{}
	c.send, c.late = nil, nil
	return nil
}

// restore takes one document in. A document that means nothing any more, because
// the one that it belongs to was not saved, is not kept.
func (c *Core) restore(d store.Doc) (kept bool, err error) {
	switch d.Kind {
	case kindMeta:
		var m metaRecord
		if err = json.Unmarshal(d.Data, &m); err == nil {
			c.boot = m.Boot
			if vivaldi.Valid(&m.Coord) {
				c.coord.now, c.coord.said = m.Coord, m.Coord
			}
		}
		return true, err
	case kindLease:
		var l api.NetLease
		if err = json.Unmarshal(d.Data, &l); err != nil {
			return true, err
		}
		o := poolOptions
		o.Quarantine = c.cfg.Quarantine
		c.pool, err = ipam.NewPool(l.Subnet, o)
		c.lease = &l
		return true, err
	case kindCounter:
		return true, c.idents.Restore(d.Data)
	case kindIdent:
		var r identRecord
		if err = json.Unmarshal(d.Data, &r); err == nil {
			c.known[api.ServiceID(d.Key)] = r.Ident
		}
		return true, err
	case kindAttachment:
		a := &attachment{}
		if err = json.Unmarshal(d.Data, a); err != nil {
			return true, err
		}
		if c.at[a.Address] != nil {
			return true, fmt.Errorf("%s has the address %s, too: %w", c.at[a.Address].Attach.Key, a.Address, store.ErrCorrupt)
		}
		if c.pool != nil {
			_ = c.pool.Mark(a.Address) // one of an earlier subnet is none of the pool's
		}
		c.place(a)
		return true, nil
	case kindFreed:
		var r freedRecord
		if err = json.Unmarshal(d.Data, &r); err != nil {
			return true, err
		}
		return c.restoreFreed(d.Key, r.Key), nil
	case kindPeer:
		var p api.Peer
		if err = json.Unmarshal(d.Data, &p); err == nil && c.lease != nil {
			c.keepPeer(p)
		}
		return c.lease != nil, err
	case kindRoute:
		var r api.Route
		if err = json.Unmarshal(d.Data, &r); err == nil && c.lease != nil {
			c.keepRoute(c.service(r.Service), &r)
		}
		return c.lease != nil, err
	case kindSource:
		var s api.Source
		if err = json.Unmarshal(d.Data, &s); err == nil && c.lease != nil {
			c.keepSource(s)
		}
		return c.lease != nil, err
	case kindWant:
		var k api.Want
		if err = json.Unmarshal(d.Data, &k); err != nil {
			return true, err
		}
		if k.For != "" && (c.services[k.For] == nil || len(c.services[k.For].local) == 0) {
			return false, nil
		}
		c.born++
		c.note(&want{Want: k, born: c.born, saved: true})
		return true, nil
	case kindPath:
		var k kernel
		if err = json.Unmarshal(d.Data, &k); err != nil {
			return true, err
		}
		q := c.peerNamed(d.Key)
		if q == nil {
			return false, nil
		}
		q.kernel = k
	case kindMarks:
		var r marksRecord
		if err = json.Unmarshal(d.Data, &r); err != nil {
			return true, err
		}
		q := c.peerNamed(d.Key)
		if q == nil {
			return false, nil
		}
		q.serial, q.marks = r.Serial, r.Marks
	case kindTalk:
		q := c.peerNamed(d.Key)
		if q == nil {
			return false, nil
		}
		q.talks = true
	}
	return true, nil
}

// peerNamed is the peer that documents of that name are about, or nil.
func (c *Core) peerNamed(key string) *peer {
	for k, q := range c.peers {
		if k.String() == key {
			return q
		}
	}
	return nil
}

// restoreFreed has an address rest for as long again: nobody knows since when it did.
func (c *Core) restoreFreed(key string, of api.Key) bool {
	a, err := netip.ParseAddr(key)
	if err != nil || c.pool == nil || c.at[a] != nil || c.pool.Mark(a) != nil {
		return false
	}
	c.freed[a] = of
	return true
}

var _ step.Core[Input] = (*Core)(nil)
