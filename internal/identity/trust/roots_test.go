package trust_test

import (
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// rotation has the world's root before, during and after a rotation of its key, and munich's authority under each.
type rotation struct {
	*world
	during, after        *ca.Authority
	munichDuring, munich *ca.Authority
}

func newRotation(w *world) rotation {
	r := rotation{world: w}
	pair := must(w.root.Successor(w.now))
	r.during, r.after = must(ca.New(pair)), must(ca.New(pair.Retired()))
	under := func(root *ca.Authority) *ca.Authority {
		csr := must(ca.Request(w.munich.Pair().Key))
		return must(ca.New(ca.Pair{Chain: must(root.SignCluster(w.now, csr, "munich")), Key: w.munich.Pair().Key}))
	}
	r.munichDuring, r.munich = under(r.during), under(r.after)
	return r
}

// renewed is what a machine keeps that had a chain and renews its certificate.
func (w *world) renewed(t *testing.T, had ca.Pair, next ca.Pair) ca.Pair {
	t.Helper()
	kept, err := roots.Renewed(w.now, had.Roots(), next.Chain)
	if err != nil {
		t.Fatalf("renewal refused: %v", err)
	}
	next.Chain = kept
	if err := next.Check(); err != nil {
		t.Fatal(err)
	}
	return next
}

func learnt(p ca.Pair) *trust.Verifier {
	v := trust.New()
	v.Learn(p.Chain)
	return v
}

// Machines before, in and after the rotation verify each other as long as the earlier key is not retired. Afterwards its thief is
// refused by all that have renewed.
func TestARotationOfTheRootDisconnectsNobody(t *testing.T) {
	w := newWorld()
	r := newRotation(w)
	before := w.node(w.munich, "n1")
	during := w.renewed(t, before, w.node(r.munichDuring, "n1"))
	after := w.renewed(t, during, w.node(r.munich, "n1"))
	for _, c := range []struct {
		server, client string
		own, shown     ca.Pair
		ok             bool
	}{
		{"before", "during", w.own(w.munich), during, true},
		{"during", "before", w.own(r.munichDuring), before, true},
		{"during", "during", w.own(r.munichDuring), during, true},
		{"after", "during", w.own(r.munich), during, true},
		{"during", "after", w.own(r.munichDuring), after, true},
		{"after", "after", w.own(r.munich), after, true},
		{"after", "before", w.own(r.munich), before, false},
	} {
		_, serr, cerr := meet(t, learnt(c.own).Server(server(c.own), true), learnt(c.shown).Client(identity.OfCluster("munich"), client(c.shown)))
		if ok := serr == nil && cerr == nil; ok != c.ok {
			t.Errorf("a node %s the rotation at a cluster %s it: %v, %v; want success %t", c.client, c.server, serr, cerr, c.ok)
		}
	}
	// One verifier that learns.
	v := learnt(before)
	thief := w.node(w.munich, "n9").Chain // signed with the earlier keys
	for _, step := range []struct {
		own  ca.Pair
		want error
	}{{before, nil}, {during, nil}, {after, api.ErrUnauthenticated}} {
		n := v.Retirements()
		v.Learn(step.own.Chain)
		if _, err := v.Chain(thief); !errors.Is(err, step.want) {
			t.Errorf("the holder of the earlier key: %v, want %v", err, step.want)
		}
		if _, err := v.Chain(step.own.Chain); err != nil {
			t.Errorf("the own chain: %v", err)
		}
		if changed := v.Retirements() != n; changed != (step.own.Chain[0] != before.Chain[0]) {
			t.Errorf("earlier results may differ: %t", changed)
		}
	}
	if _, err := v.Chain(thief); err == nil || !strings.Contains(err.Error(), "join again, with an empty data directory and a new token") {
		t.Errorf("the error of a machine that was left behind: %v, want one that names the fix", err)
	}
}

// The holder of the earlier key cannot lead a machine away that has learnt the new one, nor make the earlier one valid again.
func TestAThiefOfTheEarlierRootKeyLeadsNobodyAway(t *testing.T) {
	w := newWorld()
	r := newRotation(w)
	evil := newRotation(w) // a second successor of the same key
	before := w.node(w.munich, "n1")
	during := w.renewed(t, before, w.node(r.munichDuring, "n1"))
	after := w.renewed(t, during, w.node(r.munich, "n1"))
	mixed := func(p ca.Pair, more ...*x509.Certificate) []*x509.Certificate {
		return append(slices.Clone(p.Chain), more...)
	}
	link := evil.during.Pair().Chain[1]
	for _, had := range []ca.Pair{during, after} {
		for name, chain := range map[string][]*x509.Certificate{
			"a chain of another successor":                   w.node(evil.munichDuring, "n1").Chain,
			"one that retires all before it":                 w.node(evil.munich, "n1").Chain,
			"one of the earlier key":                         before.Chain,
			"one of another successor with the genuine root": mixed(w.node(evil.munichDuring, "n1"), during.Chain[2:]...),
		} {
			if kept, err := roots.Renewed(w.now, had.Roots(), chain); err == nil {
				t.Errorf("%s was accepted: %d certificates kept", name, len(kept))
			}
		}
		// Its certificates are shown in addition to genuine ones.
		kept, err := roots.Renewed(w.now, had.Roots(), mixed(w.node(r.munich, "n1"), evil.during.Root(), link, w.root.Root()))
		if err != nil || roots.Contains(kept, evil.during.Root()) || len(had.Roots()) == 1 && roots.Contains(kept, w.root.Root()) {
			t.Errorf("a renewal of a machine with %d roots, with further certificates: %v, want it without these", len(had.Roots()), err)
		}
		if got := roots.Follow(w.now, had.Roots(), mixed(w.node(evil.munichDuring, "n1"))); len(got) != len(had.Roots()) {
			t.Errorf("%d roots trusted, want those from before", len(got))
		}
	}
	v := learnt(after)
	for name, chain := range map[string][]*x509.Certificate{
		"a link of the earlier key": w.node(evil.munichDuring, "n9").Chain,
		"the earlier key":           w.node(w.munich, "n9").Chain,
		"with the genuine root":     mixed(w.node(evil.munichDuring, "n9"), after.Chain[2:]...),
	} {
		if _, err := v.Chain(chain); err == nil {
			t.Errorf("accepted after the retirement: %s", name)
		}
	}
}

// A cluster cannot make its nodes trust another root: neither a new one, nor an earlier one that certifies the genuine key.
func TestAClusterAddsNoRoot(t *testing.T) {
	w := newWorld()
	r := newRotation(w)
	own := must(ca.NewRoot(w.now))
	before := w.node(w.munich, "n1")
	joined := w.renewed(t, ca.Pair{Chain: []*x509.Certificate{r.during.Root()}}, w.node(r.munichDuring, "n2"))
	if got := joined.Roots(); len(got) != 1 || !got[0].Equal(r.during.Root()) {
		t.Errorf("a node that joins with a pin of the new root trusts %d, want that one only", len(got))
	}
	renewed := w.node(r.munichDuring, "n1")
	renewed.Chain = append(renewed.Chain, own.Root())
	kept, err := roots.Renewed(w.now, before.Roots(), renewed.Chain)
	if err != nil || roots.Contains(kept, own.Root()) {
		t.Errorf("a renewal with a further root: %v, want it without", err)
	}
	if got := roots.Follow(w.now.Add(20*365*24*time.Hour), before.Roots(), renewed.Chain); len(got) != 1 {
		t.Error("a link was followed after its end")
	}
	long := slices.Repeat(renewed.Chain, 10)
	if _, err := roots.Renewed(w.now, before.Roots(), long); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a chain of %d certificates: %v, want ErrInvalid", len(long), err)
	}
}

func TestASecondRotationFollowsTheFirst(t *testing.T) {
	w := newWorld()
	r := newRotation(w)
	if _, err := r.during.Successor(w.now); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a rotation before the earlier key is retired: %v, want ErrConflict", err)
	}
	second := must(ca.New(must(r.after.Successor(w.now))))
	csr := must(ca.Request(w.munich.Pair().Key))
	chain := must(second.SignCluster(w.now, csr, "munich"))
	if g, err := identity.GenerationOf(chain[0]); err != nil || g != (identity.Generation{Root: 2, RootOldest: 1}) {
		t.Errorf("generation %+v, %v; want key 2 of the root, oldest 1", g, err)
	}
	had := w.renewed(t, w.node(w.munich, "n1"), w.node(r.munichDuring, "n1"))
	munich := must(ca.New(ca.Pair{Chain: chain, Key: w.munich.Pair().Key}))
	if got := w.renewed(t, had, w.node(munich, "n1")).Roots(); len(got) != 2 || !got[0].Equal(second.Root()) {
		t.Errorf("%d roots after the second rotation, want the newest two", len(got))
	}
}
