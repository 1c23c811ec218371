// Package yaml converts YAML to JSON, so that only one format has to be parsed. It accepts the
// common part of YAML, including aliases, and refuses the rest with line and column: duplicate
// keys, tags, merge keys, directives, several documents, keys that are not strings.
//
//	doc, err := yaml.ToJSON(file)
//	sla, err := api.ParseSLA(doc)
//
// The cost of a hostile document is bounded. Bytes and nodes (values, keys, anchors, aliases,
// comments) are bounded before parsing, because the parser keeps all of them in memory. Depth, and
// values and bytes with aliases expanded, are bounded during the conversion. The time of the
// parser, go.yaml.in/yaml/v3, is linear in the text.
package yaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/treeline-edge/treeline/api"
)

// The bounds of a document.
const (
	MaxBytes  = api.MaxSLABytes // of the text, and of the resulting JSON
	MaxDepth  = api.MaxSLADepth
	MaxValues = api.MaxSLAValues // of the JSON, with aliases expanded

	maxIndicators = MaxValues // that may begin a node or a comment in the text
)

// ToJSON returns the document as JSON, with its members in order. It returns a JSON document
// unchanged. It fails with ErrInvalid and the line if the document is malformed, too deep or has
// unsupported YAML, and with ErrTooLarge if it exceeds another bound.
func ToJSON(doc []byte) (out []byte, err error) {
	if len(doc) > MaxBytes {
		return nil, fmt.Errorf("read YAML of %d bytes: the limit is %d: %w", len(doc), MaxBytes, api.ErrTooLarge)
	}
	if !utf8.Valid(doc) {
		return nil, fmt.Errorf("read YAML: the document is not UTF-8 text: %w", api.ErrInvalid)
	}
	if json.Valid(doc) {
		return doc, nil
	}
	if err := scan(doc); err != nil {
		return nil, err
	}
	// A panic of the parser must not end the daemon.
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("read YAML: the parser failed (%v): %w", p, api.ErrInvalid)
		}
	}()
	body, err := parse(doc)
	if err != nil {
		return nil, err
	}
	var w writer
	if err := w.node(body, 0); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

// scan bounds how many nodes and comments the parser can find in doc: each needs at least one line
// or indicator character, which scan counts. It also counts indicators within text; real documents
// have far fewer than the bound.
func scan(doc []byte) error {
	indicators, first := 0, true // first: no character of the line was counted yet
	for i, c := range doc {
		switch c {
		case '\n', '\r':
			first = true
			continue
		case ' ', '\t':
			continue
		case ',', '[', ']', '{', '}':
			indicators++
		case ':', '-', '?':
			if i+1 == len(doc) || strings.IndexByte(" \t\r\n,[]{}", doc[i+1]) >= 0 {
				indicators++
			}
		case '#':
			if first || doc[i-1] == ' ' || doc[i-1] == '\t' {
				indicators += 2 // the parser keeps a comment in several places
			}
		case '%':
			if i == 0 || doc[i-1] == '\n' || doc[i-1] == '\r' {
				return wrong(1+bytes.Count(doc[:i], []byte("\n")), 1, "directives are not supported; indent or quote text that begins with %%")
			}
		}
		if first {
			indicators++
			first = false
		}
		if indicators > maxIndicators {
			return fmt.Errorf("read YAML: more than %d values and comments: %w", maxIndicators, api.ErrTooLarge)
		}
	}
	return nil
}

// parse returns the root of the only document in doc.
func parse(doc []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(doc))
	var body *yaml.Node
	for {
		var n yaml.Node
		err := dec.Decode(&n)
		switch {
		case errors.Is(err, io.EOF) && body == nil:
			return nil, fmt.Errorf("read YAML: the document is empty: %w", api.ErrInvalid)
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return nil, syntax(doc, err)
		case n.Kind != yaml.DocumentNode || len(n.Content) != 1 || blank(n.Content[0]):
			continue // an empty document between two markers
		case body != nil:
			return nil, wrong(n.Content[0].Line, n.Content[0].Column, "a second document; only one is accepted")
		}
		body = n.Content[0]
	}
}

