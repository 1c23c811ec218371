// Package yaml turns YAML into JSON, so that everything behind it reads one
// format only. It takes the part of YAML that people write by hand and refuses
// the rest by line and column: keys given twice, tags, merge keys, several
// documents, keys that are no strings. Anchors and aliases are written out.
//
//	doc, err := yaml.ToJSON(file)
//	sla, err := api.ParseSLA(doc)
//
// goccy/go-yaml does the parsing: it keeps positions, and yaml.v3 is no longer
// maintained. The tree is walked here, because its own decoder lets an alias
// grow a document without bound.
package yaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/treeline-edge/treeline/api"
)

// The bounds of a document.
const (
	MaxBytes = api.MaxSLABytes // of the text, and of the JSON made of it
	MaxDepth = api.MaxSLADepth
)

// ToJSON is the document as JSON, with its members in the order given. A
// document that is JSON already is returned as it is. What is malformed or not
// taken is ErrInvalid with its line and column; what is too big, as it stands
// or with its aliases written out, is ErrTooLarge.
func ToJSON(doc []byte) (out []byte, err error) {
	if len(doc) > MaxBytes {
		return nil, fmt.Errorf("read YAML of %d bytes: at most %d are taken: %w", len(doc), MaxBytes, api.ErrTooLarge)
	}
	if !utf8.Valid(doc) {
		return nil, fmt.Errorf("read YAML: the document is not UTF-8 text: %w", api.ErrInvalid)
	}
	if json.Valid(doc) {
		return doc, nil
	}
	// The parser is not ours and the document is a stranger's: should it trip, the
	// document is at fault and the daemon lives.
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("read YAML: the parser gave up (%v): %w", p, api.ErrInvalid)
		}
	}()
	tokens := lexer.Tokenize(string(doc))
	if err := shallow(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		// Text that begins with ! is taken for a tag, and the parser then misses something
		// far from it.
		if i := slices.IndexFunc(tokens, func(t *token.Token) bool { return t.Type == token.TagType }); i >= 0 {
			return nil, tagged(tokens[i])
		}
		var at yaml.Error
		if errors.As(err, &at) {
			return nil, wrong(at.GetToken(), "%s", at.GetMessage())
		}
		return nil, fmt.Errorf("read YAML: %w: %w", err, api.ErrInvalid)
	}
	var body ast.Node
	for _, d := range file.Docs {
		switch {
		case d.Body == nil:
		case body != nil:
			return nil, wrong(d.Body.GetToken(), "a second document; one is taken")
		default:
			body = d.Body
		}
	}
	if body == nil {
		return nil, fmt.Errorf("read YAML: the document is empty: %w", api.ErrInvalid)
	}
	w := writer{anchors: map[string]ast.Node{}}
	if err := w.node(body, 0); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

func tagged(t *token.Token) error {
	return wrong(t, "tags such as %s are not taken; quote what is to be text", t.Value)
}

// shallow refuses what would make the parser recurse without end: it calls
// itself once per bracket and once per indicator that nests within a line.
// Nesting by indentation bounds itself, as each level costs a line and a column.
func shallow(tokens token.Tokens) error {
	open, line, nested := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, nested = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			open++
		case token.SequenceEndType, token.MappingEndType:
			open--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			nested++
		}
		if open > MaxDepth || nested > 2*MaxDepth {
			return wrong(t, "nested deeper than %d", MaxDepth)
		}
	}
	return nil
}

type writer struct {
	out     bytes.Buffer
	anchors map[string]ast.Node
}

func (w *writer) node(n ast.Node, depth int) error {
	if w.out.Len() > MaxBytes {
		return fmt.Errorf("read YAML: written out as JSON it exceeds %d bytes: %w", MaxBytes, api.ErrTooLarge)
	}
	if depth > MaxDepth {
		return wrong(n.GetToken(), "nested deeper than %d", MaxDepth)
	}
	switch n := n.(type) {
	case nil:
		w.out.WriteString("null")
	case *ast.NullNode:
		w.out.WriteString("null")
	case *ast.BoolNode:
		w.out.WriteString(strconv.FormatBool(n.Value))
	case *ast.IntegerNode:
		fmt.Fprint(&w.out, n.Value) // int64 or uint64
	case *ast.FloatNode:
		return w.json(n, n.Value)
	case *ast.StringNode:
		return w.json(n, n.Value)
	case *ast.LiteralNode:
		return w.json(n, n.Value.Value)
	case *ast.MappingNode:
		return w.object(n.Values, depth)
	case *ast.MappingValueNode: // a mapping of one
		return w.object([]*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		return w.array(n.Values, depth)
	case *ast.AnchorNode:
		// Known before it is whole, so that one within itself ends at the depth.
		w.anchors[n.Name.GetToken().Value] = n.Value
		return w.node(n.Value, depth+1)
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		to, ok := w.anchors[name]
		if !ok {
			return wrong(n.GetToken(), "*%s is not defined above", name)
		}
		return w.node(to, depth+1)
	case *ast.TagNode:
		return tagged(n.GetToken())
	case *ast.InfinityNode, *ast.NanNode:
		return wrong(n.GetToken(), "%s is no number here", n.GetToken().Value)
	default:
		return wrong(n.GetToken(), "%s is not taken", n.Type())
	}
	return nil
}

func (w *writer) json(n ast.Node, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return wrong(n.GetToken(), "%v", err)
	}
	w.out.Write(b)
	return nil
}

func (w *writer) object(members []*ast.MappingValueNode, depth int) error {
	seen := map[string]bool{}
	w.out.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			w.out.WriteByte(',')
		}
		key, err := keyOf(m.Key)
		if err != nil {
			return err
		}
		if seen[key] {
			return wrong(m.Key.GetToken(), "%.64q is given twice", key)
		}
		seen[key] = true
		if err := w.json(m.Key, key); err != nil {
			return err
		}
		w.out.WriteByte(':')
		if err := w.node(m.Value, depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

func keyOf(key ast.MapKeyNode) (string, error) {
	switch k := key.(type) {
	case *ast.StringNode:
		return k.Value, nil
	case *ast.MergeKeyNode:
		return "", wrong(key.GetToken(), "merge keys (<<) are not taken; write the members out")
	}
	return "", wrong(key.GetToken(), "the key %.64s is not text; quote it", key.GetToken().Value)
}

func (w *writer) array(items []ast.Node, depth int) error {
	w.out.WriteByte('[')
	for i, item := range items {
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

func wrong(at *token.Token, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if at == nil || at.Position == nil {
		return fmt.Errorf("read YAML: %s: %w", text, api.ErrInvalid)
	}
	return fmt.Errorf("read YAML: line %d, column %d: %s: %w", at.Position.Line, at.Position.Column, text, api.ErrInvalid)
}
