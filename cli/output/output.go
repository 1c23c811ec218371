// Package output prints objects of the API as tables, JSON, YAML, names or by a template, and
// explanations of placements. Tables contain no control characters from remote text.
//
//	p := output.Printer{Out: os.Stdout, Format: output.Wide, Now: time.Now}
//	err := output.List(p, output.Instances, page)
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

type Format string

// The formats. Name prints one name per line.
const (
	Text Format = "table"
	Wide Format = "wide"
	JSON Format = "json"
	YAML Format = "yaml"
	Name Format = "name"
)

// Formats are the formats of commands that print names; JSONPath and GoTemplate are written with their
// template.
var Formats = []Format{Text, Wide, JSON, YAML, Name, JSONPath, GoTemplate}

// Printer writes objects to Out in a format. It is not safe for concurrent use.
type Printer struct {
	Out       io.Writer
	Format    Format
	NoHeaders bool
	Colour    bool
	Terminal  bool                             // Out is a terminal
	Template  *Template                        // of the formats JSONPath and GoTemplate
	Say       func(format string, args ...any) // writes a message that is no data; nil: omitted
	Tenant    api.Tenant                       // omitted from names in tables
	Now       func() time.Time
}

// ForPeople reports whether the format is a table, not JSON, YAML, names or a template.
func (p Printer) ForPeople() bool { return p.Format == Text || p.Format == Wide }

// Short returns an id without the prefix of Tenant.
func (p Printer) Short(id string) string {
	if t := string(p.Tenant); t != "" {
		if rest, ok := strings.CutPrefix(id, t+"/"); ok && !strings.Contains(rest, "/") {
			return rest
		}
	}
	return id
}

// Age formats the time since t with Duration; "-" if t is zero.
func (p Printer) Age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Duration(p.Now().Sub(t))
}

// Duration formats d with at most two units: 850ms, 14s, 3m12s, 2h5m, 3d4h.
func Duration(d time.Duration) string {
	two := func(a int64, unit string, b int64, sub string) string {
		if b == 0 {
			return fmt.Sprintf("%d%s", a, unit)
		}
		return fmt.Sprintf("%d%s%d%s", a, unit, b, sub)
	}
	d = max(d, 0)
	s := int64(d / time.Second)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return two(s/60, "m", s%60, "s")
	case s < 48*3600:
		return two(s/3600, "h", s%3600/60, "m")
	}
	return two(s/86400, "d", s%86400/3600, "h")
}

// Object writes v as JSON, YAML or by the template.
func (p Printer) Object(v any) error {
	if p.Template != nil {
		return p.templated(v, false)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode as JSON: %w", err)
	}
	text := b.Bytes()
	if p.Format == YAML {
		var err error
		if text, err = yaml.FromJSON(text); err != nil {
			return err
		}
	}
	_, err := p.Out.Write(text)
	return err
}

