package account

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func gpus(ids ...string) (out []api.NodeDevice) {
	for _, id := range ids {
		out = append(out, api.NodeDevice{ID: id, Kinds: []string{api.DeviceGPU, "nvidia.com/gpu"}})
	}
	return out
}

func TestADeviceOfSeveralKindsCountsAgainstEach(t *testing.T) {
	plain := api.NodeDevice{ID: "x=0", Kinds: []string{"x"}}
	both := api.NodeDevice{ID: "x=1", Kinds: []string{api.DeviceGPU, "x"}}
	one := func(kind string, n int) Claim { return Claim{Devices: []api.Device{{Name: kind, Count: n}}} }
	for name, c := range map[string]struct {
		have  []api.NodeDevice
		book  map[api.InstanceID]Claim
		given map[api.InstanceID][]string
		want  map[string]int
	}{
		"nothing is taken":              {gpus("a", "b"), nil, nil, map[string]int{"gpu": 2, "nvidia.com/gpu": 2}},
		"one is":                        {gpus("a", "b"), map[api.InstanceID]Claim{"i": one("gpu", 1)}, nil, map[string]int{"gpu": 1, "nvidia.com/gpu": 1}},
		"it may be either":              {[]api.NodeDevice{plain, both}, map[api.InstanceID]Claim{"i": one("x", 1)}, nil, map[string]int{"gpu": 0, "x": 1}},
		"it is the plain one":           {[]api.NodeDevice{plain, both}, map[api.InstanceID]Claim{"i": one("x", 1)}, map[api.InstanceID][]string{"i": {"x=0"}}, map[string]int{"gpu": 1, "x": 1}},
		"what the node says is no sum":  {[]api.NodeDevice{plain, both}, map[api.InstanceID]Claim{"i": one("x", 2)}, map[api.InstanceID][]string{"i": {"x=0"}}, map[string]int{"gpu": 0, "x": 0}},
		"what the node says is unknown": {[]api.NodeDevice{plain, both}, map[api.InstanceID]Claim{"i": one("x", 1)}, map[api.InstanceID][]string{"i": {"y"}}, map[string]int{"gpu": 0, "x": 1}},
		"more are given than there are": {gpus("a"), map[api.InstanceID]Claim{"i": one("gpu", 2)}, nil, map[string]int{"gpu": 0, "nvidia.com/gpu": 0}},
		"a node says a device twice":    {append(gpus("a"), gpus("a")...), nil, nil, map[string]int{"gpu": 1, "nvidia.com/gpu": 1}},
	} {
		got := DevicesOf(c.have).Free(c.book, c.given)
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v are free, want %v", name, got, c.want)
		}
	}
	d := DevicesOf(gpus("a"))
	if want := []api.Device{{Name: "gpu", Count: 1}, {Name: "nvidia.com/gpu", Count: 1}}; d.FitTogether(want, d.total) {
		t.Error("one device serves for two")
	}
}

// TestFreeDevicesAreFreeUnderAnyAssignment assigns devices at random as a node may, and
// compares with Devices.Free.
func TestFreeDevicesAreFreeUnderAnyAssignment(t *testing.T) {
	kinds := []string{"a", "b", "c"}
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var have []api.NodeDevice
		for i := range rng.IntN(6) {
			d := api.NodeDevice{ID: string(rune('0' + i))}
			for _, k := range kinds {
				if rng.IntN(2) == 0 {
					d.Kinds = append(d.Kinds, k)
				}
			}
			have = append(have, d)
		}
		d, booked, free := DevicesOf(have), map[api.InstanceID]Claim{}, slices.Clone(have)
		said := map[api.InstanceID][]string{}
		for i := range 4 {
			kind, n := kinds[rng.IntN(3)], 1+rng.IntN(2)
			promised := d.Free(booked, said)
			if promised[kind] < n {
				continue
			}
			id := api.InstanceID(rune('i' + i))
			booked[id] = Claim{Devices: []api.Device{{Name: kind, Count: n}}}
			var got []string
			for _, at := range rng.Perm(len(free)) {
				if len(got) < n && slices.Contains(free[at].Kinds, kind) {
					got = append(got, free[at].ID)
				}
			}
			if len(got) < n {
				t.Fatalf("seed %d: %d of %s were promised, of %v there are %v", seed, n, kind, have, free)
			}
			free = slices.DeleteFunc(free, func(d api.NodeDevice) bool { return slices.Contains(got, d.ID) })
			if rng.IntN(2) == 0 {
				said[id] = got
			}
		}
	}
}