var (
	placed = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)$`)
	tag    = regexp.MustCompile(`(?:^|[\s,[{])(![^\s,\[\]{}]*)`)
)

// syntax returns the parser's error with its line. The parser counts lines from 0 in errors of
// grammar, from 1 in those of single tokens, and omits line 0. If the line has a tag (text that
// begins with !), which often causes the error, the result is the error for tags.
func syntax(doc []byte, err error) error {
	m := placed.FindStringSubmatch(err.Error())
	if m == nil {
		return fmt.Errorf("read YAML: %w: %w", err, api.ErrInvalid)
	}
	line, _ := strconv.Atoi(m[1])
	if line == 0 || strings.HasPrefix(m[2], "did not find") {
		line++
	}
	if lines := bytes.SplitN(doc, []byte("\n"), line+1); line <= len(lines) {
		if at := tag.FindSubmatchIndex(lines[line-1]); at != nil {
			return tagged(line, 1+utf8.RuneCount(lines[line-1][:at[2]]), string(lines[line-1][at[2]:at[3]]))
		}
	}
	return fmt.Errorf("read YAML: line %d: %s: %w", line, m[2], api.ErrInvalid)
}

func tagged(line, column int, tag string) error {
	return wrong(line, column, "tags such as %.64s are not supported; quote it if it is text", tag)
}

// blank reports whether n is an empty value.
func blank(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Value == "" && n.Anchor == "" && n.Style == 0
}

type writer struct {
	out    bytes.Buffer
	values int
}

func (w *writer) node(n *yaml.Node, depth int) error {
	w.values++
	switch {
	case w.values > MaxValues:
		return fmt.Errorf("read YAML: more than %d values with aliases expanded: %w", MaxValues, api.ErrTooLarge)
	case w.out.Len() > MaxBytes:
		return fmt.Errorf("read YAML: more than %d bytes as JSON with aliases expanded: %w", MaxBytes, api.ErrTooLarge)
	case depth > MaxDepth:
		return wrong(n.Line, n.Column, "nested deeper than %d", MaxDepth)
	}
	if n.Style&yaml.TaggedStyle != 0 {
		return tagged(n.Line, n.Column, n.Tag)
	}
	switch n.Kind {
	case yaml.ScalarNode:
		return w.scalar(n)
	case yaml.MappingNode:
		return w.object(n, depth)
	case yaml.SequenceNode:
		return w.array(n, depth)
	case yaml.AliasNode:
		return w.node(n.Alias, depth+1) // MaxDepth ends an alias within its own anchor
	}
	return wrong(n.Line, n.Column, "this kind of value is not supported")
}

// number matches JSON's numbers.
var number = regexp.MustCompile(`^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$`)

func (w *writer) scalar(n *yaml.Node) error {
	tag := n.ShortTag()
	switch {
	case tag == "!!null":
		w.out.WriteString("null")
	case tag == "!!bool":
		w.out.WriteString(strings.ToLower(n.Value))
	case (tag == "!!int" || tag == "!!float") && number.MatchString(n.Value):
		w.out.WriteString(n.Value)
	case tag == "!!int":
		return w.integer(n)
	case tag == "!!float":
		f, err := strconv.ParseFloat(strings.TrimPrefix(n.Value, "+"), 64)
		if err != nil || f-f != 0 { // infinite or NaN
			return wrong(n.Line, n.Column, "%.64s is not a number in range; quote it if it is text", n.Value)
		}
		return w.json(n, f)
	default: // text, dates, <<
		return w.json(n, n.Value)
	}
	return nil
}

// integer writes a whole number that is not in JSON's form, such as 0x10.
func (w *writer) integer(n *yaml.Node) error {
	digits := strings.TrimLeft(n.Value, "+-")
	if len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
		return wrong(n.Line, n.Column, "%.64s may be octal or decimal; omit the leading zero, write 0o… for octal, or quote it if it is text", n.Value)
	}
	var signed int64
	if err := n.Decode(&signed); err == nil {
		return w.json(n, signed)
	}
	var unsigned uint64
	if err := n.Decode(&unsigned); err != nil {
		return wrong(n.Line, n.Column, "%.64s is not a number in range; quote it if it is text", n.Value)
	}
	return w.json(n, unsigned)
}

func (w *writer) json(n *yaml.Node, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return wrong(n.Line, n.Column, "%v", err)
	}
	w.out.Write(b)
	return nil
}

func (w *writer) object(n *yaml.Node, depth int) error {
	seen := make(map[string]bool, len(n.Content)/2)
	w.out.WriteByte('{')
	for i := 0; i+1 < len(n.Content); i += 2 {
		if i > 0 {
			w.out.WriteByte(',')
		}
		key := n.Content[i]
		if err := text(key); err != nil {
			return err
		}
		if seen[key.Value] {
			return wrong(key.Line, key.Column, "the key %.64q occurs twice", key.Value)
		}
		seen[key.Value] = true
		if err := w.json(key, key.Value); err != nil {
			return err
		}
		w.out.WriteByte(':')
		if err := w.node(n.Content[i+1], depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

// text checks that a key is a string.
func text(key *yaml.Node) error {
	switch {
	case key.Kind != yaml.ScalarNode:
		return wrong(key.Line, key.Column, "a key must be text, not a list, mapping or alias")
	case key.Style&yaml.TaggedStyle != 0:
		return tagged(key.Line, key.Column, key.Tag)
	case key.Anchor != "":
		return wrong(key.Line, key.Column, "anchors of keys, such as &%.64s, are not supported", key.Anchor)
	case key.ShortTag() == "!!merge":
		return wrong(key.Line, key.Column, "merge keys (<<) are not supported; write the members out")
	case key.ShortTag() != "!!str":
		return wrong(key.Line, key.Column, "the key %.64s is not text; quote it", key.Value)
	}
	return nil
}

func (w *writer) array(n *yaml.Node, depth int) error {
	w.out.WriteByte('[')
	for i, item := range n.Content {
		if i > 0 {
			w.out.WriteByte(',')
		}
		if err := w.node(item, depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte(']')
	return nil
}

func wrong(line, column int, format string, args ...any) error {
	return fmt.Errorf("read YAML: line %d, column %d: %s: %w", line, column, fmt.Sprintf(format, args...), api.ErrInvalid)
}
