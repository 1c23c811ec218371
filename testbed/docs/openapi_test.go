package docs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryOperationIsDescribed: each operation has a summary and described parameters, those of paths with an example, and each body
// has an example or a schema. Streams have their frames in the description.
func TestEveryOperationIsDescribed(t *testing.T) {
	type content map[string]struct {
		Example any
		Schema  map[string]any
	}
	type document struct {
		Info  struct{ Title string }
		Paths map[string]map[string]struct {
			Summary, Description string
			Parameters           []struct {
				Name, In, Description string
				Example               any
			}
			RequestBody *struct{ Content content }
			Responses   map[string]struct {
				Description string
				Content     content
			}
		}
	}
	for _, name := range []string{"openapi.json", "cluster-openapi.json"} {
		text, err := os.ReadFile(filepath.Join(top, "docs/reference", name))
		if err != nil {
			t.Fatal(err)
		}
		var d document
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for path, operations := range d.Paths {
			for method, op := range operations {
				at := d.Info.Title + ": " + strings.ToUpper(method) + " " + path
				seen++
				if op.Summary == "" {
					t.Errorf("%s has no summary", at)
				}
				for _, p := range op.Parameters {
					if p.Description == "" {
						t.Errorf("%s: the parameter %s has no description", at, p.Name)
					}
					if p.In == "path" && p.Example == nil {
						t.Errorf("%s: the parameter %s has no example; see ids of internal/rest", at, p.Name)
					}
				}
				bodies := map[string]content{}
				if op.RequestBody != nil {
					bodies["request"] = op.RequestBody.Content
				}
				for status, r := range op.Responses {
					if r.Description == "" {
						t.Errorf("%s: the answer %s has no description", at, status)
					}
					switch {
					case status == "204" || status == "304":
					case status == "101":
						if op.Description == "" {
							t.Errorf("%s: the stream has no description", at)
						}
					default:
						bodies["answer "+status] = r.Content
					}
				}
				for what, c := range bodies {
					if len(c) == 0 {
						t.Errorf("%s: the %s has no content", at, what)
					}
					for kind, m := range c {
						if m.Example == nil && len(m.Schema) == 0 {
							t.Errorf("%s: the %s as %s has neither an example nor a schema", at, what, kind)
						}
					}
				}
			}
		}
		if seen < 30 {
			t.Errorf("%s has %d operations, want all", name, seen)
		}
	}
}
