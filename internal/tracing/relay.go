package tracing

import (
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
)

// followed is how long after a command what it caused belongs to its trace.
const followed = 10 * time.Minute

var tracePlaces = fairshare.Declare(fairshare.Bound{
	Resource: "traces that a tier follows", Total: 4096, Share: []int{1024}, Per: "topmost tenant",
	Beyond: "the oldest of the largest tenant is not followed further; its application is not affected",
	Attack: "TestTracesOfOneTenantLeaveRoomForOthers",
})

// Relay remembers the traces that came from the tier above, for a few minutes, and passes them to the tier
// below. It is safe for concurrent use. A nil Relay follows nothing.
type Relay struct {
	tracer *Tracer
	now    func() time.Time

	mu     sync.Mutex // guards known and what is in it; taken before the pool's
	known  map[string]*trace
	places *fairshare.Pool
}

type trace struct {
	context Context
	from    time.Time
	tenant  api.Tenant
	place   *fairshare.Place
	emitted map[string]bool // the spans of this tier
}

// maxEmitted bounds the spans that one tier adds to what one key began.
const maxEmitted = 1024

// NewRelay returns a Relay that emits spans to t, which may be nil.
func NewRelay(t *Tracer) *Relay {
	return &Relay{tracer: t, now: time.Now, known: map[string]*trace{}, places: fairshare.NewPool(tracePlaces, fairshare.Replace)}
}

// Tracer returns the tracer of the relay; nil: spans are not exported.
func (r *Relay) Tracer() *Tracer {
	if r == nil {
		return nil
	}
	return r.tracer
}

// Remember begins to follow a key in a trace.
func (r *Relay) Remember(tenant api.Tenant, key string, c Context) {
	if r == nil || c.IsZero() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if old := r.known[key]; old != nil {
		if old.context == c && now.Sub(old.from) < followed {
			return // it is repeated
		}
		old.place.Release()
		delete(r.known, key)
	}
	place, err := r.places.Take(now, []string{string(tenant.Top())}, func() { delete(r.known, key) }) // called with mu held
	if err == nil {
		r.known[key] = &trace{context: c, from: now, tenant: tenant, place: place, emitted: map[string]bool{}}
	}
}

// find returns the trace of a key, nil if it is not followed.
func (r *Relay) find(key string) *trace {
	t := r.known[key]
	if t != nil && r.now().Sub(t.from) >= followed {
		t.place.Release()
		delete(r.known, key)
		return nil
	}
	return t
}

// Pass returns the context for the tier below: that of a span with the name, from when the key was remembered
// until now. It emits the span once for the same parts. If this tier exports nothing, it is the context from
// above.
func (r *Relay) Pass(key, name string, attributes map[string]string, parts ...string) Context {
	if r == nil {
		return Context{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.find(key)
	if t == nil {
		return Context{}
	}
	if r.tracer == nil {
		return t.context
	}
	c := t.context.Child(append([]string{name}, parts...)...)
	if id := c.String(); !t.emitted[id] && len(t.emitted) < maxEmitted {
		t.emitted[id] = true
		r.tracer.Emit(Span{Context: c, Parent: t.context, Name: name, Kind: Internal, Start: t.from, End: r.now(), Attributes: attributes, Tenant: t.tenant})
	}
	return c
}

// Step emits a span of a key that is over.
func (r *Relay) Step(key, name string, start time.Time, err error, attributes map[string]string) {
	if r == nil || r.tracer == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.find(key)
	if t == nil || len(t.emitted) >= maxEmitted {
		return
	}
	c := t.context.Child(name, start.String())
	t.emitted[c.String()] = true
	r.tracer.Emit(Span{Context: c, Parent: t.context, Name: name, Kind: Internal, Start: start, End: r.now(), Attributes: attributes, Err: err, Tenant: t.tenant})
}

// Received remembers the traces in a desired set from above, and returns the set without them.
func (r *Relay) Received(d wire.Desired, key func(wire.Assignment) string) wire.Desired {
	if !slices.ContainsFunc(d.Put, func(a wire.Assignment) bool { return a.Trace != "" }) {
		return d
	}
	d.Put = slices.Clone(d.Put)
	for i := range d.Put {
		a := &d.Put[i]
		r.Remember(a.Instance.Tenant(), key(*a), Parse(a.Trace))
		a.Trace = ""
	}
	return d
}

// Sent returns a desired set for below with the traces of its instances.
func (r *Relay) Sent(d wire.Desired, key func(wire.Assignment) string, name string, attributes func(wire.Assignment) map[string]string) wire.Desired {
	if r == nil || len(d.Put) == 0 || r.empty() {
		return d
	}
	d.Put = slices.Clone(d.Put)
	for i := range d.Put {
		a := &d.Put[i]
		a.Trace = r.Pass(key(*a), name, attributes(*a), string(a.Instance), a.Epoch.String()).String()
	}
	return d
}

func (r *Relay) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known) == 0
}

// The keys by which tiers remember traces.
func OfApp(a wire.Assignment) string { return string(a.Instance.Service().App()) }

// OfPlacement is the key at a cluster: the epoch's part that the root chooses.
func OfPlacement(a wire.Assignment) string {
	return string(a.Instance) + " " + api.EpochOf(a.Epoch.Root(), 0).String()
}

// OfPlacementHere is OfWorkload of an assignment.
func OfPlacementHere(a wire.Assignment) string {
	return OfWorkload(wire.Key{Instance: a.Instance, Epoch: a.Epoch})
}

// OfWorkload is the key at a node.
func OfWorkload(k wire.Key) string { return string(k.Instance) + " " + k.Epoch.String() }
