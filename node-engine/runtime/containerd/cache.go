package containerd

import "sync"

// maxCached is the capacity of a cache. A full cache is emptied.
const maxCached = 256

// cache is a map of bounded size. It is safe for concurrent use.
type cache[V any] struct {
	mu     sync.Mutex // guards values
	values map[string]V
}

func (c *cache[V]) get(key string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.values[key]
	return v, ok
}

func (c *cache[V]) put(key string, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil || len(c.values) >= maxCached {
		c.values = map[string]V{}
	}
	c.values[key] = v
}

func (c *cache[V]) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.values, key)
}
