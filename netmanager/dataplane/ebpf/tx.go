package ebpf

// tx is a change under way: what was done can be taken back, so that a change
// that fails leaves nothing of itself.
type tx struct{ undo, last []func() }

// finally has done run when the change stands: what it replaced goes then.
func (t *tx) finally(done func()) { t.last = append(t.last, done) }

// stand ends a change that succeeded.
func (t *tx) stand() {
	for _, done := range t.last {
		done()
	}
}

// did notes how to take back what was just done.
func (t *tx) did(undo func()) { t.undo = append(t.undo, undo) }

// back takes all back, the last first.
func (t *tx) back() {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
	t.undo = nil
}
