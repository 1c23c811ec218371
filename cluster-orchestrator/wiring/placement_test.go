package wiring

import (
	"errors"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestInvalidPlacementSettingsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		ok     bool
	}{
		"the defaults":            {func(*Config) {}, true},
		"a built-in scheduler":    {func(c *Config) { c.Scheduler = "ldp" }, true},
		"a module":                {func(c *Config) { c.Scheduler = "wasm:/lib/s.wasm" }, true},
		"a service":               {func(c *Config) { c.Scheduler = "http://brain:80" }, true},
		"an unknown scheduler":    {func(c *Config) { c.Scheduler = "roma" }, false},
		"no scheduler":            {func(c *Config) { c.Scheduler = "" }, false},
		"half of the capacity":    {func(c *Config) { c.Offer.Share = 0.5 }, true},
		"no capacity":             {func(c *Config) { c.Offer.Share = 0 }, false},
		"more than the capacity":  {func(c *Config) { c.Offer.Share = 1.5 }, false},
		"sums":                    {func(c *Config) { c.Offer.Detail = "sums" }, true},
		"an unknown detail":       {func(c *Config) { c.Offer.Detail = "nodes" }, false},
		"rounding to a mean node": {func(c *Config) { c.Offer.Round = 1 }, false},
		"no moves":                {func(c *Config) { c.MovesPerHour = 0 }, true},
		"negative moves":          {func(c *Config) { c.MovesPerHour = -1 }, false},
		"a network":               {func(c *Config) { c.Probe.Allow = []string{"10.9.0.0/16"} }, true},
		"an address in a network": {func(c *Config) { c.Probe.Deny = []string{"10.9.0.1/16"} }, false},
	} {
		conf := Defaults()
		c.change(&conf)
		if err := conf.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: Validate returns %v, want valid %v", name, err, c.ok)
		}
	}
}

func TestSettingsReachTheCore(t *testing.T) {
	conf := Defaults()
	conf.Scheduler, conf.Preempt, conf.MovesPerHour, conf.Probe.Off = "ldp", true, 0, true
	core := conf.core(api.ClusterInfo{ID: "munich", Location: "48.14,11.58"}, nil, "", nil)
	if core.Plugin.Name() != "ldp" || !core.Preempt || core.MovesPerHour >= 0 || !core.Probe.Off || core.Asks != "" || core.Location == nil || core.Location.Lat != 48.14 {
		t.Errorf("the core's configuration is %+v, want ldp, preemption, no moves, no probes, at latitude 48.14", core)
	}
	if core := conf.core(api.ClusterInfo{ID: "munich", Location: "Munich"}, nil, "", nil); core.Location != nil {
		t.Errorf("the location Munich is %v, want none: it is no coordinate", core.Location)
	}
}
