package nft_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// TestAFlushedRulesetIsRestored flushes all rules of the host.
func TestAFlushedRulesetIsRestored(t *testing.T) {
	w := dataplanetest.NewWorld(t, open, api.PathRoute)
	h := w.Hosts[0]
	before := h.Output("nft", "-s", "list", "ruleset")
	h.Output("nft", "flush", "ruleset")
	// This deletes an element that does not exist any more.
	h.MustApply(plane.Change{Deny: []plane.Pair{{From: 1, To: 2}}})
	h.MustApply(plane.Change{Allow: []plane.Pair{{From: 1, To: 2}}})
	if after := h.Output("nft", "-s", "list", "ruleset"); len(after) != len(before) {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// TestOthersRulesStay adds tables of other programs on the same host.
func TestOthersRulesStay(t *testing.T) {
	w := dataplanetest.NewWorld(t, open, api.PathRoute)
	h := w.Hosts[0]
	h.Output("nft", "add", "table", "inet", "tlx")
	h.Output("nft", "add", "table", "ip", "filter")
	h.MustSync(h.State)
	h.Do(func() {
		if err := h.Plane.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if got, want := h.Output("nft", "list", "tables"), "table inet tlx\ntable ip filter\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAnotherVersionsTableIsReplaced creates a different table under the plane's name.
func TestAnotherVersionsTableIsReplaced(t *testing.T) {
	w := dataplanetest.NewWorld(t, open, api.PathRoute)
	h := w.Hosts[0]
	h.Output("nft", "delete", "table", "inet", "tl")
	h.Output("nft", "add", "table", "inet", "tl")
	h.Output("nft", "add", "set", "inet", "tl", "backends", "{ type ipv4_addr; flags interval; }")
	h.Kill()
	h.MustSync(h.State)
	h.MustUse()
}

// TestAFullSetIsReplaced adds more elements than a set has space for, while a flow continues.
func TestAFullSetIsReplaced(t *testing.T) {
	w := dataplanetest.NewWorld(t, open, api.PathRoute)
	w.C(4).Serve("c4", 80)
	f := w.C(1).Open("tcp", netip.AddrPortFrom(w.C(4).Addr, 80))
	if err := f.Echo(); err != nil {
		t.Fatal(err)
	}
	var c plane.Change
	const many = 5000
	for n := range many {
		c.Allow = append(c.Allow, plane.Pair{From: 1000, To: plane.Ident(n)})
	}
	h := w.Hosts[0]
	h.MustApply(c)
	if err := f.Echo(); err != nil {
		t.Error(err)
	}
	has := func() int { return strings.Count(h.Output("nft", "list", "set", "inet", "tl", "allowed"), " . 0x") }
	if n := has(); n < many {
		t.Errorf("%d pairs of %d", n, many)
	}
	h.MustApply(plane.Change{Deny: c.Allow})
	if n := has(); n >= many {
		t.Errorf("%d pairs are left", n)
	}
}
