package fairshare

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rates is a token bucket per key. It keeps the buckets of at most Total keys. When it is full, it
// drops the least recently used key of the group with most keys; a dropped key starts again with a
// full bucket.
type Rates struct {
	limit rate.Limit
	burst int
	name  string

	mu   sync.Mutex // guards keys; taken before the pool's
	keys map[string]*bucket
	pool *Pool
}

type bucket struct {
	*rate.Limiter
	place *Place
}

// NewRates returns Rates whose buckets have at most burst tokens and gain perSecond tokens per
// second. The bound's Total is the maximum number of keys; its Share is ignored.
func NewRates(b Bound, perSecond float64, burst int) *Rates {
	b.Share = nil
	return &Rates{limit: rate.Limit(perSecond), burst: burst, name: b.Resource, keys: map[string]*bucket{}, pool: NewPool(b, Replace)}
}

// RateBound is the part of a Bound that describes Rates: the limit of one key, and the key that is
// dropped beyond the total, such as "address of the largest subnet".
func RateBound(per, limit, dropped, attack string) Bound {
	return Bound{Per: per, Beyond: limit + "; beyond the total the least recently used " + dropped + " starts afresh", Attack: attack}
}

// Allow takes a token of the key. Keys are bounded by group, such as the subnet of an address. The
// error is a *Full with the time until the next token.
func (r *Rates) Allow(now time.Time, group, key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := r.bucket(now, group, key)
	if err != nil {
		return err
	}
	res := b.ReserveN(now, 1)
	if wait := res.DelayFrom(now); wait > 0 {
		res.CancelAt(now)
		return &Full{Resource: r.name, Limit: r.burst, Own: true, Holder: key, Retry: wait}
	}
	return nil
}

// Left returns the number of tokens that the key has.
func (r *Rates) Left(now time.Time, group, key string) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.keys[group+"\x00"+key]; b != nil {
		return b.TokensAt(now)
	}
	return float64(r.burst)
}

// Forget drops the key, which then has a full bucket again.
func (r *Rates) Forget(group, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := group + "\x00" + key
	if b := r.keys[id]; b != nil {
		b.place.Release()
		delete(r.keys, id)
	}
}

// bucket returns the key's bucket. It is called with mu held, which the evict function needs.
func (r *Rates) bucket(now time.Time, group, key string) (*bucket, error) {
	id := group + "\x00" + key
	if b := r.keys[id]; b != nil {
		b.place.Touch(now)
		return b, nil
	}
	place, err := r.pool.Take(now, []string{group}, func() { delete(r.keys, id) })
	if err != nil {
		return nil, err
	}
	b := &bucket{rate.NewLimiter(r.limit, r.burst), place}
	r.keys[id] = b
	return b, nil
}
