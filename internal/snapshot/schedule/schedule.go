//go:build unix

// Package schedule takes snapshots of a control plane by a schedule, writes them to a directory or an
// S3-compatible server, and deletes old ones after a new one was written and read again.
//
//	r, err := schedule.New(schedule.Options{Config: cfg.Snapshot, Taker: taker, Store: st, Loaded: docs, …})
//	go r.Run(ctx)
package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/cron"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/store"
)

// Kind is the kind of the one document with the state, in the store, so that each replica continues where the last
// one stopped.
const (
	Kind = "snapshot_schedule"
	key  = "state"
)

const (
	maxRun     = 30 * time.Minute // of one snapshot with its transfer
	minRetry   = time.Minute      // after a failed run; doubles up to maxRetry
	maxRetry   = time.Hour
	maxSleep   = 10 * time.Minute // timers do not follow a clock that is set
	maxOrphans = 64
	maxError   = 1000 // bytes of the error that is kept
	gaps       = 32   // times of the schedule whose longest gap is its interval
)

// Options describe which snapshots are taken.
type Options struct {
	Config snapshot.Config // validated
	Taker  *snapshot.Taker
	Store  store.Store
	Loaded []store.Doc
	// Record makes an event of a snapshot that is taken, or of a run that failed.
	Record func(ctx context.Context, text string) error
	Env    func(string) string // nil: os.Getenv
	Now    func() time.Time    // nil: time.Now
	Log    *slog.Logger
}

// Runner takes snapshots. It is safe for concurrent use.
type Runner struct {
	opt  Options
	spec *cron.Spec // nil: there is no schedule

	running sync.Mutex // held by a run

	mu      sync.Mutex // guards the fields below
	state   state
	version uint64
}

// state is the content of the document.
type state struct {
	Since     time.Time `json:"since"` // when there was a schedule first
	Attempted time.Time `json:"attempted,omitzero"`
	Failures  int       `json:"failures,omitempty"` // since the last good one
	Error     string    `json:"error,omitempty"`
	// Taken are the snapshots that exist, the newest first. Only these are deleted: whoever can write to their place
	// can put others there.
	Taken []taken `json:"taken,omitempty"`
	// Orphans may be there as a whole or in part, because a run was interrupted.
	Orphans []taken `json:"orphans,omitempty"`
}

type taken struct {
	api.SnapshotTaken
	To string `json:"to"`
}

// New returns a Runner. Errors: ErrInvalid (the document in the store).
func New(o Options) (*Runner, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Env == nil {
		o.Env = os.Getenv
	}
	r := &Runner{opt: o}
	for _, d := range o.Loaded {
		if d.Kind != Kind || d.Key != key {
			continue
		}
		if err := json.Unmarshal(d.Data, &r.state); err != nil {
			return nil, fmt.Errorf("read the state of scheduled snapshots: %w: %w", err, api.ErrInvalid)
		}
		r.version = d.Version
	}
	if o.Config.Schedule == "" {
		return r, nil
	}
	var err error
	if r.spec, err = cron.Parse(o.Config.Schedule, o.Config.TimeZone); err != nil {
		return nil, fmt.Errorf("snapshot.schedule: %w: %w", err, api.ErrInvalid)
	}
	if r.state.Since.IsZero() {
		r.state.Since = o.Now().UTC()
	}
	return r, nil
}

// Scheduled reports whether there is a schedule.
func (r *Runner) Scheduled() bool { return r.spec != nil }

// Age returns the age of the last good snapshot, or how long there is a schedule without one.
func (r *Runner) Age() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opt.Now().Sub(r.state.good())
}

// good returns the time of the last good snapshot, or since when there is a schedule without one.
func (s state) good() time.Time {
	if len(s.Taken) > 0 && s.Taken[0].Time.After(s.Since) {
		return s.Taken[0].Time
	}
	return s.Since
}

// Interval returns the longest time between two of the next times of the schedule.
func (r *Runner) Interval() (longest time.Duration) {
	all := r.spec.Times(r.opt.Now(), gaps)
	for i := range all[:max(0, len(all)-1)] {
		longest = max(longest, all[i+1].Sub(all[i]))
	}
	return longest
}

