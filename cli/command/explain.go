package command

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
)

func (c *cli) explainCmd() *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use: "explain [FIELD]", Short: "Show the meaning and the allowed values of a field of the SLA", Args: cobra.MaximumNArgs(1),
		Long: `Show the meaning of a field of the SLA, its allowed values, and whether it is
enforced, informational or refused. FIELD is the field's path or the end of that path.
--schema prints all fields as a JSON Schema.`,
		Example: "  treeline explain constraints\n  treeline explain app.services.constraints.threshold\n  treeline explain --schema > sla.schema.json",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var all []string
			for _, f := range api.Fields {
				if p := dotted(f); p != "" && f.Name() != "*" {
					all = append(all, p)
				}
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if schema {
				_, err := c.Out.Write(api.SLASchema())
				return err
			}
			path := ""
			if len(args) > 0 {
				path = args[0]
			}
			found := explained(path)
			if len(found) == 0 {
				return fmt.Errorf("the SLA has no field %s; treeline explain lists its fields, treeline explain services those of a service: %w", path, api.ErrNotFound)
			}
			var b strings.Builder
			for i, f := range found {
				if i > 0 {
					b.WriteByte('\n')
				}
				explain(&b, f)
			}
			_, err := fmt.Fprint(c.Out, b.String())
			return err
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the SLA")
	return cmd
}

// dotted returns a field's path without list indices: "applications.microservices.code".
func dotted(f api.Field) string {
	return strings.ReplaceAll(strings.Trim(strings.ReplaceAll(f.Pointer, "/*", ""), "/"), "/", ".")
}

// short maps the CLI's names in paths to those of the SLA.
var short = map[string]string{"app": "applications", "apps": "applications", "service": "microservices", "services": "microservices", "svc": "microservices"}

// explained returns the fields whose path is the given one or ends with it.
func explained(path string) []api.Field {
	parts := strings.Split(path, ".")
	long := make([]string, len(parts))
	for i, p := range parts {
		long[i] = cmp.Or(short[p], p)
	}
	var found []api.Field
	for _, f := range api.Fields {
		means := func(want string) bool {
			return dotted(f) == want || want != "" && strings.HasSuffix("."+dotted(f), "."+want)
		}
		if f.Name() != "*" && (means(path) || means(strings.Join(long, "."))) {
			found = append(found, f)
		}
	}
	return found
}

func explain(b *strings.Builder, f api.Field) {
	kind := string(f.Type)
	if f.Type == api.ArrayField {
		if item := fieldAt(f.Pointer + "/*"); item != nil {
			kind = "list of " + string(item.Type) + "s"
		}
	}
	if f.Required {
		kind += ", required"
	}
	fmt.Fprintf(b, "%s  %s\n", cmp.Or(dotted(f), "an SLA"), kind)
	line := func(text string) {
		if text != "" {
			fmt.Fprintf(b, "  %s\n", strings.ReplaceAll(text, "`", ""))
		}
	}
	line(f.Doc)
	switch f.Status {
	case api.Refused:
		line("Refused: " + f.Until + ".")
	case api.Informational:
		line("It is kept or checked, and changes nothing.")
	}
	if s := f.Bounds(); s != "" && f.Status != api.Refused {
		line("May be: " + s + ".")
	}
	if f.Default != "" {
		line("Default: " + f.Default + ".")
	}
	within := f.Pointer
	if item := fieldAt(within + "/*"); item != nil {
		if within = item.Pointer; item.Type != api.ObjectField {
			line("Each: " + item.Doc)
			line(item.Bounds())
		}
	}
	var inner []api.Field
	width := 0
	for _, o := range api.Fields {
		if o.Pointer == within+"/"+o.Name() && o.Name() != "*" && o.Pointer != "" {
			inner = append(inner, o)
			width = max(width, len(o.Name()))
		}
	}
	for _, o := range inner {
		says, _, _ := strings.Cut(strings.ReplaceAll(o.Doc, "`", ""), ". ")
		if o.Status == api.Refused {
			says = "refused: " + strings.ReplaceAll(o.Until, "`", "")
		}
		fmt.Fprintf(b, "    %-*s  %s\n", width, o.Name(), strings.TrimSuffix(says, "."))
	}
}

func fieldAt(pointer string) *api.Field {
	for i := range api.Fields {
		if api.Fields[i].Pointer == pointer {
			return &api.Fields[i]
		}
	}
	return nil
}
