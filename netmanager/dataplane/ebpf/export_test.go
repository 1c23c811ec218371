package ebpf

import "testing"

// NewClassifier is New as on a kernel without tcx.
func NewClassifier(prefix string) (*Plane, error) {
	p, err := New(prefix)
	if err == nil {
		p.at = classifier{}
	}
	return p, err
}

// Small has planes that are made until the end of a test keep few flows: 4096 of a kind.
func Small(t testing.TB) {
	old := maxFlows
	maxFlows = minFlows
	t.Cleanup(func() { maxFlows = old })
}

// Hooks are how many programs the plane has attached, as far as it remembers.
func (p *Plane) Hooks() int { return len(p.hooks) }
