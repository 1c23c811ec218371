package deploy

import (
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/treeline-edge/treeline/internal/daemon"
)

// Reference returns a table of the keys of a daemon's configuration, with their types, defaults and meanings.
func Reference(defaults any) (string, error) {
	var b strings.Builder
	b.WriteString("| Key | Type | Default | Meaning |\n| --- | --- | --- | --- |\n")
	err := rows(&b, reflect.ValueOf(defaults), "")
	return b.String(), err
}

func rows(b *strings.Builder, v reflect.Value, at string) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if f.Type.Kind() == reflect.Struct && f.Tag.Get("usage") == "" {
			in := at
			if opts != "inline" {
				in += name + "."
			}
			if err := rows(b, v.Field(i), in); err != nil {
				return err
			}
			continue
		}
		usage := cmp.Or(f.Tag.Get("usage"), inFileAlone(f.Type))
		if usage == "" {
			return fmt.Errorf("%s.%s has no usage tag", v.Type(), f.Name)
		}
		if old := f.Tag.Get("old"); old != "" {
			usage += " (formerly `" + at + old + "`)"
		}
		text, err := defaultOf(v.Field(i))
		if err != nil {
			return err
		}
		cell := func(s string) string { return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(s) }
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", at+name, kindOf(f.Type), cell(text), cell(usage))
	}
	return nil
}

func kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[daemon.Secret]():
		return "secret"
	case t.String() == "time.Duration":
		return "duration"
	case t.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()), reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true, false"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "map"
	case reflect.String:
		return "text"
	}
	return "number"
}

// defaultOf returns a default as it is written in a file, "" if the key has none.
func defaultOf(v reflect.Value) (string, error) {
	if v.IsZero() && v.Kind() != reflect.Bool && (v.Kind() == reflect.String || v.Kind() == reflect.Slice || v.Kind() == reflect.Map || v.Kind() == reflect.Pointer) {
		return "", nil
	}
	text, err := yaml.MarshalWithOptions(v.Interface(), yaml.Flow(true))
	if err != nil {
		return "", err
	}
	return "`" + strings.TrimSpace(string(text)) + "`", nil
}
