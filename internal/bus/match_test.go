package bus_test

import (
	"testing"

	"github.com/treeline-edge/treeline/internal/bus"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		filter, topic string
		want          bool
	}{
		{"nodes/a/alive", "nodes/a/alive", true},
		{"nodes/a/alive", "nodes/b/alive", false},
		{"nodes/+/alive", "nodes/b/alive", true},
		{"nodes/+/alive", "nodes/b/will", false},
		{"nodes/+", "nodes/b/will", false},
		{"nodes/+/+", "nodes/b", false},
		{"nodes/#", "nodes/b/will", true},
		{"nodes/#", "nodes", true},
		{"nodes/b/#", "nodes/bc/will", false},
		{"#", "nodes/b", true},
		{"#", "$SYS/broker", false},
		{"$SYS/#", "$SYS/broker", true},
		{"nodes/a", "nodes/a/alive", false},
	} {
		if got := bus.Match(c.filter, c.topic); got != c.want {
			t.Errorf("Match(%q, %q) = %v, want %v", c.filter, c.topic, got, c.want)
		}
	}
}

func TestValidFilter(t *testing.T) {
	for filter, want := range map[string]bool{
		"nodes/+/alive": true, "#": true, "nodes/#": true, "+": true, "/": true, "nodes//x": true,
		"": false, "#/nodes": false, "nodes/a+": false, "nodes/#a": false, "nodes/#/x": false,
	} {
		if got := bus.ValidFilter(filter); got != want {
			t.Errorf("ValidFilter(%q) = %v", filter, got)
		}
	}
}
