package command

import (
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestHealthChecksAreDescribedWithTheirDefaults(t *testing.T) {
	for name, c := range map[string]struct {
		health *api.Health
		want   []string
	}{
		"none in the SLA": {nil, nil},
		"none":            {&api.Health{None: true}, []string{"no checks, not even that of the image"}},
		"checks": {
			&api.Health{
				Startup:   &api.Check{TCP: &api.TCPCheck{Port: 80}, InitialDelay: 5},
				Readiness: &api.Check{HTTP: &api.HTTPCheck{Port: 8080, Path: "/healthz"}, Interval: 2, Successes: 3},
			},
			[]string{
				"startup by TCP :80 every 10 s, within 3 s; 30 in a row fail it, after 5 s",
				"readiness by GET :8080/healthz every 2 s, within 3 s; 3 in a row fail it, 3 in a row pass it",
			},
		},
	} {
		if got := healthLines(c.health); !slices.Equal(got, c.want) {
			t.Errorf("%s: described as %q, want %q", name, got, c.want)
		}
	}
}
