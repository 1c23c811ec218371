package api_test

import (
	"encoding/json"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// Unless its document opts out, a container runs only on nodes with an overlay network, whether it
// publishes a port or not. A process uses its node's network.
func TestTheOverlayNetworkIsNeededUnlessTheDocumentOptsOut(t *testing.T) {
	for _, tt := range []struct {
		fields  string
		network string
		needs   bool
	}{
		{``, api.NetworkOverlay, true},
		{`"network":null`, api.NetworkOverlay, true},
		{`"network":""`, api.NetworkOverlay, true},
		{`"network":"overlay"`, api.NetworkOverlay, true},
		{`"one_shot":true`, api.NetworkOverlay, true},
		{`"virtualization":"docker"`, api.NetworkOverlay, true},
		{`"virtualization":"runsc"`, api.NetworkOverlay, true},
		{`"network":"any"`, api.NetworkAny, false},
		{`"network":"any","port":"","bandwidth_in":0,"addresses":{"rr_ip":""},"callers":[]`, api.NetworkAny, false},
		{`"virtualization":"process","code":"/bin/x"`, "", false},
		{`"virtualization":"process","code":"/bin/x","network":"any"`, api.NetworkAny, false},
	} {
		sla, err := api.ParseSLA([]byte(placed(tt.fields)))
		if err != nil {
			t.Errorf("fields %s: %v, want them accepted", tt.fields, err)
			continue
		}
		if m := sla.Applications[0].Services[0]; m.Network != tt.network || m.NeedsNetwork() != tt.needs {
			t.Errorf("%s: network %q, needs the overlay: %v", tt.fields, m.Network, m.NeedsNetwork())
		}
	}
}

// Services that the previous release stored or sends keep their meaning.
func TestServicesOfTheReleaseBeforeNeedTheOverlayNetworkIfTheyUseIt(t *testing.T) {
	for doc, needs := range map[string]bool{
		`{"virtualization":"container"}`:               false,
		`{"virtualization":"container","port":"80"}`:   true,
		`{"virtualization":"container","calls":["x"]}`: true,
	} {
		var m api.Microservice
		if err := json.Unmarshal([]byte(doc), &m); err != nil || m.NeedsNetwork() != needs {
			t.Errorf("%s: needs the overlay: %v, %v", doc, m.NeedsNetwork(), err)
		}
	}
}
