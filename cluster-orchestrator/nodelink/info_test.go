package nodelink

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestWhatANodeIsIsBounded(t *testing.T) {
	many := make([]string, maxWords+1)
	labels := map[string]string{}
	for i := range many {
		labels[strings.Repeat("k", i+1)] = "v"
	}
	for name, info := range map[string]api.NodeInfo{
		"name":     {ID: "No Name"},
		"hostname": {Hostname: strings.Repeat("h", 254)},
		"capacity": {Capacity: api.Resources{InMbit: -1}},
		"location": {Location: &api.Geo{Lat: 91}},
		"runtimes": {Runtimes: many},
		"addons":   {Addons: many},
		"areas":    {Areas: []string{strings.Repeat("a", maxWord+1)}},
		"labels":   {Labels: labels},
		"label":    {Labels: map[string]string{"k": strings.Repeat("v", maxWord)}},
		"devices":  {Devices: make([]api.NodeDevice, maxDevices+1)},
		"kinds":    {Devices: []api.NodeDevice{{ID: "d", Kinds: many}}},
		"device":   {Devices: []api.NodeDevice{{ID: strings.Repeat("d", maxWord+1)}}},
	} {
		if _, err := checked(info); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "name" {
			continue // the topic says who it is
		}
		report, err := json.Marshal(api.NodeReport{Info: &info})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := observed("n1", report); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s in a report: %v", name, err)
		}
	}
	good := api.NodeInfo{
		ID: "n1", Location: &api.Geo{Lat: 48, Lon: 11}, Areas: []string{"de"}, Labels: map[string]string{"rack": "r1"},
		Devices: []api.NodeDevice{{ID: "gpu0", Kinds: []string{"gpu"}}}, Capacity: api.Resources{MilliCPU: 1, InMbit: 1},
	}
	if _, err := checked(good); err != nil {
		t.Error(err)
	}
}
