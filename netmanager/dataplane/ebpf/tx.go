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

// finally runs done when the change has succeeded, to free what it replaced.
func (t *tx) finally(done func()) { t.last = append(t.last, done) }

// stand completes a change that succeeded.
func (t *tx) stand() {
	for _, done := range t.last {
		done()
	}
}

// did records how to undo the last step.
func (t *tx) did(undo func()) { t.undo = append(t.undo, undo) }

func (t *tx) back() {
	for _, undo := range slices.Backward(t.undo) {
		undo()
	}
	t.undo = nil
}