// next returns when the next run is due. A run that was missed while the daemon did not run is due at once, a failed
// one is repeated.
func (r *Runner) next() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.state.Since
	if r.state.Attempted.After(last) {
		last = r.state.Attempted
	}
	if now := r.opt.Now(); last.After(now) { // the clock was set back
		last = now
	}
	at := r.spec.Next(last)
	if n := r.state.Failures; n > 0 {
		if again := last.Add(min(minRetry<<min(n-1, 16), maxRetry)); at.IsZero() || again.Before(at) {
			return again
		}
	}
	return at
}

// Run takes snapshots by the schedule until ctx ends. It returns store.ErrConflict if another process has the store.
func (r *Runner) Run(ctx context.Context) error {
	if r.spec == nil {
		<-ctx.Done()
		return nil
	}
	err := r.save(ctx, func(*state) {}) // Since
	for {
		wait := maxSleep
		if at := r.next(); !at.IsZero() {
			wait = min(wait, at.Sub(r.opt.Now()))
		}
		if wait <= 0 {
			err = r.Take(ctx)
			wait = time.Second // at least, whatever the clock does
		}
		if errors.Is(err, store.ErrConflict) && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Take takes a snapshot now, as by the schedule. Errors: ErrConflict (there is no schedule, or another snapshot is
// being taken), ErrFull, ErrUnavailable and others of the place.
func (r *Runner) Take(ctx context.Context) error {
	if r == nil || r.spec == nil {
		return fmt.Errorf("take a scheduled snapshot: set snapshot.schedule in the daemon's configuration: %w", api.ErrConflict)
	}
	if !r.running.TryLock() {
		return fmt.Errorf("take a scheduled snapshot: one is being taken: %w", api.ErrConflict)
	}
	defer r.running.Unlock()
	run, cancel := context.WithTimeoutCause(ctx, maxRun, fmt.Errorf("it took more than %s: %w", maxRun, api.ErrUnavailable))
	defer cancel()
	one, err := r.take(run)
	if err != nil {
		if cause := context.Cause(run); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		if ctx.Err() != nil {
			return err // the daemon stops: the next start takes it
		}
		err = fmt.Errorf("scheduled snapshot to %s failed: %w", r.opt.Config.To, err)
		r.opt.Log.Error("scheduled snapshot failed", "to", r.opt.Config.To, "err", err)
		text := strings.ToValidUTF8(err.Error(), "?")
		saved := r.save(ctx, func(s *state) {
			s.Attempted, s.Error = r.opt.Now().UTC(), strings.ToValidUTF8(text[:min(len(text), maxError)], "")
			s.Failures++
		})
		return errors.Join(err, saved, r.opt.Record(ctx, text))
	}
	r.opt.Log.Info("scheduled snapshot written", "to", one.To, "name", one.Name, "bytes", one.Size)
	r.prune(run)
	return nil
}

// take takes, writes, reads and records one snapshot.
func (r *Runner) take(ctx context.Context) (taken, error) {
	f, err := r.opt.Taker.Take(ctx, r.opt.Config.Recipients)
	if err != nil {
		return taken{}, err
	}
	defer f.Close()
	h := f.Header()
	one := taken{api.SnapshotTaken{Name: h.FileName(), Time: h.Time, Size: f.Size(), SHA256: h.SHA256}, r.opt.Config.To}
	text := fmt.Sprintf("scheduled snapshot with keys for %s to %s%s", strings.Join(h.Recipients, ", "), strings.TrimSuffix(one.To, "/")+"/", one.Name)
	if err := r.opt.Record(ctx, text); err != nil { // there is no access without its record
		return one, fmt.Errorf("record the snapshot: %w", err)
	}
	if err := r.save(ctx, func(s *state) { s.orphan(one) }); err != nil {
		return one, err
	}
	at := r.place()
	if err := at.write(ctx, one.Name, one.Size, f); err != nil {
		return one, err
	}
	err = at.read(ctx, one.Name, func(in io.Reader) error {
		s, err := snapshot.Open(in)
		if err != nil {
			return err
		}
		if !s.Header().Same(h) {
			return fmt.Errorf("read %s: it is another snapshot than was written: %w", one.Name, api.ErrInvalid)
		}
		return s.Intact()
	})
	if err != nil {
		return one, fmt.Errorf("read the snapshot again: %w", err)
	}
	return one, r.save(ctx, func(s *state) {
		s.Attempted, s.Failures, s.Error = r.opt.Now().UTC(), 0, ""
		s.Taken = slices.Insert(s.Taken, 0, one)
		s.Orphans = without(s.Orphans, one)
	})
}

func without(all []taken, one taken) []taken {
	return slices.DeleteFunc(slices.Clone(all), func(t taken) bool { return t.Name == one.Name && t.To == one.To })
}

// orphan adds a snapshot that may be there in part. Beyond maxOrphans the oldest is forgotten.
func (s *state) orphan(one taken) {
	s.Orphans = append(without(s.Orphans, one), one)
	s.Orphans = s.Orphans[max(0, len(s.Orphans)-maxOrphans):]
}

// prune deletes what is older than the snapshots to keep, and what interrupted runs left. It leaves what is at
// another place than the configured one.
func (r *Runner) prune(ctx context.Context) {
	r.mu.Lock()
	now := r.state
	r.mu.Unlock()
	keep := cmp.Or(r.opt.Config.Keep, snapshot.DefaultKeep)
	here := func(t taken) bool { return t.To == r.opt.Config.To }
	var gone []taken
	kept := 0
	for _, t := range now.Taken {
		if here(t) {
			if kept++; kept > keep {
				gone = append(gone, t)
			}
		}
	}
	for _, t := range now.Orphans {
		if here(t) {
			gone = append(gone, t)
		}
	}
	at := r.place()
	var done []taken
	for _, t := range gone {
		if err := at.remove(ctx, t.Name); err != nil {
			r.opt.Log.Warn("old snapshot not deleted, it is tried again after the next one", "name", t.Name, "to", t.To, "err", err)
			break
		}
		done = append(done, t)
	}
	err := r.save(ctx, func(s *state) {
		for _, t := range done {
			s.Taken, s.Orphans = without(s.Taken, t), without(s.Orphans, t)
		}
		// Snapshots at an earlier place, and those that cannot be deleted, do not make the document grow.
		s.Taken = s.Taken[:min(len(s.Taken), 2*snapshot.MaxKeep)]
	})
	if err != nil && ctx.Err() == nil {
		r.opt.Log.Warn("state of scheduled snapshots not saved", "err", err)
	}
}

// save changes the state when it is durable.
func (r *Runner) save(ctx context.Context, change func(*state)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.state
	next.Taken, next.Orphans = slices.Clone(next.Taken), slices.Clone(next.Orphans)
	change(&next)
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := r.opt.Store.Save(ctx, []store.Doc{{Kind: Kind, Key: key, Version: r.version + 1, Data: data}}); err != nil {
		return fmt.Errorf("save the state of scheduled snapshots: %w", err)
	}
	r.state, r.version = next, r.version+1
	return nil
}

// Status returns the schedule and what was taken.
func (r *Runner) Status() api.SnapshotSchedule {
	if r == nil || r.spec == nil {
		return api.SnapshotSchedule{Taken: []api.SnapshotTaken{}}
	}
	c := r.opt.Config
	s := api.SnapshotSchedule{
		Cron: c.Schedule, TimeZone: cmp.Or(c.TimeZone, "UTC"), To: c.To, Recipients: c.Recipients,
		Keep: cmp.Or(c.Keep, snapshot.DefaultKeep), Next: r.next(), Overdue: r.Age() > r.Interval()*3/2, Taken: []api.SnapshotTaken{},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Error = r.state.Error; s.Error != "" {
		s.Failed = r.state.Attempted
	}
	for _, t := range r.state.Taken {
		if t.To == c.To {
			s.Taken = append(s.Taken, t.SnapshotTaken)
		}
	}
	return s
}
