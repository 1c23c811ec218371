package wiring

import (
	"errors"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestWhatCannotBePlacedByIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		ok     bool
	}{
		"the defaults":            {func(*Config) {}, true},
		"each of the house":       {func(c *Config) { c.Scheduler = "ldp" }, true},
		"a module":                {func(c *Config) { c.Scheduler = "wasm:/lib/s.wasm" }, true},
		"a service":               {func(c *Config) { c.Scheduler = "http://brain:80" }, true},
		"nobody's":                {func(c *Config) { c.Scheduler = "roma" }, false},
		"none":                    {func(c *Config) { c.Scheduler = "" }, false},
		"half":                    {func(c *Config) { c.Offer.Share = 0.5 }, true},
		"nothing":                 {func(c *Config) { c.Offer.Share = 0 }, false},
		"more than all":           {func(c *Config) { c.Offer.Share = 1.5 }, false},
		"sums":                    {func(c *Config) { c.Offer.Detail = "sums" }, true},
		"a detail that is none":   {func(c *Config) { c.Offer.Detail = "nodes" }, false},
		"steps of all":            {func(c *Config) { c.Offer.Round = 1 }, false},
		"never to move":           {func(c *Config) { c.MovesPerHour = 0 }, true},
		"less than never":         {func(c *Config) { c.MovesPerHour = -1 }, false},
		"a network":               {func(c *Config) { c.Probe.Allow = []string{"10.9.0.0/16"} }, true},
		"an address in a network": {func(c *Config) { c.Probe.Deny = []string{"10.9.0.1/16"} }, false},
	} {
		conf := Defaults()
		c.change(&conf)
		if err := conf.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheCoreIsToldWhatTheOperatorSays(t *testing.T) {
	conf := Defaults()
	conf.Scheduler, conf.Preempt, conf.MovesPerHour, conf.Probe.Off = "ldp", true, 0, true
	core := conf.core(api.ClusterInfo{ID: "munich", Location: "48.14,11.58"}, nil, "", nil)
	if core.Plugin.Name() != "ldp" || !core.Preempt || core.MovesPerHour >= 0 || !core.Probe.Off || core.Asks != "" || core.Location == nil || core.Location.Lat != 48.14 {
		t.Errorf("%+v", core)
	}
	if core := conf.core(api.ClusterInfo{ID: "munich", Location: "Munich"}, nil, "", nil); core.Location != nil {
		t.Errorf("Munich is at %v", core.Location)
	}
}
