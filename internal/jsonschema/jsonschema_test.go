package jsonschema_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/jsonschema"
)

const sensor = `{
	"type": "object", "required": ["place"], "additionalProperties": false,
	"properties": {
		"place": {"$ref": "#/$defs/place"}, "home": {"$ref": "#/$defs/place"},
		"unit": {"enum": ["C", "F"]}, "since": {"type": "string", "format": "date"}, "count": {"type": "integer"}
	},
	"$defs": {"place": {"type": "string", "pattern": "^[a-z]+$"}}
}`

func TestDocumentsAreChecked(t *testing.T) {
	s, err := jsonschema.Compile([]byte(sensor))
	if err != nil {
		t.Fatal(err)
	}
	for doc, want := range map[string]string{
		`{"place": "roof", "unit": "C", "since": "2026-11-24", "count": 12345678901234567890}`: "",
		`{"place": "Roof"}`:                            "/place:",
		`{"place": "roof", "unit": "K", "count": 1.5}`: "/unit:",
		`{"place": "roof", "count": "x"}`:              "/count:",
		`{"place": "roof", "since": "yesterday"}`:      "/since:",
		`{"place": "roof", "plase": 1}`:                "plase",
		`{}`:                                           "place",
		`[]`:                                           "want object",
		`{"place": "roof"} {}`:                         "more than one",
		`{"place"`:                                     "not JSON",
		`{"place": "roof", "count": 1e999}`:            "not JSON",
	} {
		err := s.Check([]byte(doc))
		if want == "" && err != nil || want != "" && (!errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
}

func TestSchemasThatAreNotUnderstoodAreRefused(t *testing.T) {
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer server.Close()
	for schema, want := range map[string]string{
		`{"requird": ["a"]}`:                      "/requird: this keyword is not known",
		`{"$id": "https://example.com/x"}`:        "not known",
		`{"$dynamicRef": "#x"}`:                   "not known",
		`{"$ref": "` + server.URL + `"}`:          "want #/$defs/NAME",
		`{"$ref": "file:///etc/passwd"}`:          "want #/$defs/NAME",
		`{"$ref": "#"}`:                           "want #/$defs/NAME",
		`{"$ref": "#/$defs/a"}`:                   "want #/$defs/NAME",
		`{"$schema": "` + server.URL + `"}`:       "/$schema",
		`{"type": "objekt"}`:                      "/type",
		`{"format": "credit-card"}`:               "/format",
		`{"pattern": "(?=a)"}`:                    "RE2",
		`{"properties": {"a": 1}}`:                "/properties/a: want an object",
		`{"items": {"$defs": {"a": {}}}}`:         "only the schema itself",
		`[]`:                                      "no JSON object",
		`{"$defs": {"a": {"$ref": "#/$defs/a"}}}`: "refers to itself",
		`{"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}}}`: "refers to itself",
		`{"maximum": 1e999}`: "not JSON",
	} {
		if _, err := jsonschema.Compile([]byte(schema)); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", schema, err, want)
		}
	}
	if asked {
		t.Error("a reference was loaded")
	}
}

// list returns n texts with commas between them.
func list(n int, text string) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }

// A hostile tenant looks for a schema and a document that cost the root much.
func TestNoCheckIsExpensive(t *testing.T) {
	doubling := `{"$ref": "#/$defs/d0", "$defs": {"d40": {"type": "string"}`
	for i := range 40 {
		doubling += fmt.Sprintf(`,"d%d": {"allOf": [{"$ref": "#/$defs/d%[2]d"}, {"$ref": "#/$defs/d%[2]d"}]}`, i, i+1)
	}
	deep := strings.Repeat(`{"items":`, 40) + "{}" + strings.Repeat("}", 40)
	for name, schema := range map[string]string{
		"doubling references": doubling + "}}",
		"many subschemas":     `{"allOf": [` + list(1100, `{}`) + `]}`,
		"many values":         `{"enum": [` + list(1100, `1`) + `]}`,
		"nested repetitions":  `{"pattern": "((a{10}){10}){10}x{900}"}`,
		"many patterns":       `{"patternProperties": {"a{400}": {}, "b{400}": {}, "c{400}": {}}}`,
		"patterns by $ref":    `{"allOf": [` + list(20, `{"$ref": "#/$defs/p"}`) + `], "$defs": {"p": {"pattern": "a{100}"}}}`,
		"deep":                deep,
		"large":               `{"description": "` + strings.Repeat("x", api.MaxCustomBytes) + `"}`,
	} {
		start := time.Now()
		_, err := jsonschema.Compile([]byte(schema))
		if !errors.Is(err, api.ErrTooLarge) && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%s: refused after %s", name, took)
		}
	}

	// The largest that are allowed.
	for name, of := range map[string][2]string{
		"each subschema fails for each value": {`{"items": {"allOf": [` + list(900, `{"type": "string"}`) + `]}}`, `[` + list(140, "1") + `]`},
		"each branch fails":                   {`{"items": {"anyOf": [` + list(29, `{"type": "string"}`) + `]}}`, `[` + list(4000, "1") + `]`},
		"slow pattern":                        {`{"pattern": "(x+x+)+y|(.{0,400}z){1}"}`, `"` + strings.Repeat("x", api.MaxCustomBytes-2) + `"`},
		"unique items":                        {`{"uniqueItems": true}`, `[` + list(2000, `[]`) + `]`},
		"large numbers":                       {`{"items": {"multipleOf": 1e-300}}`, `[` + list(3000, "1.7e308") + `]`},
	} {
		s, err := jsonschema.Compile([]byte(of[0]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		start := time.Now()
		err = s.Check([]byte(of[1]))
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%s: checked in %s", name, took)
		} else {
			t.Logf("%s: %s", name, took)
		}
		if err != nil && len(err.Error()) > 4000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
		if errors.Is(err, api.ErrTooLarge) {
			t.Errorf("%s: %v, want it checked", name, err)
		}
	}
	s, err := jsonschema.Compile([]byte(`{"items": {"allOf": [` + list(900, `{}`) + `]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, doc := range map[string]string{
		"too many values for the schema": `[` + list(200, "1") + `]`,
		"too many values":                `[` + list(api.MaxCustomValues+1, "1") + `]`,
		"too large":                      `"` + strings.Repeat("x", api.MaxCustomBytes) + `"`,
		"too deep":                       strings.Repeat("[", 100) + strings.Repeat("]", 100),
	} {
		if err := s.Check([]byte(doc)); !errors.Is(err, api.ErrTooLarge) && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
}
