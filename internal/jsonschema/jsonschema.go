// Package jsonschema checks JSON documents against JSON Schemas of tenants. It restricts the schemas, so that neither
// reading one nor checking a document with it is expensive, and nothing outside of the schema is read.
//
//	s, err := jsonschema.Compile(text)
//	err = s.Check(document)
package jsonschema

import (
	"bytes"
	"cmp"
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
	maxPointer = 1000
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
		return nil, fmt.Errorf("schema: %w", faults(err))
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
		return fault(at, api.ErrInvalid, "want an object or a boolean")
	}
	if w.depth++; w.depth > maxDepth {
		return fault(at, api.ErrInvalid, "deeper than %d subschemas", maxDepth)
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
	in := at + "/" + escape.Replace(k)
	bad := func(format string, args ...any) error {
		return fault(in, api.ErrInvalid, format, args...)
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
			if err := w.schema(in+"/"+escape.Replace(name), all[name]); err != nil {
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
		return fault(in, api.ErrInvalid, "%.100q, want #/$defs/NAME of the same schema", fmt.Sprint(v))
	case w.open[name]:
		return fault(in, api.ErrInvalid, "$defs/%s refers to itself", name)
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
		return fault(at, api.ErrTooLarge, "the schema has more than %d subschemas and values, counting $ref where it is used", MaxNodes)
	case w.program > maxPattern:
		return fault(at, api.ErrTooLarge, "the regular expressions of the schema are too large, counting $ref where it is used: shorten their repetitions")
	}
	return nil
}

func (w *walk) pattern(at, text string) error {
	if len(text) > 1000 {
		return fault(at, api.ErrTooLarge, "a regular expression of %d bytes, want at most 1000", len(text))
	}
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fault(at, api.ErrInvalid, "%v (the syntax is RE2)", err)
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
		return faults(err)
	}
	return nil
}

var english = message.NewPrinter(language.English)

// Faults are places of a document or of a schema with what is wrong there. It wraps ErrInvalid or ErrTooLarge.
type Faults struct {
	fields []api.ProblemField
	more   bool // than are in fields
	kind   error
}

func fault(at string, kind error, format string, args ...any) *Faults {
	return &Faults{fields: []api.ProblemField{{Pointer: at, Detail: fmt.Sprintf(format, args...)}}, kind: kind}
}

// Unwrap returns the kind of the error.
func (f *Faults) Unwrap() error { return f.kind }

func (f *Faults) Error() string {
	var out []string
	for _, at := range f.fields {
		out = append(out, clip(where(at.Pointer)+": "+at.Detail, 300))
	}
	if f.more {
		out = append(out, "…")
	}
	return strings.Join(out, "; ") + ": " + f.kind.Error()
}

// Below returns the faults, of a document that is at a JSON pointer, for the answer to a request.
func (f *Faults) Below(pointer string) []api.ProblemField {
	out := slices.Clone(f.fields)
	for i := range out {
		if out[i].Pointer = pointer + out[i].Pointer; len(out[i].Pointer) > maxPointer {
			out[i].Pointer, out[i].Detail = pointer, clip(out[i].Pointer, 200)+": "+out[i].Detail
		}
	}
	return out
}

// faults returns the first faults of a validation.
func faults(err error) *Faults {
	var bad *jsonschema.SchemaValidationError
	if errors.As(err, &bad) {
		err = bad.Err
	}
	var v *jsonschema.ValidationError
	if !errors.As(err, &v) {
		return fault("", api.ErrInvalid, "%s", clip(err.Error(), 300))
	}
	f := &Faults{kind: api.ErrInvalid}
	var leaves func(*jsonschema.ValidationError)
	leaves = func(v *jsonschema.ValidationError) {
		switch {
		case len(f.fields) == maxFaults:
			f.more = true
		case len(v.Causes) == 0:
			var at strings.Builder
			for _, step := range v.InstanceLocation {
				at.WriteString("/" + escape.Replace(step))
			}
			f.fields = append(f.fields, api.ProblemField{Pointer: at.String(), Detail: clip(v.ErrorKind.LocalizedString(english), 200)})
		default:
			for _, c := range v.Causes {
				leaves(c)
			}
		}
	}
	leaves(v)
	// The library reads maps in any order.
	slices.SortFunc(f.fields, func(a, b api.ProblemField) int {
		return cmp.Or(strings.Compare(a.Pointer, b.Pointer), strings.Compare(a.Detail, b.Detail))
	})
	f.fields = slices.Compact(f.fields)
	return f
}

// escape writes a step of a JSON pointer.
var escape = strings.NewReplacer("~", "~0", "/", "~1")

func clip(text string, n int) string {
	if len(text) > n {
		text = strings.ToValidUTF8(text[:n], "") + "…"
	}
	return text
}
