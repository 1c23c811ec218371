package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"

	"k8s.io/client-go/util/jsonpath"
)

// The formats with a template, which follows them after "=". They print what the template makes of the
// object that JSON prints.
const (
	JSONPath   Format = "jsonpath"
	GoTemplate Format = "go-template"
)

// Template is the template of -o jsonpath=… or -o go-template=….
type Template struct {
	execute func(w io.Writer, data any) error
}

// Parse splits the value of -o into a format and its template, which is nil for other formats.
func Parse(text string) (Format, *Template, error) {
	name, body, given := strings.Cut(text, "=")
	format := Format(name)
	if format != JSONPath && format != GoTemplate {
		return Format(text), nil, nil
	}
	example := format + "='{.id}'"
	if format == GoTemplate {
		example = format + "='{{.id}}'"
	}
	if !given || strings.TrimSpace(body) == "" {
		return "", nil, fmt.Errorf("the template is missing, want for example -o %s; -o json shows the keys", example)
	}
	t, err := parse(format, body)
	if err != nil {
		return "", nil, fmt.Errorf("%w; want for example -o %s", err, example)
	}
	return format, t, nil
}

func parse(format Format, body string) (*Template, error) {
	if format == GoTemplate {
		t, err := template.New("go-template").Parse(body)
		if err != nil {
			return nil, err
		}
		return &Template{t.Execute}, nil
	}
	if strings.ContainsAny(body[:1], ".$@[") && !strings.Contains(body, "{") { // kubectl prints it as text
		body = "{" + body + "}"
	}
	t := jsonpath.New("jsonpath").AllowMissingKeys(true) // keys without a value are omitted in JSON
	if err := t.Parse(body); err != nil {
		return nil, err
	}
	return &Template{t.Execute}, nil
}

// apply returns what the template makes of v.
func (t *Template) apply(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode as JSON: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var data any
	if err := d.Decode(&data); err != nil {
		return nil, fmt.Errorf("decode JSON: %w", err)
	}
	var out bytes.Buffer
	if err := t.execute(&out, numbers(data)); err != nil {
		return nil, fmt.Errorf("apply the template: %w; -o json shows the keys", err)
	}
	return out.Bytes(), nil
}

// numbers replaces json.Number, with which templates cannot compare. Integers stay exact.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	case map[string]any:
		for k, e := range v {
			v[k] = numbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = numbers(e)
		}
	}
	return v
}

// templated writes what the template makes of v. On a terminal, control characters except line ends and
// tabs are replaced, as in tables.
func (p Printer) templated(v any, line bool) error {
	text, err := p.Template.apply(v)
	if err != nil {
		return err
	}
	if !line && p.Say != nil && len(bytes.TrimSpace(text)) == 0 {
		p.Say("the template prints nothing; -o json shows the keys")
	}
	if p.Terminal {
		text = bytes.Map(func(r rune) rune {
			if control(r) && r != '\n' && r != '\t' {
				return '·'
			}
			return r
		}, text)
	}
	if (line || p.Terminal) && len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(slices.Clip(text), '\n')
	}
	_, err = p.Out.Write(text)
	return err
}
