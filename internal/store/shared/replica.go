package shared

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
)

// DefaultTTL is how long a lease lasts without a renewal.
const DefaultTTL = 3 * time.Second

// A standby waits at least minTTL and at most maxTTL, whatever the stored lease says.
const (
	minTTL = 100 * time.Millisecond
	maxTTL = time.Minute
)

// Options configures a replica.
type Options struct {
	Name string        // the URL under which the replica is reached when it is active
	TTL  time.Duration // DefaultTTL
	Log  *slog.Logger
	// Slack is how many bytes of obsolete documents the log may have beyond the size of the current
	// ones: 4 MiB
	Slack int
}

// Replica is one of the processes that share a log.
type Replica struct {
	log, leases Log
	o           Options
	id          string // of the process
	gossip      string
	keys        string
	wake        <-chan struct{}
}

// New makes a replica on a log and a log of leases. It owns them until Await returns a store, which
// then does.
func New(log, leases Log, o Options) *Replica {
	o.TTL, o.Log, o.Slack = cmp.Or(o.TTL, DefaultTTL), cmp.Or(o.Log, slog.Default()), cmp.Or(o.Slack, slack)
	return &Replica{log: log, leases: leases, o: o, id: rand.Text()}
}

// Gossip sets the address by which other replicas reach this one by gossip, which its lease shows. As a standby, it reads the lease at once
// when wake has a value. That is a hint: what it reads decides. Gossip is called before Await.
func (r *Replica) Gossip(address string, wake <-chan struct{}) { r.gossip, r.wake = address, wake }

// Keys sets what identifies the keys of this replica, which its lease shows. It is called before Await.
func (r *Replica) Keys(id string) { r.keys = id }

// Active returns the last lease; its Name is empty if there never was one.
func (r *Replica) Active(ctx context.Context) (Lease, error) {
	l, _, err := readLease(ctx, r.leases)
	return l, err
}

// Await waits until no other replica is active, takes over, and returns the store with everything
// that was acknowledged. It calls standby with the lease of each replica that it waits for. An engine
// that does not answer is asked again. Await fails if ctx ends or the log is damaged.
func (r *Replica) Await(ctx context.Context, standby func(Lease)) (*Store, error) {
	var seen Lease
	var since time.Time // when seen was first read
	failing := false
	for {
		asked := time.Now()
		l, _, err := readLease(ctx, r.leases)
		pause := r.o.TTL / 12
		if err == nil {
			if l != seen {
				if l.Holder != seen.Holder && l.Holder != r.id && !l.Released {
					standby(l)
				}
				seen, since = l, time.Now()
			}
			// A lease of this process is a claim whose answer was lost. The read may have taken effect when it was asked for, long before its answer.
			ttl := min(max(l.TTL, minTTL), maxTTL)
			if left := ttl - time.Since(since); left > 0 {
				pause = min(pause, left)
			}
			if l.position == 0 || l.Released || l.Holder == r.id || asked.Sub(since) >= ttl {
				var s *Store
				if s, err = r.takeOver(ctx, l); err == nil {
					r.o.Log.Info("replica is active", "epoch", s.epoch, "name", r.o.Name, "before", l.Name)
					return s, nil
				}
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrClosed):
			return nil, err
		case err != nil && !errors.Is(err, errAgain) && !failing:
			failing = true
			r.o.Log.Warn("replica cannot read the lease or take over, retrying", "err", err)
		case err == nil:
			failing = false
		}
		select {
		case <-time.After(pause):
		case <-r.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// errAgain means that another replica was faster.
var errAgain = errors.New("another replica took over at the same time")

// takeOver claims the lease after l, appends a takeover at the end of the log, and reads the log.
func (r *Replica) takeOver(ctx context.Context, l Lease) (*Store, error) {
	s := &Store{log: r.log, slack: r.o.Slack, turn: make(chan struct{}, 1)}
	s.end.Store(max(l.Next, 1))
	s.lease = &lease{
		log: r.leases, next: s.end.Load, slog: r.o.Log,
		self: Lease{Holder: r.id, Name: r.o.Name, Gossip: r.gossip, Keys: r.keys, TTL: r.o.TTL, position: l.position},
	}
	held, err := s.lease.renew(ctx, false)
	if err != nil {
		return nil, err
	}
	if !held {
		return nil, errAgain
	}
	// Renew while the log is read.
	holding, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.lease.hold(holding) // a lease that ends is found by lasts
	}()
	err = s.begin(ctx, r.id)
	cancel()
	<-done
	switch {
	case errors.Is(err, errGap):
		return nil, r.gap(ctx, err)
	case err != nil:
		return nil, err
	case !s.lease.lasts():
		return nil, fmt.Errorf("read the log: the lease ended before that: %w", errAgain)
	}
	return s, nil
}

// begin appends the takeover and reads the log.
func (s *Store) begin(ctx context.Context, id string) error {
	// The lease had the end of the log, or nearly so.
	mark, looked := s.end.Load(), false
	for s.lease.lasts() {
		taken, err := s.log.Append(ctx, Entry{Position: mark, Epoch: mark, Takeover: id})
		if err != nil {
			return err
		}
		if taken && looked {
			mark++ // an earlier active replica still writes
			continue
		}
		last, err := s.read(ctx)
		switch {
		case err != nil:
			return err
		case !taken && last.Position == mark && last.Takeover == id:
			// The takeover is the last entry of the log: it fences all earlier active replicas.
			s.epoch = mark
			return nil
		case !taken && last.Position < mark:
			return fmt.Errorf("the log ends at entry %d, before the takeover at %d that was just stored: %w", last.Position, mark, errAgain)
		}
		// The position was taken, or was obsolete and trimmed: an entry there fences nobody.
		mark, looked = last.Position+1, true
	}
	return errAgain
}

// gap returns err as corruption if the log has the gap when it is read again.
func (r *Replica) gap(ctx context.Context, err error) error {
	s := &Store{log: r.log}
	if _, again := s.read(ctx); !errors.Is(again, errGap) {
		return errors.Join(errAgain, again)
	}
	return fmt.Errorf("%w: %w; restore it from a backup", store.ErrCorrupt, err)
}
