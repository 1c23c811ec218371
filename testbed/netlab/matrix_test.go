package netlab_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// directIn reports whether two kinds of NAT permit a direct path in theory.
func directIn(a, b netlab.Kind) bool {
	lenient := func(k netlab.Kind) bool { return k <= netlab.Restricted }
	switch {
	case a == netlab.Blocked || b == netlab.Blocked:
		return false
	case a == netlab.Symmetric:
		return lenient(b)
	case b == netlab.Symmetric:
		return lenient(a)
	}
	return true
}

// eventually waits until ok returns nil, at most a minute and a half, because the machine may be
// busy.
func eventually(t testing.TB, what func() string) {
	t.Helper()
	end := time.Now().Add(90 * time.Second)
	for {
		missing := what()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(missing)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestEveryPairOfNATs connects 14 nodes, two behind each kind of NAT, in all 49 combinations.
func TestEveryPairOfNATs(t *testing.T) {
	w := newWorld(t)
	var as, bs []*node
	for _, k := range netlab.Kinds {
		as, bs = append(as, w.add(k)), append(bs, w.add(k))
	}
	eventually(t, func() string {
		for _, n := range w.nodes {
			if s := n.link.State(); !s.UDP && !s.TLS {
				return fmt.Sprintf("node %d (%v) does not reach the relay: %+v", n.i, n.kind, s)
			}
		}
		return ""
	})
	for _, b := range bs {
		b.echo()
	}
	for _, a := range as {
		for _, b := range bs {
			a.knows(b)
			b.knows(a)
		}
	}
	for _, a := range as {
		a.talk(bs)
	}
	// amiss returns how a path differs from theory.
	amiss := func(a, b *node, r overlay.Path) string {
		switch {
		case directIn(a.kind, b.kind) != (r.Kind == api.PathDirect):
			return fmt.Sprintf("direct in theory: %v", directIn(a.kind, b.kind))
		case (a.kind == netlab.None && b.kind == netlab.None) != r.NoNAT:
			return "plain is where there is no NAT"
		case (a.kind == netlab.Blocked) != (r.Kind == api.PathRelayTLS):
			return "by TLS is what cannot send by UDP"
		}
		return ""
	}
	paths := map[[2]*node]overlay.Path{} // at one time, because probes may be late on a busy machine
	eventually(t, func() string {
		for _, a := range as {
			for _, b := range bs {
				r, _, _, echoes := a.sees(b)
				paths[[2]*node{a, b}] = r
				if echoes < 20 {
					return fmt.Sprintf("%v to %v: %d echoes by %v", a.kind, b.kind, echoes, r)
				}
				if s := amiss(a, b, r); s != "" {
					return fmt.Sprintf("%v to %v: %+v, %s", a.kind, b.kind, r, s)
				}
			}
		}
		return ""
	})
	table := new(strings.Builder)
	for _, b := range bs {
		fmt.Fprintf(table, "%24v", b.kind)
	}
	for _, a := range as {
		fmt.Fprintf(table, "\n%16v", a.kind)
		for _, b := range bs {
			r := paths[[2]*node{a, b}]
			_, first, direct, _ := a.sees(b)
			cell := fmt.Sprintf("%s %d ms", r.Kind, first.Milliseconds())
			if r.Kind == api.PathDirect {
				cell += fmt.Sprintf(", %d ms", direct.Milliseconds())
			}
			fmt.Fprintf(table, "%24s", cell)
		}
	}
	t.Logf("path, time until the first echo, until it was direct\n%s\nrelay: %+v", table, w.relay.Stats())
}
