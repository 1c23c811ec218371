package nodecaps

import (
	"reflect"
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func claims() api.NodeInfo {
	return api.NodeInfo{
		ID: "n1", Capacity: api.Resources{MilliCPU: 64_500, MemoryMB: 1 << 20, StorageMB: 1 << 20, InMbit: 10_000, OutMbit: 10_000},
		Runtimes: []string{"container", "process", "runsc"}, Privileged: true,
		Devices: []api.NodeDevice{
			{ID: "a", Kinds: []string{"gpu", "vendor.com/gpu"}},
			{ID: "a", Kinds: []string{"gpu", "vendor.com/gpu"}},
			{ID: "b", Kinds: []string{"vendor.com/gpu", "gpu"}},
			{ID: "c", Kinds: []string{"tpu"}},
		},
	}
}

func TestReportsAboveACapCountAsTheCap(t *testing.T) {
	has := claims()
	counts, capped := Caps{
		Max:     api.Resources{MilliCPU: 8000, MemoryMB: 8192, StorageMB: 1000, InMbit: 100, OutMbit: 20},
		Devices: map[string]int{"gpu": 1, "tpu": 4}, Runtimes: []string{"container", "runsc", "wasm"}, Privileged: Deny,
	}.Limit(has, true)
	want := claims()
	want.Capacity = api.Resources{MilliCPU: 8000, MemoryMB: 8192, StorageMB: 1000, InMbit: 100, OutMbit: 20}
	want.Devices = []api.NodeDevice{has.Devices[0], has.Devices[3]}
	want.Runtimes, want.Privileged = []string{"container", "runsc"}, false
	if !reflect.DeepEqual(counts, want) {
		t.Errorf("%+v counts, want %+v", counts, want)
	}
	if told := []api.Capped{
		{What: "vcpus", Claims: "64.5", Counts: "8"},
		{What: "memory", Claims: "1024 GiB", Counts: "8192 MiB"},
		{What: "storage", Claims: "1024 GiB", Counts: "1000 MiB"},
		{What: "bandwidth_in", Claims: "10000 Mbit/s", Counts: "100 Mbit/s"},
		{What: "bandwidth_out", Claims: "10000 Mbit/s", Counts: "20 Mbit/s"},
		{What: "gpu", Claims: "2", Counts: "1"},
		{What: "runtimes", Claims: "container, process, runsc", Counts: "container, runsc"},
		{What: "privileged", Claims: "allowed", Counts: "forbidden"},
	}; !slices.Equal(capped, told) {
		t.Errorf("capped %+v, want %+v", capped, told)
	}
	if !reflect.DeepEqual(has, claims()) {
		t.Errorf("the claims were changed: %+v", has)
	}
}

func TestAReportWithinTheCapsIsUsed(t *testing.T) {
	for name, caps := range map[string]Caps{
		"none":  {},
		"equal": {Max: claims().Capacity, Devices: map[string]int{"gpu": 2, "tpu": 1}, Runtimes: claims().Runtimes},
	} {
		if counts, capped := caps.Limit(claims(), false); !reflect.DeepEqual(counts, claims()) || capped != nil {
			t.Errorf("%s: %+v counts, capped %+v", name, counts, capped)
		}
	}
}

// TestACapOfNoneLeavesNone: a cap of 0 on one kind removes its devices under their other kinds
// too.
func TestACapOfNoneLeavesNone(t *testing.T) {
	counts, _ := Caps{Devices: map[string]int{"gpu": 0}, Runtimes: []string{"kata"}}.Limit(claims(), false)
	if len(counts.Devices) != 1 || counts.Devices[0].ID != "c" || len(counts.Runtimes) != 0 {
		t.Errorf("devices %+v, runtimes %v", counts.Devices, counts.Runtimes)
	}
}

func TestPrivilegedCountsWhereTheOperatorAllowsIt(t *testing.T) {
	for _, c := range []struct {
		cap                    Privileged
		claims, existing, want bool
	}{
		{Allow, true, false, true},
		{Allow, false, true, false},
		{Existing, true, false, false},
		{Existing, true, true, true},
		{Existing, false, true, false},
		{Deny, true, true, false},
	} {
		counts, capped := Caps{Privileged: c.cap}.Limit(api.NodeInfo{Privileged: c.claims}, c.existing)
		if counts.Privileged != c.want || (len(capped) > 0) != (c.claims && !c.want) {
			t.Errorf("%+v: counts as %v, capped %v", c, counts.Privileged, capped)
		}
	}
}

func TestCapsOfANodeReplaceTheDefaultCaps(t *testing.T) {
	p := Policy{Default: Caps{Privileged: Deny}, Nodes: map[api.NodeID]Caps{"n1": {}}}
	if p.Of("n1").Privileged != Allow || p.Of("n2").Privileged != Deny {
		t.Errorf("n1 has %+v, n2 has %+v", p.Of("n1"), p.Of("n2"))
	}
}
