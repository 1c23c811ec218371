package dataplane

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

func backend(n, weight int) plane.Backend {
	return plane.Backend{Address: netip.AddrFrom4([4]byte{10, 16, 0, byte(n)}), Weight: weight}
}

func TestTurnsAreProportionalToWeightsAndSpread(t *testing.T) {
	for _, c := range []struct {
		weights []int
		start   int
		want    string
	}{
		{nil, 0, "[]"},
		{[]int{3}, 5, "[0]"},
		{[]int{1, 1, 1}, 0, "[0 1 2]"},
		{[]int{1, 1, 1}, 4, "[1 2 0]"},
		{[]int{8, 8}, 0, "[0 1]"},
		{[]int{4, 2, 1}, 0, "[0 1 0 2 0 1 0]"},
		{[]int{16, 1}, 1, "[0 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0]"},
	} {
		var bs []plane.Backend
		for n, w := range c.weights {
			bs = append(bs, backend(n, w))
		}
		got := []byte{}
		for _, a := range Turns(bs, c.start) {
			got = append(got, a.As4()[3])
		}
		if s := fmt.Sprint(got); s != c.want {
			t.Errorf("weights %v from %d: %s, want %s", c.weights, c.start, s, c.want)
		}
	}
}

func TestEveryBackendHasTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(1, 16), 1, 20).Draw(t, "weights")
		var bs []plane.Backend
		for n, w := range weights {
			bs = append(bs, backend(n, w))
		}
		turns := Turns(bs, rapid.IntRange(0, 1000).Draw(t, "start"))
		count := map[netip.Addr]int{}
		for _, a := range turns {
			count[a]++
		}
		for _, b := range bs {
			if count[b.Address]*bs[0].Weight != count[bs[0].Address]*b.Weight {
				t.Fatalf("weights %v: turns %v, want them in proportion", weights, count)
			}
		}
	})
}
