// Package jsonschema checks JSON documents against JSON Schemas of tenants. It restricts the schemas, so that neither
// reading one nor checking a document with it is expensive, and nothing outside of the schema is read.
//
//	s, err := jsonschema.Compile(text)
//	err = s.Check(document)
package jsonschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/jsonsize"
)

// The limits of schemas and of checks.
const (
	MaxNodes = 1000 // subschemas and values of enum, required and the like, with those of $ref counted where they are used
	maxDepth = 32   // of schemas and documents
	// maxWork limits the nodes of a schema times the values of a document, and with it the time and memory of a
	// check, even if each subschema applies to each value and reports a fault.
	maxWork = 1 << 17
	// maxPattern limits the instructions of all regular expressions of a schema: matching takes time in their number
	// times the length of the text.
	maxPattern = 1000
	maxFaults  = 8 // in an error
)

// Draft is the version of JSON Schema.
const Draft = "https://json-schema.org/draft/2020-12/schema"

// shape is what a keyword contains.
type shape int

const (
	plain   shape = iota // no subschema
	one                  // a subschema
	several              // an array of subschemas
	named                // subschemas by name
	pattern              // a regular expression
	byPattern
)

// keywords are those that schemas may have.
var keywords = map[string]shape{
	"$schema": plain, "$comment": plain, "title": plain, "description": plain, "default": plain, "examples": plain,
	"deprecated": plain, "readOnly": plain, "writeOnly": plain,
	"type": plain, "enum": plain, "const": plain, "format": plain, "$ref": plain,
	"multipleOf": plain, "maximum": plain, "exclusiveMaximum": plain, "minimum": plain, "exclusiveMinimum": plain,
	"maxLength": plain, "minLength": plain, "pattern": pattern,
	"maxItems": plain, "minItems": plain, "uniqueItems": plain, "maxContains": plain, "minContains": plain,
	"maxProperties": plain, "minProperties": plain, "required": plain, "dependentRequired": plain,
	"items": one, "contains": one, "additionalProperties": one, "propertyNames": one, "not": one, "if": one, "then": one, "else": one,
	"unevaluatedItems": one, "unevaluatedProperties": one,
	"prefixItems": several, "allOf": several, "anyOf": several, "oneOf": several,
	"properties": named, "dependentSchemas": named, "$defs": named, "patternProperties": byPattern,
}

// formats are those that are checked.
var formats = []string{"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}

// Schema is a compiled schema. It is safe for concurrent use.
type Schema struct {
	nodes int
	s     *jsonschema.Schema
}

// Compile reads a schema. Errors: ErrInvalid, ErrTooLarge.
func Compile(text []byte) (*Schema, error) {
	if err := size.Check(text); err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	doc, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	root, ok := doc.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the schema is no JSON object: %w", api.ErrInvalid)
	}
	w := walk{defs: map[string]cost{}, open: map[string]bool{}}
	w.root, _ = root["$defs"].(map[string]any)
	if err := w.schema("", root); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(none{})
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	const at = "https://treeline.invalid/schema"
	if err := c.AddResource(at, doc); err != nil {
		return nil, fmt.Errorf("schema: %w: %w", err, api.ErrInvalid)
	}
	s, err := c.Compile(at)
	if err != nil {
		return nil, fmt.Errorf("schema: %s: %w", faults(err), api.ErrInvalid)
	}
	return &Schema{w.nodes, s}, nil
}

var size = jsonsize.Limit{Bytes: api.MaxCustomBytes, Values: api.MaxCustomValues}

// none loads nothing: a schema is complete in itself.
type none struct{}

func (none) Load(url string) (any, error) { return nil, fmt.Errorf("%s is not loaded", url) }

// decode decodes JSON with numbers of 64 bits, so that arithmetic with them is cheap.
func decode(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	depth := 0
	for quoted, i := false, 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			if depth++; depth > 2*maxDepth {
				return nil, fmt.Errorf("deeper than %d levels: %w", 2*maxDepth, api.ErrInvalid)
			}
		case c == '}', c == ']':
			depth--
		}
	}
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("not JSON: %w: %w", err, api.ErrInvalid)
	}
	if d.More() {
		return nil, fmt.Errorf("more than one JSON value: %w", api.ErrInvalid)
	}
	return v, nil
}

// walk checks what the library does not restrict.
type walk struct {
	root  map[string]any  // $defs
	defs  map[string]cost // of those that were checked
	open  map[string]bool // $defs that are being checked
	depth int
	cost
}

// cost is what a schema, or a part of it, adds to the time of a check.
type cost struct {
	nodes   int
	program int // instructions of regular expressions
}

