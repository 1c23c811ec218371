// Package values keeps the configs and secrets that the cluster's instances need, encrypted in the
// cluster's store, so that instances start without the root. It fetches them from the root when an
// instance is assigned, and deletes them when no instance needs them any more.
//
//	v, err := values.New(values.Options{Store: st, Loaded: docs, Sealer: sealer, Fetch: root.Value})
//	v.Need(core.Values())        // from the loop's send function
//	value, err := v.Get(ctx, key) // for a node
package values

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Kind is the kind of the documents in the cluster's store.
const Kind = "value"

const (
	fetchTime = 30 * time.Second
	minPause  = time.Second
	maxPause  = time.Minute
)

// Sealer encrypts values (package seal).
type Sealer interface {
	Seal(label string, v wire.Value) ([]byte, error)
	Open(label string, sealed []byte) (wire.Value, error)
}

// Options configure a Values.
type Options struct {
	Store  store.Store
	Loaded []store.Doc // of the store
	Sealer Sealer
	// Fetch requests a value from the root. It fails with ErrNotFound if the root does not have it
	// for this cluster, and with ErrUnavailable without an answer.
	Fetch func(context.Context, wire.WantValue) (wire.Value, error)
	Log   *slog.Logger
}

// Values keeps values. It is safe for concurrent use.
type Values struct {
	opt     Options
	table   *docs.Table[doc]
	fetches singleflight.Group
	changed chan struct{}

	mu     sync.Mutex // guards needed
	needed map[string]wire.ValueKey
	known  bool // needed is set
}

type doc struct {
	Sealed []byte `json:"sealed"`
}

// New returns the values in a store.
func New(o Options) (*Values, error) {
	v := &Values{opt: o, table: docs.New[doc](Kind, o.Store), changed: make(chan struct{}, 1), needed: map[string]wire.ValueKey{}}
	return v, v.table.Load(o.Loaded)
}

// keyOf returns the key of the document of a value.
func keyOf(k wire.ValueKey) string {
	return string(k.Kind) + "/" + string(k.Tenant.Values(k.Name)) + "@" + strconv.FormatUint(k.Version, 10) + "." + k.Digest
}

// Need sets the values that instances need. It does not block.
func (v *Values) Need(all []wire.ValueKey) {
	needed := make(map[string]wire.ValueKey, len(all))
	for _, k := range all {
		needed[keyOf(k)] = k
	}
	v.mu.Lock()
	v.needed, v.known = needed, true
	v.mu.Unlock()
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

func (v *Values) needs(key string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.needed[key].Name != ""
}

// Get returns a value. It fetches one that is not in the store, and stores it while an instance needs
// it.
func (v *Values) Get(ctx context.Context, k wire.ValueKey) (wire.Value, error) {
	key := keyOf(k)
	if d, ok := v.table.Get(key); ok {
		value, err := v.opt.Sealer.Open(key, d.Sealed)
		if err == nil {
			return value, nil
		}
		v.opt.Log.Warn("value of the store is fetched again", "value", k.String(), "err", err) // its key was lost
	}
	result := v.fetches.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTime)
		defer cancel()
		return v.fetch(ctx, key, k)
	})
	select {
	case r := <-result:
		value, _ := r.Val.(wire.Value)
		return value, r.Err
	case <-ctx.Done():
		return wire.Value{}, context.Cause(ctx)
	}
}

func (v *Values) fetch(ctx context.Context, key string, k wire.ValueKey) (wire.Value, error) {
	value, err := v.opt.Fetch(ctx, k.Want())
	if err != nil {
		return wire.Value{}, fmt.Errorf("fetch %s from the root: %w", k, err)
	}
	if value.Digest() != k.Digest {
		return wire.Value{}, fmt.Errorf("fetch %s from the root: it has another digest: %w", k, api.ErrUnavailable)
	}
	sealed, err := v.opt.Sealer.Seal(key, value)
	if err == nil && v.needs(key) {
		err = v.table.Update(ctx, key, func(doc, bool) (doc, error) { return doc{sealed}, nil })
	}
	if err != nil {
		v.opt.Log.Warn("value not stored: its instances do not start without the root", "value", k.String(), "err", err)
	}
	return value, nil
}

// Run fetches and deletes values until ctx ends.
func (v *Values) Run(ctx context.Context) error {
	pause := minPause
	for ctx.Err() == nil {
		var again <-chan time.Time
		if v.reconcile(ctx) {
			again, pause = time.After(pause), min(2*pause, maxPause)
		}
		select {
		case <-v.changed:
			pause = minPause
		case <-again:
		case <-ctx.Done():
		}
	}
	return nil
}

// reconcile reports whether something is left to do.
func (v *Values) reconcile(ctx context.Context) (retry bool) {
	v.mu.Lock()
	needed, known := v.needed, v.known
	v.mu.Unlock()
	if !known {
		return false
	}
	for _, key := range slices.Sorted(maps.Keys(needed)) {
		if _, ok := v.table.Get(key); ok || ctx.Err() != nil {
			continue
		}
		if _, err := v.Get(ctx, needed[key]); err != nil && ctx.Err() == nil {
			v.opt.Log.Warn("value not fetched", "err", err)
			retry = retry || !errors.Is(err, api.ErrNotFound)
		}
		_, stored := v.table.Get(key)
		retry = retry || !stored && v.needs(key)
	}
	if err := v.sweep(ctx, needed); err != nil && ctx.Err() == nil {
		v.opt.Log.Warn("values that no instance needs not deleted", "err", err)
		retry = true
	}
	return retry
}

// sweep deletes the values that no instance needs.
func (v *Values) sweep(ctx context.Context, needed map[string]wire.ValueKey) error {
	var errs []error
	for _, key := range v.table.Keys() {
		if _, ok := needed[key]; !ok {
			errs = append(errs, v.table.Update(ctx, key, func(old doc, _ bool) (doc, error) {
				if v.needs(key) {
					return old, nil
				}
				return old, docs.ErrDelete
			}))
		}
	}
	return errors.Join(errs...)
}
