package deploy

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
)

// Sample returns a configuration file in which every key is commented out, with its
// meaning and its default. A key is on a line that begins with "#" and no space, an
// explanation on one that begins with "# ".
func Sample(program string, defaults any) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Configuration of %s. Every key is here, with its default.\n", program)
	b.WriteString("# A key is also a flag (a_key: --a-key, group.key: --group-key) and, in capitals after\n" +
		"# TREELINE_, an environment variable. Flags override the environment, which overrides\n" +
		"# this file. " + program + " --print-config prints the effective values.\n")
	err := keys(&b, reflect.ValueOf(defaults), "")
	return b.String(), err
}

// Uncommented returns the sample with every key set to its default.
func Uncommented(sample string) string {
	var b strings.Builder
	for line := range strings.Lines(sample) {
		text := strings.TrimLeft(line, " ")
		if rest, ok := strings.CutPrefix(text, "#"); ok && !strings.HasPrefix(rest, " ") {
			line = line[:len(line)-len(text)] + rest
		}
		b.WriteString(line)
	}
	return b.String()
}

func keys(b *strings.Builder, v reflect.Value, indent string) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if f.Type.Kind() == reflect.Struct && f.Tag.Get("usage") == "" {
			in := indent
			if opts != "inline" {
				fmt.Fprintf(b, "\n%s%s:\n", indent, name)
				in += "  "
			}
			if err := keys(b, v.Field(i), in); err != nil {
				return err
			}
			continue
		}
		usage := cmp.Or(f.Tag.Get("usage"), inFileAlone(f.Type))
		if usage == "" {
			return fmt.Errorf("%s.%s has no usage tag", v.Type(), f.Name)
		}
		text, err := yaml.Marshal(map[string]any{name: v.Field(i).Interface()})
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "\n%s# %s\n", indent, usage)
		for line := range strings.Lines(string(text)) {
			fmt.Fprintf(b, "%s#%s", indent, line)
		}
	}
	return nil
}

// inFileAlone returns the explanation of a list or map of groups, which flags and the environment
// cannot set. Other types have a usage tag.
func inFileAlone(t reflect.Type) string {
	kind := t.Kind()
	if kind != reflect.Slice && kind != reflect.Map || t.Elem().Kind() != reflect.Struct {
		return ""
	}
	var names []string
	for i := range t.Elem().NumField() {
		name, _, _ := strings.Cut(t.Elem().Field(i).Tag.Get("yaml"), ",")
		names = append(names, name)
	}
	what := "a list, each with"
	if kind == reflect.Map {
		what = "by name, each with"
	}
	return what + " " + strings.Join(names, ", ") + "; only in this file"
}
