package wiring

import (
	"strings"
	"testing"
)

func TestConfigurationIsChecked(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Errorf("Defaults().Validate() = %v, want nil", err)
	}
	for name, change := range map[string]func(*Config){
		"relative socket": func(c *Config) { c.Socket = "net.sock" },
		"long socket":     func(c *Config) { c.Socket = "/run/" + strings.Repeat("d", 100) + "/net.sock" },
		"odd plane":       func(c *Config) { c.Plane = "ipvs" },
		"long prefix":     func(c *Config) { c.Prefix = "treeline" }, // too long for device names
		"odd prefix":      func(c *Config) { c.Prefix = "9/" },
		"odd listen":      func(c *Config) { c.Listen = "everywhere" },
		"odd network":     func(c *Config) { c.Closed = []string{"10.0.0.0/33"} },
		"odd resolver":    func(c *Config) { c.Resolvers = []string{"dns.example"} },
		"open status":     func(c *Config) { c.ListenStatus = "0.0.0.0:9" },
	} {
		c := Defaults()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: Validate() = nil, want an error", name)
		}
	}
}
