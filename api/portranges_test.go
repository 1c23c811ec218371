package api_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestPortRanges(t *testing.T) {
	for text, want := range map[string][]api.PortRange{
		api.DefaultPublish: {{First: 80, Last: 80}, {First: 443, Last: 443}, {First: 1024, Last: 65535}},
		" 80 , 90 - 91 ":   {{First: 80, Last: 80}, {First: 90, Last: 91}},
		"none":             nil,
	} {
		if got, err := api.ParsePortRanges(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for text, says := range map[string]string{
		"": "not a list of ports", "0": "not a list of ports", "65536": "not a list of ports", "80,": "not a list of ports", "http": "such as 80,443", "90-80": "ends before it begins",
		"80-": "not a list of ports", strings.Repeat("80,", api.MaxPortRanges) + "80": "more than",
	} {
		if _, err := api.ParsePortRanges(text); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

func TestNodesSayWhyTheyRefuseAPort(t *testing.T) {
	n := &api.NodePorts{Publish: []api.PortRange{{First: 80, Last: 80}, {First: 1024, Last: 65535}}, Own: []api.HostPort{{Port: 4789, Protocol: "udp"}}}
	for p, want := range map[api.HostPort]string{
		{Port: 80, Protocol: "tcp"}:   "",
		{Port: 4789, Protocol: "tcp"}: "",
		{Port: 4789, Protocol: "udp"}: "used by the node itself",
		{Port: 22, Protocol: "tcp"}:   "not among the ports that may be published on the node (80,1024-65535)",
	} {
		if got := n.Refuses(p); got != want {
			t.Errorf("%s: %q, want %q", p, got, want)
		}
	}
	if got := (&api.NodePorts{}).Refuses(api.HostPort{Port: 80, Protocol: "tcp"}); got != "not among the ports that may be published on the node (none)" {
		t.Errorf("no port at all: %q", got)
	}
	if got := (*api.NodePorts)(nil).Refuses(api.HostPort{Port: 22, Protocol: "tcp"}); got != "" {
		t.Errorf("a node that says nothing: %q", got)
	}
}
