package containerd

import (
	"reflect"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestHealthchecksOfImages(t *testing.T) {
	checks := func(startFailures int, live api.Check) *api.Health {
		start := live
		start.Failures = startFailures
		return &api.Health{Startup: &start, Liveness: &live}
	}
	for name, c := range map[string]struct {
		config string
		want   *api.Health
	}{
		"none":            {`{"config":{}}`, nil},
		"no config":       {`{}`, nil},
		"no JSON":         {`x`, nil},
		"inherited":       {`{"config":{"Healthcheck":{"Test":[]}}}`, nil},
		"switched off":    {`{"config":{"Healthcheck":{"Test":["NONE"]}}}`, nil},
		"another form":    {`{"config":{"Healthcheck":{"Test":["WASM","x"]}}}`, nil},
		"a null":          {`{"config":{"Healthcheck":null}}`, nil},
		"another type":    {`{"config":{"Healthcheck":{"Test":"curl"}}}`, nil},
		"a long argument": {`{"config":{"Healthcheck":{"Test":["CMD","` + strings.Repeat("x", 5000) + `"]}}}`, nil},
		"many arguments":  {`{"config":{"Healthcheck":{"Test":["CMD"` + strings.Repeat(`,"x"`, 70) + `]}}}`, nil},
		"defaults": {
			`{"config":{"Healthcheck":{"Test":["CMD","/bin/check","-q"]}}}`,
			checks(3, api.Check{Command: []string{"/bin/check", "-q"}, Interval: 30, Timeout: 30, Failures: 3}),
		},
		"a shell": {
			`{"config":{"Healthcheck":{"Test":["CMD-SHELL","curl -f localhost || exit 1"],"Interval":10000000000,"Timeout":2500000000,"StartPeriod":60000000000,"Retries":5}}}`,
			checks(11, api.Check{Command: []string{"/bin/sh", "-c", "curl -f localhost || exit 1"}, Interval: 10, Timeout: 3, Failures: 5}),
		},
		"out of bounds": {
			`{"config":{"Healthcheck":{"Test":["CMD","x"],"Interval":1000000,"Timeout":9000000000000,"StartPeriod":-1,"Retries":100000}}}`,
			checks(1000, api.Check{Command: []string{"x"}, Interval: 5, Timeout: 60, Failures: 1000}),
		},
	} {
		if got := parseHealthcheck([]byte(c.config)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
