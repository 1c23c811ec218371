package api_test

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestDisruptionBudgets(t *testing.T) {
	for fields, want := range map[string]struct {
		budget  int
		limited bool
		fault   string
	}{
		`"exclusive":true`:                                    {},
		`"disruption":null`:                                   {},
		`"disruption":{}`:                                     {budget: 1, limited: true},
		`"disruption":{"max_unavailable":0}`:                  {limited: true},
		`"disruption":{"max_unavailable":3}`:                  {budget: 3, limited: true},
		`"disruption":{"max_unavailable":-1}`:                 {fault: "0 to 10000"},
		`"disruption":{"max_unavailable":"20%"}`:              {fault: "max_unavailable"},
		`"disruption":{"min_available":1}`:                    {fault: "no field"},
		`"one_shot":true,"disruption":{"max_unavailable":1}`:  {fault: "leave disruption out"},
		`"one_shot":true,"disruption":null`:                   {},
		`"exclusive":true,"disruption":{"max_unavailable":0}`: {limited: true},
	} {
		sla, err := api.ParseSLA([]byte(jobSLA(fields)))
		if want.fault != "" {
			if err == nil || !strings.Contains(err.Error(), want.fault) {
				t.Errorf("%s: got %v, want an error with %q", fields, err, want.fault)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", fields, err)
			continue
		}
		n, limited := sla.Applications[0].Services[0].MaxUnavailable()
		if n != want.budget || limited != want.limited {
			t.Errorf("%s: got %d, %v, want %d, %v", fields, n, limited, want.budget, want.limited)
		}
	}
}
