package nodeset_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/nodeset"
	"github.com/treeline-edge/treeline/internal/wire"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func assignment(n int, e api.Epoch) wire.Assignment {
	return wire.Assignment{Instance: api.ServiceID("acme/a.b.c.d").Instance(n), Epoch: e}
}

// node applies messages as a node does.
type node struct {
	gen api.Generation
	has map[api.InstanceID]wire.Assignment
}

func (n *node) take(d wire.Desired) {
	if d.From != 0 && d.From != n.gen {
		return
	}
	if n.gen = d.Gen; d.From == 0 {
		n.has = map[api.InstanceID]wire.Assignment{}
	}
	for _, a := range d.Put {
		n.has[a.Instance] = a
	}
	for _, id := range d.Drop {
		delete(n.has, id)
	}
}

func (n *node) digest() (d api.Digest) {
	for _, a := range n.has {
		d = d.Toggle(a.Digest())
	}
	return d
}

// A node that receives every message, and the whole set after a lost one, has the set.
func TestANodeFollowsChangesOfItsSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s nodeset.Set
		var n node
		want, kept := map[api.InstanceID]wire.Assignment{}, map[api.InstanceID]wire.Assignment{}
		content := func(id api.InstanceID) wire.Assignment { return want[id] }
		deltas := 0
		for gen := range api.Generation(rapid.IntRange(2, 30).Draw(t, "steps")) {
			for range rapid.IntRange(1, 8).Draw(t, "changes") {
				a := assignment(rapid.IntRange(0, 79).Draw(t, "instance"), api.EpochOf(api.Revision(gen+1), 0))
				old, has := want[a.Instance]
				_, keeps := kept[a.Instance]
				switch op := rapid.IntRange(0, 5).Draw(t, "change"); {
				case op < 3:
					if s.EndKept(a.Instance) != keeps {
						t.Fatalf("EndKept of %s returns %v", a.Instance, !keeps)
					}
					delete(kept, a.Instance)
					want[a.Instance] = a
					s.Put(a)
				case op == 3 && has:
					delete(want, a.Instance)
					s.Drop(a.Instance)
				case op == 4 && has && !keeps:
					delete(want, a.Instance)
					s.Drop(a.Instance)
					kept[a.Instance] = old
					s.Keep(old)
				case op == 5 && keeps:
					delete(kept, a.Instance)
					s.EndKept(a.Instance)
				}
			}
			s.Begin(gen + 1)
			d := s.Changes(epoch, content)
			if rapid.IntRange(0, 4).Draw(t, "lost") == 0 {
				if !s.Overdue(epoch.Add(time.Second), n.gen, n.digest()) {
					t.Fatal("a set that the node does not have is not sent again")
				}
				d = s.Whole(epoch, content)
			} else if d.From != 0 {
				deltas++
			}
			n.take(d)
			if n.gen != s.Gen() || n.digest() != s.Digest() || s.Overdue(epoch.Add(time.Hour), n.gen, n.digest()) {
				t.Fatalf("generation %d: the node has %d entries at generation %d, want %d at %d", gen, len(n.has), n.gen, len(want)+len(kept), s.Gen())
			}
			for id, a := range kept {
				if n.has[id].Epoch != a.Epoch {
					t.Fatalf("the node has %+v in place of the kept placement %+v", n.has[id], a)
				}
			}
		}
	})
}

func TestLargeSetsTravelAsChangesAndSmallOnesWhole(t *testing.T) {
	for _, c := range []struct{ entries, from int }{{32, 0}, {33, 1}} {
		t.Run(fmt.Sprintf("%d entries", c.entries), func(t *testing.T) {
			var s nodeset.Set
			content := func(id api.InstanceID) wire.Assignment { return assignment(id.Number(), 1) }
			for n := range c.entries {
				s.Put(assignment(n, 1))
			}
			s.Begin(1)
			if d := s.Changes(epoch, content); d.From != 0 || len(d.Put) != c.entries {
				t.Errorf("the first message changes generation %d and has %d entries, want the whole set of %d", d.From, len(d.Put), c.entries)
			}
			s.Put(assignment(0, 1))
			s.Begin(2)
			if d := s.Changes(epoch, content); int(d.From) != c.from {
				t.Errorf("the message after one change is from generation %d, want %d", d.From, c.from)
			}
		})
	}
}
