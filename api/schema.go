package api

import (
	"encoding/json"
	"slices"
	"strings"
)

// SLASchema returns Fields as a JSON Schema (2020-12), for editors and other tools. The schema does
// not contain the checks of Field.Rule.
func SLASchema() []byte {
	s := schemaOf(lookup[""])
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "Treeline SLA (Oakestra SLA v2.0)"
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // the schema can always be encoded
	}
	return append(out, '\n')
}

func schemaOf(f *Field) map[string]any {
	s := map[string]any{"description": f.Doc}
	if f.Rule != "" {
		s["description"] = f.Doc + " Checked: " + f.Rule + "."
	}
	if f.Status == Refused {
		s["description"] = f.Doc + " Refused: " + reasonOf(f) + "."
		s["enum"] = []any{nil, false, 0, "", []any{}, map[string]any{}}
		return s
	}
	s["type"] = f.Type
	if f.Text != "" {
		s["type"] = []any{f.Type, StringField}
		s["pattern"] = f.Text
	}
	if types, several := s["type"].([]any); several {
		if !f.Required {
			s["type"] = append(types, "null")
		}
	} else if !f.Required && f.Pointer != "" && !strings.HasSuffix(f.Pointer, "/*") {
		s["type"] = []any{f.Type, "null"}
	}
	if len(f.Enum) > 0 {
		values := make([]any, 0, len(f.Enum)+1)
		for _, e := range slices.Concat(f.Enum, f.Aliases) {
			values = append(values, e)
		}
		if _, optional := s["type"].([]any); optional {
			values = append(values, nil)
		}
		s["enum"] = values
	}
	if f.Pattern != "" {
		s["pattern"] = f.Pattern
	}
	if f.Length > 0 {
		s["maxLength"] = f.Length
	}
	switch f.Type {
	case IntegerField, NumberField:
		s["minimum"], s["maximum"] = f.Min, f.Max
	case ArrayField:
		s["items"] = schemaOf(lookup[f.Pointer+"/*"])
		if f.Min > 0 {
			s["minItems"] = f.Min
		}
		s["maxItems"] = f.Max
	case ObjectField:
		properties, required := map[string]any{}, []string{}
		for _, name := range below[f.Pointer] {
			child := lookup[f.Pointer+"/"+name]
			if name == "*" {
				continue
			}
			properties[name] = schemaOf(child)
			if child.Required {
				required = append(required, name)
			}
		}
		s["properties"], s["required"], s["additionalProperties"] = properties, required, false
		if any := lookup[f.Pointer+"/*"]; any != nil {
			s["additionalProperties"], s["maxProperties"] = schemaOf(any), f.Max
		}
	}
	return s
}
