package fairshare

import (
	"sync"
	"time"
)

// Known is a set of keys that expire. It has at most the bound's Total keys, and Share keys of one
// group. When it is full, it drops the least recently added key of the largest group.
type Known struct {
	life time.Duration

	mu   sync.Mutex // guards keys and what they point to; taken before the pool's
	keys map[string]*known
	pool *Pool
}

type known struct {
	place *Place
	until time.Time
}

// NewKnown makes an empty Known. Keys expire after life.
func NewKnown(b Bound, life time.Duration) *Known {
	return &Known{life: life, keys: map[string]*known{}, pool: NewPool(b, Replace)}
}

// Add adds or renews the key, which counts for the group.
func (k *Known) Add(now time.Time, group, key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.keys[key]; e != nil {
		e.until = now.Add(k.life)
		e.place.Touch(now)
		return
	}
	place, err := k.pool.Take(now, []string{group}, func() { delete(k.keys, key) }) // called with mu held
	if err != nil {
		return
	}
	k.keys[key] = &known{place, now.Add(k.life)}
}

func (k *Known) Has(now time.Time, key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.keys[key]
	return e != nil && now.Before(e.until)
}

func (k *Known) Delete(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.keys[key]; e != nil {
		e.place.Release()
		delete(k.keys, key)
	}
}
