package command_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// Every field of the table can be explained by its path, with the contents of the table.
func TestEveryFieldIsExplained(t *testing.T) {
	r := newTerminal(t)
	for _, f := range api.Fields {
		if f.Pointer == "" || f.Name() == "*" {
			continue
		}
		path := strings.ReplaceAll(strings.TrimPrefix(strings.ReplaceAll(f.Pointer, "/*", ""), "/"), "/", ".")
		if out := r.must("", "explain", path); !strings.HasPrefix(out, path+"  ") || !strings.Contains(out, strings.ReplaceAll(f.Doc, "`", "")) {
			t.Errorf("explain %s printed %s, want the path and the documentation of the field", path, out)
		}
	}
}

func TestFieldsAreFoundByTheEndOfTheirPath(t *testing.T) {
	r := newTerminal(t)
	for path, want := range map[string][]string{
		"":                         {"an SLA  object", "    applications "},
		"constraints":              {"applications.microservices.constraints  list of objects\n", "    polygon "},
		"app.services.memory":      {"applications.microservices.memory  integer\n", "May be: 0 to 16777216 MiB", "Default: the cluster's.\n"},
		"constraints.services":     {"applications.microservices.constraints.services  list of strings\n"},
		"threshold":                {"applications.microservices.constraints.threshold  number\n", "con_constraints.threshold  number, required\n"},
		"volumes":                  {"applications.microservices.volumes  list of objects\n", "    mount_path "},
		"customerID":               {"changes nothing.\n"},
		"microservices.devices":    {"    name   The kind, as nodes offer it"},
		"sla_version":              {"string, required\n", "May be: v2.0.\n"},
		"services.stop_grace":      {"Default: 10.\n"},
		"microservices.replicas":   {"The number of instances"},
		"microservices.callers":    {"Each: One entry.\n"},
		"services":                 {"applications.microservices  list", "applications.microservices.constraints.services  list"},
		"applications":             {"    microservices "},
		"con_constraints.type":     {"latency, bandwidth, geo"},
		"application_desc":         {"at most 4096 bytes"},
		"addresses.instances.from": {"0 to 9999"},
	} {
		args := []string{"explain"}
		if path != "" {
			args = append(args, path)
		}
		out := r.must("", args...)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s lacks %q:\n%s", path, w, out)
			}
		}
	}
	if _, stderr, code := r.run("", "explain", "cpus"); code != 6 || !strings.Contains(stderr, "no field cpus") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	var schema map[string]any
	if err := json.Unmarshal([]byte(r.must("", "explain", "--schema")), &schema); err != nil || schema["$schema"] == nil {
		t.Errorf("no schema: %v", err)
	}
}
