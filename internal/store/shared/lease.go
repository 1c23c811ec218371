package shared

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
)

// Lease is an entry of the log of leases: a renewal by the holder, or a claim by another replica.
type Lease struct {
	Holder   string        `json:"holder"`             // the process
	Name     string        `json:"name"`               // its URL
	Next     uint64        `json:"next,omitempty"`     // a position that was the next one of the store's log
	Released bool          `json:"released,omitempty"` // the holder writes nothing more
	Gossip   string        `json:"gossip,omitempty"`   // host:port at which it is a member (package membership)
	Keys     string        `json:"keys,omitempty"`     // identifies the keys that all replicas have; empty: of an earlier release
	TTL      time.Duration `json:"ttl"`

	position uint64 // in the log of leases; 0: there is no lease
}

// ErrLeaseLost means that another replica has the lease, or that it could not be renewed in time.
var ErrLeaseLost = fmt.Errorf("this replica is no longer active: %w", store.ErrConflict)

// readLease returns the last entry of a log of leases, and the positions of those before it.
func readLease(ctx context.Context, log Log) (last Lease, before []uint64, err error) {
	err = log.Entries(ctx, func(e Entry) error {
		if last.position > 0 {
			before = append(before, last.position)
		}
		last = Lease{}
		if len(e.Docs) != 1 {
			return fmt.Errorf("%w: the lease %d has %d documents", store.ErrCorrupt, e.Position, len(e.Docs))
		}
		if err := json.Unmarshal(e.Docs[0].Data, &last); err != nil {
			return fmt.Errorf("%w: the lease %d: %w", store.ErrCorrupt, e.Position, err)
		}
		last.position = e.Position
		return nil
	})
	return last, before, err
}

// lease is what a replica holds, or tries to.
type lease struct {
	log     Log
	self    Lease                     // without Next; position is that of the last known entry
	next    func() uint64             // what Next is
	renewed atomic.Pointer[time.Time] // when the last successful renewal began
	slog    *slog.Logger
}

// renew appends an entry after the last known one. held is false if another replica has appended
// there, or later.
func (l *lease) renew(ctx context.Context, released bool) (held bool, err error) {
	// An earlier renewal whose answer was lost may have the next position: go past it.
	for range 3 {
		began := time.Now()
		entry := l.self
		entry.Next, entry.Released = l.next(), released
		data, err := json.Marshal(entry)
		if err != nil {
			return false, fmt.Errorf("encode the lease: %w", err)
		}
		position := l.self.position + 1
		taken, err := l.log.Append(ctx, Entry{Position: position, Docs: []store.Doc{{Kind: "lease", Key: "lease", Version: 1, Data: data}}})
		if err != nil {
			return false, err
		}
		// A replica that was paused may append at a position that was trimmed: only the last entry counts.
		last, before, err := readLease(ctx, l.log)
		if err != nil {
			return false, err
		}
		if last.Holder != l.self.Holder {
			return false, nil
		}
		l.self.position = last.position
		if !taken && last.position == position {
			l.renewed.Store(&began)
			_ = l.log.Delete(ctx, before...) // the next renewal does it again
			return true, nil
		}
	}
	return false, fmt.Errorf("renew the lease: the entry after %d is not stored", l.self.position)
}

// lasts reports whether no other replica can have claimed the lease.
func (l *lease) lasts() bool {
	return time.Now().Before(l.ends())
}

// ends returns when the holder stops. That is an eighth of the TTL before a standby whose clock has
// the same speed.
func (l *lease) ends() time.Time {
	at := l.renewed.Load()
	if at == nil {
		return time.Time{}
	}
	return at.Add(l.self.TTL * 7 / 8)
}

// hold renews the lease until ctx ends.
func (l *lease) hold(ctx context.Context) error {
	tick := time.NewTicker(l.self.TTL / 6)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !l.lasts() {
			return errors.Join(fmt.Errorf("renew the lease within %v: %w", l.self.TTL*7/8, ErrLeaseLost), last)
		}
		asking, cancel := context.WithDeadline(ctx, l.ends())
		held, err := l.renew(asking, false)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			last = err
		case !held:
			return fmt.Errorf("renew the lease: another replica has it: %w", ErrLeaseLost)
		}
	}
}

// release ends the lease, if it still lasts, so that a standby takes over at once.
func (l *lease) release() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if !l.lasts() {
		return
	}
	if _, err := l.renew(ctx, true); err != nil {
		l.slog.Warn("lease not released, standbys wait until it ends", "err", err)
	}
	l.renewed.Store(nil)
}
