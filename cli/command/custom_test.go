package command_test

import (
	"strings"
	"testing"
)

const sensors = `# the sensors of a building
kind: kind
name: sensor
description: Sensors of a building
schema:
  type: object
  required: [place]
  additionalProperties: false
  properties:
    place: {type: string}
    unit: {enum: [C, F]}
---
kind: sensor
name: roof
spec:
  place: roof
  unit: C
`

func TestCustomResourcesAreUsedLikeOthers(t *testing.T) {
	r := newRig(t)
	r.signIn()
	file := r.file("sensors.yaml", sensors)
	for _, want := range []string{"kind sensor is at revision", "resource sensor:roof is at revision"} {
		if out := r.must("", "apply", "-f", file); !strings.Contains(out, want) {
			t.Errorf("apply says %q, want %q", out, want)
		}
	}
	cellar := `{"kind": "sensor", "name": "cellar", "spec": {"place": "cellar"}}`
	r.must(cellar, "apply", "-f", "-", "--if-match", "0")
	if _, said, code := r.run(cellar, "apply", "-f", "-", "--if-match", "0"); code != 7 || !strings.Contains(said, "exists") {
		t.Errorf("create it again: exit %d: %s, want a conflict", code, said)
	}
	for line, want := range map[string]string{
		"get kinds":               "Sensors of a building",
		"get sensor":              "sensor:cellar",
		"get sensor roof -o json": `"place": "roof"`,
		"get resources sensor":    "sensor:roof",
		"get resources sensor:roof sensor -o name": "acme/sensor:cellar",
		"describe sensor roof":                     "place: roof",
		"describe kind sensor":                     "additionalProperties: false",
		"events":                                   "created by",
		"events --users -o wide":                   "BY",
		"events --users -o json --last 1":          `"by": "`,
	} {
		if out := r.must("", strings.Fields(line)...); !strings.Contains(out, want) {
			t.Errorf("treeline %s prints %q, want %q", line, out, want)
		}
	}
	for line, want := range map[string]string{
		"get bogus":             `has no command "bogus"`,
		"describe sensor":       "name some of its resources",
		"get sensor attic":      "acme/sensor:attic",
		"delete kind sensor -y": "has 2 resources",
		"describe bogus roof":   `has no command "bogus"`,
	} {
		if _, said, code := r.run("", strings.Fields(line)...); code == 0 || !strings.Contains(said, want) {
			t.Errorf("treeline %s: exit %d: %s, want %q", line, code, said, want)
		}
	}
	for doc, want := range map[string]string{
		`{"kind": "sensor", "name": "x", "spec": {"plase": 1}}`:                "plase",
		`{"kind": "sensor", "name": "x", "specs": {}}`:                         "unknown field",
		`{"kind": "sensor", "spec": {}}`:                                       "has kind, name and spec",
		`{"kind": "kind", "name": "x"}`:                                        "has name and schema",
		`{"kind": "lamp", "name": "x", "spec": {}}`:                            "no kind lamp",
		`{"kind": "kind", "name": "secret", "schema": {}}`:                     "none of Treeline's own kinds",
		`{"kind": "kind", "name": "sensor", "schema": {"required": ["unit"]}}`: "cellar",
	} {
		if _, said, code := r.run(doc, "apply", "-f", "-"); code == 0 || !strings.Contains(said, want) {
			t.Errorf("apply %s: exit %d: %s, want %q", doc, code, said, want)
		}
	}
	r.must("", "delete", "sensor", "roof", "--yes")
	r.must("", "delete", "kind", "sensor", "--force", "--yes")
	if out := r.must("", "get", "resources", "-o", "name"); out != "" {
		t.Errorf("after the deletion of their kind there are %s", out)
	}
}
