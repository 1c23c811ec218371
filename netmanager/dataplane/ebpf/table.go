package ebpf

import (
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// table is a kernel map with a copy of its entries. Programs may count in fields of a value: these
// are 0 in the copy, and merge preserves them.
type table[K, V comparable] struct {
	m    *ebpf.Map
	have map[K]V
	// merge copies the counts of old into a value that replaces it. Nil: there are no counts.
	merge func(v, old V) V
}

func newTable[K, V comparable](m *ebpf.Map) *table[K, V] {
	return &table[K, V]{m: m, have: map[K]V{}}
}

// load reads the entries that an earlier process wrote.
func (t *table[K, V]) load() error {
	all, err := dump[K, V](t.m)
	if err != nil {
		return err
	}
	for k, v := range all {
		all[k] = t.withoutCounts(v)
	}
	t.have = all
	return nil
}

func (t *table[K, V]) withoutCounts(v V) V {
	var zero V
	if t.merge != nil {
		v = t.merge(v, zero)
	}
	return v
}

func (t *table[K, V]) set(x *tx, k K, v V) {
	old, had := t.have[k]
	if x.err != nil || had && old == v {
		return
	}
	if err := t.put(k, v, had); err != nil {
		x.fail(writeError(t.m, err))
		return
	}
	t.have[k] = v
	x.onRollback(func() {
		if had {
			_ = t.put(k, old, true)
			t.have[k] = old
			return
		}
		_ = t.m.Delete(k)
		delete(t.have, k)
	})
}

func writeError(m *ebpf.Map, err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("map %s is full (%d entries): %w", m, m.MaxEntries(), api.ErrUnavailable)
	}
	return fmt.Errorf("write to map %s: %w", m, err)
}

func (t *table[K, V]) put(k K, v V, had bool) error {
	if had && t.merge != nil {
		var now V
		if err := t.m.Lookup(k, &now); err == nil {
			v = t.merge(v, now)
		}
	}
	return t.m.Put(k, v)
}

func (t *table[K, V]) drop(x *tx, k K) {
	old, had := t.have[k]
	if x.err != nil || !had {
		return
	}
	if t.merge != nil { // otherwise undo would lose the counts
		var now V
		if err := t.m.Lookup(k, &now); err == nil {
			old = now
		}
	}
	if err := t.m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		x.fail(fmt.Errorf("delete %v from map %s: %w", k, t.m, err))
		return
	}
	delete(t.have, k)
	x.onRollback(func() {
		_ = t.m.Put(k, old)
		t.have[k] = t.withoutCounts(old)
	})
}

func (t *table[K, V]) dropUnless(x *tx, keep func(K, V) bool) {
	for k, v := range maps.Clone(t.have) {
		if !keep(k, v) {
			t.drop(x, k)
		}
	}
}

// replace makes the table exactly want.
func (t *table[K, V]) replace(x *tx, want map[K]V) {
	for k, v := range want {
		t.set(x, k, v)
	}
	t.dropUnless(x, func(k K, _ V) bool { _, ok := want[k]; return ok })
}

// dump reads a whole map. It may miss entries that are added or deleted meanwhile.
func dump[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
	all := map[K]V{}
	if err := walk(m, func(k K, v *V) { all[k] = *v }); err != nil {
		return nil, err
	}
	return all, nil
}

// walk calls f with each entry of a map. f must not keep the pointer.
func walk[K, V any](m *ebpf.Map, f func(K, *V)) error {
	const batch = 1024
	keys, values := make([]K, batch), make([]V, batch)
	var cursor ebpf.MapBatchCursor
	for first := true; ; first = false {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], &values[i])
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case first && errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, ebpf.ErrIterationAborted):
			return iterate(m, f)
		case err != nil:
			return fmt.Errorf("read map %s: %w", m, err)
		}
	}
}

// iterate is walk for maps that the kernel cannot read in batches. It may repeat entries.
func iterate[K, V any](m *ebpf.Map, f func(K, *V)) error {
	var k K
	var v V
	it := m.Iterate()
	for it.Next(&k, &v) {
		f(k, &v)
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read map %s: %w", m, err)
	}
	return nil
}
