package nft

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

var ranges = wire.DefaultNetRanges()

func backend(n, weight int) plane.Backend {
	return plane.Backend{Address: netip.AddrFrom4([4]byte{10, 16, 0, byte(n)}), Weight: weight}
}

// TestChangesAddUpToTheState applies random changes, some of which the kernel rejects, and compares the
// elements with those of a model that is filled at once.
func TestChangesAddUpToTheState(t *testing.T) {
	via := func(netip.Addr) (string, error) { return "up0", nil }
	rapid.Check(t, func(t *rapid.T) {
		table := (&Plane{prefix: "tl"}).table()
		m := newModel(newSets(table))
		m.node.Ranges = ranges
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			c := drawChange(t)
			d, err := m.step(c, via)
			if err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "refused") {
				d.back()
			}
		}
		whole := newModel(newSets(table))
		if _, err := whole.fill(m.state(), via); err != nil {
			t.Fatal(err)
		}
		for i, s := range m.all {
			same := whole.all[i]
			for key, v := range s.has {
				// The first backend is not part of the state.
				if w := same.has[key]; w.refs != v.refs || s != m.slots && w.data != v.data {
					t.Fatalf("set %s, element %x: %v after changes, want %v", s.Name, key, v, w)
				}
			}
			if len(s.has) != len(same.has) {
				t.Fatalf("set %s: %d elements after changes, want %d", s.Name, len(s.has), len(same.has))
			}
		}
	})
}

func drawChange(t *rapid.T) plane.Change {
	var c plane.Change
	at := func(third byte) netip.Addr {
		return netip.AddrFrom4([4]byte{10, third, 0, byte(rapid.IntRange(1, 4).Draw(t, "address"))})
	}
	switch rapid.IntRange(0, 7).Draw(t, "kind") {
	case 0:
		c.DropServices = []netip.Addr{at(30)}
	case 1:
		c.DropEndpoints = []netip.Addr{at(16)}
	case 2:
		c.DropSources = []netip.Addr{at(17)}
	case 3:
		c.SetEndpoints = []plane.Endpoint{{Address: at(16), Ident: plane.Ident(rapid.IntRange(1, 3).Draw(t, "ident")), Device: "tl0"}}
	case 4:
		c.SetSources = []plane.Source{{Address: at(17), Ident: 4}}
	case 5:
		c.Allow = []plane.Pair{{From: 1, To: plane.Ident(rapid.IntRange(1, 3).Draw(t, "to"))}}
	case 6:
		c.Deny = []plane.Pair{{From: 1, To: plane.Ident(rapid.IntRange(1, 3).Draw(t, "to"))}}
	default:
		s := plane.Service{Address: at(30), Ident: 9}
		for n, w := range rapid.SliceOfN(rapid.IntRange(1, 16), 0, 4).Draw(t, "weights") {
			s.Backends = append(s.Backends, backend(n, w))
		}
		c.SetServices = []plane.Service{s}
	}
	return c
}

func TestSubnetsAreSplit(t *testing.T) {
	got := split(netip.MustParsePrefix("10.16.1.0/24"), 26)
	want := []netip.Addr{netip.MustParseAddr("10.16.1.0"), netip.MustParseAddr("10.16.1.64"), netip.MustParseAddr("10.16.1.128"), netip.MustParseAddr("10.16.1.192")}
	if !slices.Equal(got, want) {
		t.Errorf("split into /26: %v, want %v", got, want)
	}
}
