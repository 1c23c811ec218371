package ebpf

// tx is a change under way. Its steps can be undone, so that a change that fails has no effect.
type tx struct{ undo, last []func() }

// finally runs done when the change stands, to free what it replaced.
func (t *tx) finally(done func()) { t.last = append(t.last, done) }

// stand ends a change that succeeded.
func (t *tx) stand() {
	for _, done := range t.last {
		done()
	}
}

// did records how to undo the last step.
func (t *tx) did(undo func()) { t.undo = append(t.undo, undo) }

// back undoes all steps, the last first.
func (t *tx) back() {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
	t.undo = nil
}
