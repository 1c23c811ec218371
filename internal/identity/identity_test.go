package identity

import (
	"errors"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestParseIsStringBackwards(t *testing.T) {
	for _, id := range []Identity{OfRoot(), OfCluster("munich"), OfNode("munich", "n7")} {
		got, err := Parse(id.String())
		if err != nil || got != id {
			t.Errorf("%s: %v, %v", id, got, err)
		}
		if id.URL().String() != id.String() {
			t.Errorf("URL %s of %s", id.URL(), id)
		}
	}
	for _, s := range []string{
		"", "treeline://", "treeline://root/", "treeline://root/x", "http://root", "treeline://cluster", "treeline://cluster/",
		"treeline://cluster/A", "treeline://cluster/a/node/", "treeline://cluster/a/node/cluster", "treeline://cluster/a/nodes/b",
		"treeline://cluster/a/node/b/c", "treeline://cluster/a/node/..", "treeline://cluster/a?x", "treeline://Root",
	} {
		if id, err := Parse(s); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q: %v, %v", s, id, err)
		}
	}
}

func TestMayIssue(t *testing.T) {
	root, a, b, an := OfRoot(), OfCluster("a"), OfCluster("b"), OfNode("a", "n")
	ids := []Identity{root, a, b, an, {}}
	allowed := map[[2]Identity]bool{
		{root, root}: true, {root, a}: true, {root, b}: true,
		{a, a}: true, {a, an}: true, {b, b}: true,
	}
	for _, i := range ids {
		for _, o := range ids {
			if i.MayIssue(o) != allowed[[2]Identity{i, o}] {
				t.Errorf("%q may issue %q: %v", i, o, i.MayIssue(o))
			}
		}
	}
}
