// Package audit keeps the access records of a cluster in its store: who reached which instance through the
// cluster's own port, and how it ended. The root records the access that goes through it.
//
//	a, err := audit.New(audit.Options{Cluster: "munich", Store: st, Loaded: docs, Notify: notify})
//	err = a.Record(ctx, instance, "alice", "exec env by alice", true)
package audit

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
)

// Kind is the kind of the documents in the cluster's store.
const Kind = "access"

// notifyEvery is the minimum time between two notices to the root, so that users leave room for the
// notices of the cluster itself.
const notifyEvery = time.Minute

var kept = fairshare.Declare(fairshare.Bound{
	Resource: "access records that a cluster keeps", Total: 1024, Per: "topmost tenant",
	Beyond: "the oldest record of the tenant with most is replaced", Attack: "TestOneTenantEvictsItsOwnRecords",
})

// Options configure an Audit.
type Options struct {
	Cluster api.ClusterID
	Store   store.Store
	Loaded  []store.Doc // of the store
	// Notify passes a notice to the root. It may be called from any goroutine. nil: none.
	Notify func(ctx context.Context, text string)
	// Recorded is called with each record that is durable, from any goroutine; concurrent ones may be out of order. nil: it is
	// not called.
	Recorded func(api.Event)
	Now      func() time.Time // default time.Now
}

// Audit keeps access records. It is safe for concurrent use.
type Audit struct {
	opt   Options
	table *docs.Table[doc]

	mu       sync.Mutex // guards the following
	log      *eventlog.Log
	seq      api.Revision // of the newest record
	notified time.Time
	unsaid   int // records without a notice
}

type doc struct {
	Slot  int       `json:"slot"`
	Event api.Event `json:"event"`
}

// New returns the records in a store.
func New(ctx context.Context, o Options) (*Audit, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Audit{opt: o, table: docs.New[doc](Kind, o.Store), log: eventlog.NewLog(kept.Total)}
	if err := a.table.Load(o.Loaded); err != nil {
		return nil, err
	}
	for d := range a.table.Each() {
		a.log.Restore(d.Slot, d.Event)
		a.seq = max(a.seq, d.Event.Seq)
	}
	return a, a.delete(ctx, a.log.Restored())
}

func (a *Audit) delete(ctx context.Context, slots []int) error {
	for _, slot := range slots {
		if err := a.table.Delete(ctx, strconv.Itoa(slot)); err != nil {
			return fmt.Errorf("delete an access record: %w", err)
		}
	}
	return nil
}

// Record stores that the user by reached an instance. The record is durable when it returns. first says that
// the access begins, of which the root gets a notice.
func (a *Audit) Record(ctx context.Context, i api.Instance, by, text string, first bool) error {
	e := api.Event{Tenant: i.ID.Tenant(), Kind: "instance", Object: i.ID.Name(), Epoch: i.Epoch, Instance: i.ID, By: by}
	return a.record(ctx, e, string(i.ID), text, first)
}

// RecordVolume is Record for a volume.
func (a *Audit) RecordVolume(ctx context.Context, id api.VolumeID, by, text string, first bool) error {
	e := api.Event{Tenant: id.Tenant(), Kind: "volume", Object: id.Name(), Instance: id.Instance(), By: by}
	return a.record(ctx, e, string(id), text, first)
}

// RecordToken is Record for a change of a named operator token.
func (a *Audit) RecordToken(ctx context.Context, name, by, text string) error {
	return a.record(ctx, api.Event{Kind: "token", Object: name, By: by}, "operator token "+name, text, true)
}

// RecordOperation is Record for an operation of the cluster's API. The notice to the root does not have the object,
// because the root does not know nodes. by is "" for what the cluster does by itself.
func (a *Audit) RecordOperation(ctx context.Context, r records.Record, by, text string, first bool) error {
	return a.record(ctx, api.Event{Tenant: r.Tenant, Kind: r.Kind, Object: r.Object, By: by}, "", text, first)
}

func (a *Audit) record(ctx context.Context, e api.Event, object, text string, first bool) error {
	e.Time, e.Tier, e.Reason, e.Detail, e.Cluster = a.opt.Now(), "cluster "+string(a.opt.Cluster), api.ReasonAccess, step.Clip(text), a.opt.Cluster
	a.mu.Lock()
	a.seq++
	e.Seq = a.seq
	slot, deleted := a.log.Add(e)
	notice := ""
	if first {
		a.unsaid++
		if e.Time.Sub(a.notified) >= notifyEvery {
			notice = text
			if object != "" {
				notice += " in " + object
			}
			notice += ", at the cluster's own port"
			if a.unsaid > 1 {
				notice += fmt.Sprintf(", and %d more", a.unsaid-1)
			}
			a.notified, a.unsaid = e.Time, 0
		}
	}
	a.mu.Unlock()
	err := a.delete(ctx, deleted)
	if err == nil {
		err = a.table.Update(ctx, strconv.Itoa(slot), func(old doc, ok bool) (doc, error) {
			if ok && old.Event.Seq > e.Seq { // the slot was reused meanwhile
				return old, nil
			}
			return doc{slot, e}, nil
		})
	}
	if err == nil && a.opt.Recorded != nil {
		a.opt.Recorded(e)
	}
	if err == nil && notice != "" && a.opt.Notify != nil {
		a.opt.Notify(ctx, notice)
	}
	return err
}

// List returns the records, oldest first.
func (a *Audit) List() []api.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.List(eventlog.Filter{})
}
