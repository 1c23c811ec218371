// Package shared is a store that several replicas of a daemon share: one of them, the active one,
// writes, and the others, the standbys, wait for its lease to end. It is a log of entries in an
// engine such as MongoDB.
//
// What it guarantees, and why:
//
//   - A write is acknowledged only if every later takeover reads it, and after a takeover no write of
//     an earlier active replica is stored. Each entry has a position, and the engine stores at most
//     one entry per position (Log.Append). The active replica has read or written all entries before
//     the one that it appends. A replica becomes active by appending a takeover, whose position is
//     the fencing token (the epoch). An earlier active replica, however long it was paused, appends
//     next at exactly the position of the first takeover after it; that is refused, and it stops.
//     Takeovers are never deleted. This does not depend on any clock.
//   - At most one replica is active, as far as its own reads are concerned: what it knows is current
//     while Store.Active returns true, if the clocks of two machines run at the same speed to within
//     an eighth. The lease is a second log, in which each renewal and each claim is an entry: a claim
//     takes the position of the renewal that did not come. No clock is compared with another one. A
//     standby claims the lease when no renewal has appeared for the TTL by its own monotonic clock;
//     the active replica counts from before it asked for its last renewal.
//
// An engine has to guarantee what the comment of Log says, and no more: no transactions, watches,
// expiry, or updates that compare. Check finds an engine that does not.
//
//	r := shared.New(log, leases, shared.Options{Name: "https://root-a:7443"})
//	st, err := r.Await(ctx, func(active shared.Lease) { … }) // returns when this replica is active
//	if err != nil {
//		return err
//	}
//	defer st.Close() // releases the lease
//	g.Go(func() error { return st.Hold(ctx) })
package shared

import (
	"context"

	"github.com/treeline-edge/treeline/internal/store"
)

// Entry is an element of a log.
type Entry struct {
	Position uint64      // from 1 on, without gaps from Start on
	Epoch    uint64      // the position of the writer's takeover: the fencing token
	Takeover string      // who begins the epoch; empty for other entries
	Start    uint64      // entries before this position are obsolete
	Docs     []store.Doc // changes in order, as in store.Store.Save
	More     bool        // the next entry of the epoch has further documents of the same save
}

// Log is what an engine provides: documents that are inserted under a key that must be free. Its methods are safe for concurrent use, and take effect between
// call and return or, after an error, possibly at any time later. Errors are those of store.Store.
type Log interface {
	// Append stores e at its position unless there is an entry: of any number of concurrent calls for
	// a position that is free, exactly one returns taken false. Its entry is then durable on a
	// majority of the engine's servers and is read by every later At and Entries.
	Append(ctx context.Context, e Entry) (taken bool, err error)
	// At returns the entry at a position; ok is false if there is none. It is linearizable. That there is an entry may be as
	// old as the last call of the process that found none.
	At(ctx context.Context, position uint64) (e Entry, ok bool, err error)
	// Next returns the entries at from and the positions after it up to the first that has none, and n at most, or fewer if they
	// are large. They are as old as At says. It does not show that a position is free.
	Next(ctx context.Context, from uint64, n int) ([]Entry, error)
	// Entries calls fn with all entries in the order of their positions. What it reads of the log up
	// to any entry was there when that entry was appended, except for what is trimmed meanwhile.
	Entries(ctx context.Context, fn func(Entry) error) error
	// Delete deletes the entries at these positions, as far as there are any, in this order.
	Delete(ctx context.Context, positions ...uint64) error
	Close() error
}
