package ebpf

import (
	"net/netip"
	"testing"
)

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

// Places are how many of each kind there are, and which of them have flows that a opened.
func (p *Plane) Places(t testing.TB, a netip.Addr) (each int, of [kinds][]int) {
	t.Helper()
	all, err := dump[uint32, objectsTuple](p.o.TlPlaces)
	if err != nil {
		t.Fatal(err)
	}
	each = int(p.o.TlPlaces.MaxEntries()) / kinds
	for at, flow := range all {
		if flow.Src == be32(a) {
			of[int(at)/each] = append(of[int(at)/each], int(at)%each)
		}
	}
	return each, of
}
