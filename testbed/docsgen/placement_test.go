package docsgen_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

// Each piece of YAML in docs/how-to/placement.md is what a service of an application with
// these two others may say.
func TestThePiecesOfPlacementAreTaken(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", "placement.md"))
	if err != nil {
		t.Fatal(err)
	}
	const others = `
sla_version: v2.0
applications:
  - application_name: a
    application_namespace: b
    microservices:
      - {microservice_name: pre, microservice_namespace: v1, virtualization: container, code: x}
      - {microservice_name: store, microservice_namespace: v1, virtualization: container, code: x}
      - microservice_name: c
        microservice_namespace: v1
        virtualization: container
        code: x
`
	pieces := strings.Split(string(page), "```yaml\n")[1:]
	types := map[string]bool{}
	for _, piece := range pieces {
		piece, _, _ = strings.Cut(piece, "```")
		doc, err := yaml.ToJSON([]byte(others + "        " + strings.ReplaceAll(strings.TrimSpace(piece), "\n", "\n        ") + "\n"))
		if err != nil {
			t.Errorf("%v in\n%s", err, piece)
			continue
		}
		sla, err := api.ParseSLA(doc)
		if err != nil {
			t.Errorf("%v in\n%s", err, piece)
			continue
		}
		for _, k := range sla.Applications[0].Services[2].Constraints {
			types[k.Type] = true
		}
	}
	for _, f := range api.Fields {
		if strings.HasSuffix(f.Pointer, "/constraints/*/type") {
			for _, kind := range f.Enum {
				stored := kind == "anti_affinity" && types[api.ConstrainAntiAffinity]
				if !types[kind] && !stored {
					t.Errorf("no example of a constraint of type %s", kind)
				}
			}
		}
	}
}