// Line writes v as an item of a stream: a line of JSON, a YAML document, or what the template makes of
// it and a line end.
func (p Printer) Line(v any) error {
	if p.Template != nil {
		return p.templated(v, true)
	}
	if p.Format == YAML {
		if _, err := io.WriteString(p.Out, "---\n"); err != nil {
			return err
		}
		return p.Object(v)
	}
	enc := json.NewEncoder(p.Out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Printf writes a line of text, cleaned by Clean.
func (p Printer) Printf(format string, args ...any) {
	_, _ = fmt.Fprintln(p.Out, Clean(fmt.Sprintf(format, args...)))
}

type Column[T any] struct {
	Header string
	Wide   bool // printed only with -o wide
	Cell   func(p Printer, o T) string
	Style  func(o T) Style // nil: plain
}

// Table defines how objects of a kind are printed.
type Table[T any] struct {
	Kind    string           // plural, for messages such as "no clusters"
	Name    func(o T) string // the name that other commands accept; nil: the format Name is not supported
	Columns []Column[T]
}

const gap = "   "

// Rows writes objects in batches. The first batch sets the widths of the columns.
type Rows[T any] struct {
	p      Printer
	cols   []Column[T]
	table  Table[T]
	widths []int
}

func NewRows[T any](p Printer, t Table[T]) *Rows[T] {
	r := &Rows[T]{p: p, table: t}
	for _, c := range t.Columns {
		if !c.Wide || p.Format == Wide {
			r.cols = append(r.cols, c)
		}
	}
	return r
}

// Add writes a batch of objects.
func (r *Rows[T]) Add(objects ...T) error {
	var cells [][]string
	first := r.widths == nil
	if first {
		r.widths = make([]int, len(r.cols))
	}
	header := make([]string, len(r.cols))
	for i, c := range r.cols {
		header[i] = c.Header
		if first && !r.p.NoHeaders {
			r.widths[i] = utf8.RuneCountInString(c.Header)
		}
	}
	for _, o := range objects {
		row := make([]string, len(r.cols))
		for i, c := range r.cols {
			row[i] = Clean(c.Cell(r.p, o))
			if row[i] == "" {
				row[i] = "-"
			}
			r.widths[i] = max(r.widths[i], utf8.RuneCountInString(row[i]))
		}
		cells = append(cells, row)
	}
	var b strings.Builder
	if first && !r.p.NoHeaders {
		r.line(&b, header, nil)
	}
	for i, row := range cells {
		r.line(&b, row, &objects[i])
	}
	_, err := io.WriteString(r.p.Out, b.String())
	return err
}

func (r *Rows[T]) line(b *strings.Builder, cells []string, o *T) {
	for i, c := range cells {
		text := c
		if o != nil && r.cols[i].Style != nil {
			text = r.p.Paint(r.cols[i].Style(*o), c)
		}
		b.WriteString(text)
		if i < len(cells)-1 {
			b.WriteString(strings.Repeat(" ", max(0, r.widths[i]-utf8.RuneCountInString(c))) + gap)
		}
	}
	b.WriteByte('\n')
}

// widest returns the length in bytes of the longest text of items.
func widest[T any](items []T, text func(T) string) int {
	width := 0
	for _, i := range items {
		width = max(width, len(text(i)))
	}
	return width
}

// shorten returns the first n items, or all of them with -o wide, and the number of the others.
func shorten[T any](p Printer, items []T, n int) (shown []T, more int) {
	if p.Format == Wide || len(items) <= n {
		return items, 0
	}
	return items[:n], len(items) - n
}

// List writes a page of objects.
func List[T any](p Printer, t Table[T], page api.Page[T]) error {
	if page.Items == nil {
		page.Items = []T{}
	}
	switch {
	case p.Format == Name:
		return names(p, t, page.Items)
	case !p.ForPeople():
		return p.Object(page)
	}
	if len(page.Items) == 0 {
		return nil
	}
	return NewRows(p, t).Add(page.Items...)
}

// One writes a single object. Except in tables it is the object itself, not a list.
func One[T any](p Printer, t Table[T], o T) error {
	if !p.ForPeople() && p.Format != Name {
		return p.Object(o)
	}
	return List(p, t, api.Page[T]{Items: []T{o}})
}

func names[T any](p Printer, t Table[T], objects []T) error {
	for _, o := range objects {
		if _, err := fmt.Fprintln(p.Out, Clean(t.Name(o))); err != nil {
			return err
		}
	}
	return nil
}

// Clean replaces control characters in remote text, so that it can neither move the cursor nor
// forge a line. Line ends and tabs become spaces.
func Clean(s string) string {
	if !strings.ContainsFunc(s, control) && utf8.ValidString(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case control(r):
			return '·'
		}
		return r
	}, strings.ToValidUTF8(s, "·"))
}

func control(r rune) bool {
	return r < ' ' || r >= 0x7f && r < 0xa0 || slices.Contains(direction, r)
}

// direction has the characters that change the direction of text.
var direction = []rune{0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069}
