package yaml_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

// An SLA in YAML is equal to the same SLA in JSON.
func TestAnSLAMayBeEither(t *testing.T) {
	asYAML := `
sla_version: v2.0
applications:
  - application_name: shop
    application_namespace: prod
    microservices:
      - microservice_name: web
        microservice_namespace: v1
        virtualization: container
        code: docker.io/library/nginx:1.27
        memory: 100
        vcpus: 0.25
        cmd: [sh, -c, "while true; do date; done"]
        environment:
          - MODE=fast
        constraints:
          - {type: direct, cluster: c1}
        port: ""
`
	asJSON := `{"sla_version":"v2.0","applications":[{"application_name":"shop","application_namespace":"prod","microservices":[
		{"microservice_name":"web","microservice_namespace":"v1","virtualization":"container","code":"docker.io/library/nginx:1.27",
		"memory":100,"vcpus":0.25,"cmd":["sh","-c","while true; do date; done"],"environment":["MODE=fast"],
		"constraints":[{"type":"direct","cluster":"c1"}],"port":""}]}]}`
	doc, err := yaml.ToJSON([]byte(asYAML))
	if err != nil {
		t.Fatal(err)
	}
	got, err := api.ParseSLA(doc)
	if err != nil {
		t.Fatal(err)
	}
	want, err := api.ParseSLA([]byte(asJSON))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v and %+v, %v", got, want, err)
	}
}

// A port that is written as a YAML number is refused.
func TestFaultsOfYAMLHaveTheirPointers(t *testing.T) {
	doc, err := yaml.ToJSON([]byte("sla_version: v2.0\napplications:\n- application_name: a\n  application_namespace: b\n  microservices:\n" +
		"  - {microservice_name: c, microservice_namespace: d, virtualization: container, code: nginx, port: 80}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var faults *api.Faults
	if _, err := api.ParseSLA(doc); !errors.As(err, &faults) || faults.Faults[0].Pointer != "/applications/0/microservices/0/port" {
		t.Fatalf("%v", err)
	}
}
