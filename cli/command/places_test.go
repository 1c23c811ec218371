package command_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Descriptions contain the values that placement depends on.
func TestDescriptionsSayWhatPlacementGoesBy(t *testing.T) {
	munich := api.Geo{Lat: 48.14, Lon: 11.58}
	at := api.Coordinate{Vec: []float64{0.012, -0.003}, Height: 0.0004, Error: 0.12}
	svc := api.Service{ID: "acme/video.prod.detect.v1", App: "acme/video.prod", Replicas: 1, Spec: api.Microservice{
		Name: "detect", Namespace: "v1", Virtualization: "container", Code: "acme/detect", VGPUs: 2, Priority: "urgent",
		Constraints: []api.Constraint{
			{Type: "direct", Cluster: "munich;oslo"},
			{Type: "addons", Needs: []string{"a", "b"}},
			{Type: "labels", Labels: []string{"rack", "!old"}, Rigidness: 5},
			{Type: "geo", Area: "de"},
			{Type: "geo", Location: "48.14,11.58", Threshold: 120},
			{Type: "geo", Polygon: []string{"1,1", "2,1", "2,2"}},
			{Type: "latency", Target: "gate.example.org:443", Threshold: 20, ConvergenceTime: 2},
			{Type: "spread"},
			{Type: "apart", Services: []string{"pre.v1"}, By: "rack"},
		},
		Connectivity: []api.Connectivity{{Target: "pre.v1", Constraints: []api.LinkConstraint{{Type: "latency", Threshold: 5}, {Type: "bandwidth", Threshold: 100}, {Type: "geo", Threshold: 9}}}},
	}}
	inst := api.Instance{ID: "acme/video.prod.detect.v1#0", Service: svc.ID, State: api.Running, Cluster: "munich", Violated: "latency 34.9 ms, at most 20 ms to pre.v1", Devices: []string{"acme.com/gpu=0", "acme.com/gpu=3"}}
	cl := api.Cluster{ClusterInfo: api.ClusterInfo{ID: "munich"}, Status: api.ClusterReady, NetworkError: "the instance network is exhausted", Aggregate: api.Aggregate{
		Nodes: 3, Hull: []api.Geo{munich, {Lat: 48, Lon: 11}}, Unplaced: 1, Latency: &api.CoordSpread{Center: at, Radius: 7500 * time.Microsecond, Nodes: 2},
		Slots: []api.Slot{{Runtime: "container", Arch: "amd64", Nodes: 3, Areas: []string{"de", "munich"}, Addons: []string{"a"}, Devices: []api.SlotDevice{{Name: "gpu", Free: 3, Largest: 2}}}},
	}}
	node := api.Node{Cluster: "munich", Status: api.NodeReady, Coord: &at, NodeInfo: api.NodeInfo{
		ID: "n1", OS: "linux", Arch: "amd64", Location: &munich, Areas: []string{"de", "munich"}, Addons: []string{"a"}, Labels: map[string]string{"rack": "7", "disk": "nvme"},
		Devices: []api.NodeDevice{{ID: "acme.com/gpu=0", Kinds: []string{"acme.com/gpu", "gpu"}, Model: "A2"}},
	}}
	r := canned(t, func(w http.ResponseWriter, req *http.Request) {
		last := req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]
		switch {
		case last == "why":
			say(t, w, api.Why{Instance: inst})
		case last == "n1":
			say(t, w, node)
		case last == "munich":
			say(t, w, cl)
		case last == "instances":
			say(t, w, api.Page[api.Instance]{Items: []api.Instance{inst}})
		case last == "services":
			say(t, w, api.Page[api.Service]{Items: []api.Service{svc}})
		default:
			say(t, w, api.Page[api.Event]{})
		}
	})
	for args, want := range map[string][]string{
		"describe node n1 --cluster munich": {
			"Location:     48.14,11.58\n", "Areas:        de, munich\n", "Labels:       disk=nvme,rack=7\n", "Addons:       a\n",
			"Device:       acme.com/gpu=0 (acme.com/gpu, gpu) A2\n", "Coordinate:   (12.0 -3.0) ms, height 0.40 ms, error 12 %\n",
		},
		"describe cluster munich": {
			"most on one 0 vCPU, 0 MiB; 3 gpu free, 2 on one; in de, munich; with a\n", "Region:       within 48.14,11.58 48,11, and 1 node without a location\n",
			"Latency:      2 nodes within 7.5 ms of (12.0 -3.0) ms", "Trouble:      the instance network is exhausted\n",
		},
		"describe instance video/detect#0": {"Devices:      acme.com/gpu=0, acme.com/gpu=3\n", "Violates:     latency 34.9 ms, at most 20 ms to pre.v1\n", "devices: acme.com/gpu=0"},
		"describe service video/detect": {
			"Device:       2 gpu, exclusively\n", "Priority:     urgent\n", "Constraint:   direct munich;oslo\n", "Constraint:   addons a,b\n",
			"Constraint:   labels rack,!old, violated for at most 5 s\n", "Constraint:   geo in de\n", "Constraint:   geo at most 120 km from 48.14,11.58\n",
			"Constraint:   geo within 1,1 2,1 2,2\n", "Constraint:   latency at most 20 ms to gate.example.org:443, placed within 2 s\n",
			"Constraint:   spread at most 1 per node\n", "Constraint:   apart pre.v1 per rack\n", "Link:         to pre.v1: at most 5 ms, 100 Mbit/s, at most 9 km\n",
		},
	} {
		out := r.must("", strings.Fields(args)...)
		for _, line := range want {
			if !strings.Contains(out, line) {
				t.Errorf("treeline %s lacks %q:\n%s", args, line, out)
			}
		}
	}
}
