package api_test

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestScaleIsHonouredOrRefused(t *testing.T) {
	for _, ok := range []string{
		`"scale":{"max":1}`, `"scale":{"min":0,"max":1}`, `"vcpus":1,"scale":{"max":4,"cpu":70}`,
		`"memory":64,"scale":{"min":0,"max":4,"memory":70,"connections":5,"idle_time":5,"stabilisation_up":0,"stabilisation_down":0}`,
		`"scale":{"max":4,"requests":{"target":50,"port":8080,"path":"/m?x=1","counter":"http_requests_total"}}`,
		`"network":"any","scale":{"max":4,"prometheus":{"query":"sum(rate(x[1m]))","target":50}}`,
	} {
		if _, err := api.ParseSLA([]byte(placed(ok))); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for fields, want := range map[string]string{
		`"scale":{}`:        "max is missing",
		`"scale":{"max":2}`: "nothing says when",
		`"scale":{"min":3,"max":2,"connections":1}`:                                               "above max",
		`"scale":{"max":1001,"connections":1}`:                                                    "out of range",
		`"scale":{"max":2,"cpu":50}`:                                                              "vcpus, which is missing",
		`"scale":{"max":2,"memory":50}`:                                                           "memory of the service, which is missing",
		`"scale":{"max":2,"requests":50}`:                                                         "must be an object",
		`"scale":{"max":2,"requests":{"target":5}}`:                                               "port is missing",
		`"scale":{"max":2,"requests":{"target":5,"port":80,"counter":"a b"}}`:                     "is not the name of a metric",
		`"scale":{"max":2,"requests":{"target":5,"port":80,"counter":"a","path":"x"}}`:            "is not a path",
		`"scale":{"max":1,"prometheus":{"query":"up"}}`:                                           "target is missing",
		`"scale":{"max":1,"prometheus":{"query":"` + strings.Repeat("x", 1025) + `","target":1}}`: "1024",
		`"replicas":2,"scale":{"max":1}`:                                                          "replicas cannot be combined",
		`"one_shot":true,"scale":{"max":1}`:                                                       "one_shot cannot be combined",
		`"exclusive":true,"scale":{"max":1}`:                                                      "exclusive cannot be combined",
		`"port":"80","scale":{"min":0,"max":1}`:                                                   "cannot wake",
		`"network":"any","scale":{"min":0,"max":1}`:                                               "no address that could wake it",
		`"network":"any","scale":{"max":3,"connections":1}`:                                       "overlay network only",
		`"scale":{"min":0,"max":1,"idle_time":4}`:                                                 "too short",
	} {
		if _, err := api.ParseSLA([]byte(placed(fields))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", fields, err, want)
		}
	}
}

// The error names what to do instead (ADR 0275).
func TestVirtualMachinesDoNotScale(t *testing.T) {
	for _, virt := range []string{"microvm", "unikernel"} {
		doc := strings.Replace(placed(`"memory":128,"vcpus":1,"scale":{"max":2,"cpu":70}`), `"virtualization":"container"`, `"virtualization":"`+virt+`"`, 1)
		if _, err := api.ParseSLA([]byte(doc)); err == nil || !strings.Contains(err.Error(), "does not see its connections") || !strings.Contains(err.Error(), "treeline scale") {
			t.Errorf("%s: %v", virt, err)
		}
	}
}
