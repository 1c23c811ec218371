package api_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// The schema has each field of the table, and the same fields are required.
func TestSchemaHasEveryField(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(api.SLASchema(), &schema); err != nil {
		t.Fatal(err)
	}
	if schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("$schema is %v, want draft 2020-12", schema["$schema"])
	}
	for _, f := range api.Fields {
		at, parent := schema, map[string]any(nil)
		for part := range strings.SplitSeq(strings.TrimPrefix(f.Pointer, "/"), "/") {
			parent = at
			switch part {
			case "":
			case "*":
				if any, ok := at["additionalProperties"].(map[string]any); ok {
					at = any
					continue
				}
				at, _ = at["items"].(map[string]any)
			default:
				properties, _ := at["properties"].(map[string]any)
				at, _ = properties[part].(map[string]any)
			}
			if at == nil {
				t.Fatalf("%s is not in the schema", f.Pointer)
			}
		}
		required, _ := parent["required"].([]any)
		if f.Pointer != "" && slices.Contains(required, any(f.Name())) != f.Required {
			t.Errorf("%s: required differs", f.Pointer)
		}
		if f.Type == api.ObjectField && f.Status != api.Refused && f.Name() != "config" && f.Name() != "labels" && at["additionalProperties"] != false {
			t.Errorf("%s takes unknown keys", f.Pointer)
		}
	}
}
