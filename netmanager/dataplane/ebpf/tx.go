package ebpf

import "slices"

// tx is a change in progress. Its steps can be undone, so that a change that fails has no effect.
// After the first error further steps do nothing.
type tx struct {
	undo, last []func()
	err        error
}

// fail records the first error, and reports whether there is one.
func (t *tx) fail(err error) bool {
	if t.err == nil {
		t.err = err
	}
	return t.err != nil
}

// onCommit runs done when the change has succeeded, to free what it replaced.
func (t *tx) onCommit(done func()) { t.last = append(t.last, done) }

func (t *tx) commit() {
	for _, done := range t.last {
		done()
	}
}

func (t *tx) onRollback(undo func()) { t.undo = append(t.undo, undo) }

// assign sets or, with nil, deletes the entry of a map.
func assign[K comparable, V any](x *tx, m map[K]V, k K, v *V) {
	old, had := m[k]
	if delete(m, k); v != nil {
		m[k] = *v
	}
	x.onRollback(func() {
		if delete(m, k); had {
			m[k] = old
		}
	})
}

func (t *tx) rollback() {
	for _, undo := range slices.Backward(t.undo) {
		undo()
	}
	t.undo = nil
}