func (w *walk) schema(at string, v any) error {
	if _, ok := v.(bool); ok {
		return w.count(at, cost{nodes: 1})
	}
	s, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s: want an object or a boolean: %w", where(at), api.ErrInvalid)
	}
	if w.depth++; w.depth > maxDepth {
		return fmt.Errorf("%s: deeper than %d subschemas: %w", where(at), maxDepth, api.ErrInvalid)
	}
	defer func() { w.depth-- }()
	if err := w.count(at, cost{nodes: 1}); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(s)) {
		if err := w.keyword(at, k, s[k]); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) keyword(at, k string, v any) error {
	of, known := keywords[k]
	in := at + "/" + k
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", where(in), fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	switch {
	case !known:
		return bad("this keyword is not known here; there are %s", strings.Join(slices.Sorted(maps.Keys(keywords)), ", "))
	case k == "$schema":
		if s, _ := v.(string); strings.TrimSuffix(s, "#") != Draft {
			return bad("%.100q, want %s or nothing", fmt.Sprint(v), Draft)
		}
	case k == "$defs" && at != "":
		return bad("only the schema itself has $defs")
	case k == "format":
		if s, _ := v.(string); !slices.Contains(formats, s) {
			return bad("%.100q, want one of %s", fmt.Sprint(v), strings.Join(formats, ", "))
		}
	case k == "$ref":
		return w.ref(in, v)
	case slices.Contains([]string{"enum", "const", "required", "dependentRequired"}, k):
		return w.count(in, cost{nodes: values(v) - 1})
	case of == pattern:
		s, ok := v.(string)
		if !ok {
			return bad("want a regular expression")
		}
		return w.pattern(in, s)
	case of == one:
		return w.schema(in, v)
	case of == several:
		all, ok := v.([]any)
		if !ok {
			return bad("want an array of schemas")
		}
		for i, sub := range all {
			if err := w.schema(fmt.Sprint(in, "/", i), sub); err != nil {
				return err
			}
		}
	case of == named, of == byPattern:
		all, ok := v.(map[string]any)
		if !ok {
			return bad("want schemas by name")
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if of == byPattern {
				if err := w.pattern(in, name); err != nil {
					return err
				}
			}
			if err := w.schema(in+"/"+name, all[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// ref counts the subschemas that a reference adds. References in a circle would make a check of any document endless or
// exponential.
func (w *walk) ref(in string, v any) error {
	to, _ := v.(string)
	name, ok := strings.CutPrefix(to, "#/$defs/")
	def, exists := w.root[name]
	switch {
	case !ok || strings.ContainsAny(name, "/~%") || !exists:
		return fmt.Errorf("%s: %.100q, want #/$defs/NAME of the same schema: %w", where(in), fmt.Sprint(v), api.ErrInvalid)
	case w.open[name]:
		return fmt.Errorf("%s: $defs/%s refers to itself: %w", where(in), name, api.ErrInvalid)
	}
	if n, ok := w.defs[name]; ok {
		return w.count(in, n)
	}
	before, depth := w.cost, w.depth
	w.open[name], w.depth = true, 0
	err := w.schema("/$defs/"+name, def)
	w.depth = depth
	delete(w.open, name)
	w.defs[name] = cost{w.nodes - before.nodes, w.program - before.program}
	return err
}

func (w *walk) count(at string, c cost) error {
	w.nodes += c.nodes
	w.program += c.program
	switch {
	case w.nodes > MaxNodes:
		return fmt.Errorf("%s: the schema has more than %d subschemas and values, counting $ref where it is used: %w", where(at), MaxNodes, api.ErrTooLarge)
	case w.program > maxPattern:
		return fmt.Errorf("%s: the regular expressions of the schema are too large, counting $ref where it is used: shorten their repetitions: %w", where(at), api.ErrTooLarge)
	}
	return nil
}

func (w *walk) pattern(at, text string) error {
	if len(text) > 1000 {
		return fmt.Errorf("%s: a regular expression of %d bytes, want at most 1000: %w", where(at), len(text), api.ErrTooLarge)
	}
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fmt.Errorf("%s: %w (the syntax is RE2): %w", where(at), err, api.ErrInvalid)
	}
	return w.count(at, cost{program: instructions(re)})
}

// values returns the number of values within a value, with itself.
func values(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += values(e)
		}
	case map[string]any:
		for _, e := range v {
			n += values(e)
		}
	}
	return n
}

// instructions returns about how many instructions a regular expression is compiled to, without compiling it.
func instructions(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxPattern+1)
}

func where(pointer string) string {
	if pointer == "" {
		return "/"
	}
	return clip(pointer, 200)
}

// Check returns ErrInvalid if a document does not match the schema, with the first faults, and ErrTooLarge.
func (s *Schema) Check(document []byte) error {
	if err := size.Check(document); err != nil {
		return err
	}
	if _, n := jsonsize.Count(document); n*s.nodes > maxWork {
		return fmt.Errorf("%d values, want at most %d with a schema of %d subschemas: %w", n, maxWork/s.nodes, s.nodes, api.ErrTooLarge)
	}
	v, err := decode(document)
	if err != nil {
		return err
	}
	if err := s.s.Validate(v); err != nil {
		return fmt.Errorf("%s: %w", faults(err), api.ErrInvalid)
	}
	return nil
}

var english = message.NewPrinter(language.English)

// faults returns the first faults of a validation.
func faults(err error) string {
	var bad *jsonschema.SchemaValidationError
	if errors.As(err, &bad) {
		err = bad.Err
	}
	var v *jsonschema.ValidationError
	if !errors.As(err, &v) {
		return clip(err.Error(), 300)
	}
	var out []string
	more := false
	var leaves func(*jsonschema.ValidationError)
	leaves = func(v *jsonschema.ValidationError) {
		switch {
		case len(out) == maxFaults:
			more = true
		case len(v.Causes) == 0:
			out = append(out, clip(where("/"+strings.Join(v.InstanceLocation, "/"))+": "+v.ErrorKind.LocalizedString(english), 200))
		default:
			for _, c := range v.Causes {
				leaves(c)
			}
		}
	}
	leaves(v)
	slices.Sort(out) // the library reads maps in any order
	if more {
		out = append(out, "…")
	}
	return strings.Join(slices.Compact(out), "; ")
}

func clip(text string, n int) string {
	if len(text) > n {
		text = strings.ToValidUTF8(text[:n], "") + "…"
	}
	return text
}
