package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

var valueKinds = []api.ValueKind{api.KindConfig, api.KindSecret}

// valuesTable is the table of configs or secrets.
func valuesTable(kind api.ValueKind) output.Table[api.Values] {
	return output.Table[api.Values]{
		Kind: string(kind) + "s",
		Name: func(v api.Values) string { return string(v.ID) },
		Columns: []output.Column[api.Values]{
			{Header: "NAME", Cell: func(p output.Printer, v api.Values) string { return p.Short(string(v.ID)) }},
			{Header: "KEYS", Cell: func(_ output.Printer, v api.Values) string { return keysOf(v) }},
			{Header: "VERSION", Cell: func(_ output.Printer, v api.Values) string { return strconv.FormatUint(v.Version, 10) }},
			{Header: "USED BY", Cell: func(_ output.Printer, v api.Values) string { return output.Plural(len(v.Services), "service") }},
			{Header: "CHANGED", Cell: func(p output.Printer, v api.Values) string { return p.Age(v.Changed) }},
			{Header: "REGISTRY", Wide: true, Cell: func(_ output.Printer, v api.Values) string { return v.Registry }},
			{Header: "DIGEST", Wide: true, Cell: func(_ output.Printer, v api.Values) string { return v.Digest }},
			{Header: "BY", Wide: true, Cell: func(_ output.Printer, v api.Values) string { return v.By }},
		},
	}
}

func keysOf(v api.Values) string {
	names := make([]string, len(v.Keys))
	for i, k := range v.Keys {
		names[i] = k.Name
	}
	return strings.Join(names, ", ")
}

// valuesID returns the id that a name stands for: NAME of the command's tenant, or TENANT/NAME.
func (c *cli) valuesID(name string) (api.ValuesID, error) {
	if strings.Contains(name, "/") {
		return api.ValuesID(name), nil
	}
	if c.tenant() == "" {
		return "", usage("%s: name the tenant too: TENANT/%s, or --tenant TENANT", name, name)
	}
	return c.tenant().Values(name), nil
}

func (c *cli) createCmd() *cobra.Command {
	group := &cobra.Command{Use: "create", Short: "Create configs and secrets"}
	for _, kind := range valueKinds {
		group.AddCommand(c.createValuesCmd(kind))
	}
	return group
}

func (c *cli) createValuesCmd(kind api.ValueKind) *cobra.Command {
	var files []string
	var registry, username, passwordFile string
	var replace bool
	cmd := &cobra.Command{
		Use: string(kind) + " NAME --from-file [KEY=]FILE…", Short: "Create a " + string(kind), Args: cobra.ExactArgs(1),
		Long: fmt.Sprintf(`Create a %s, whose values files of services name: %[1]s: NAME.KEY.

Values are read from files, or from stdin for the file -, byte by byte and with a
line end if there is one. They are never arguments, which other users of this
machine can see. Without KEY, the key is the file's name.`, kind),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			n := api.NewValues{Name: args[0], Data: map[string][]byte{}}
			if err := c.readValues(&n, files); err != nil {
				return err
			}
			if registry != "" {
				if err := c.readAccount(&n, registry, username, passwordFile); err != nil {
					return err
				}
			} else if username != "" || passwordFile != "" {
				return usage("--username and --password-file are for a secret with --registry")
			}
			if len(n.Data) == 0 {
				return usage("give values: --from-file KEY=FILE")
			}
			v, err := c.putValues(ctx, a, kind, n, replace)
			if err != nil {
				return err
			}
			c.say("%s %s has version %d", kind, p.Short(string(v.ID)), v.Version)
			return output.One(p, valuesTable(kind), v)
		}),
	}
	f := cmd.Flags()
	f.StringArrayVar(&files, "from-file", nil, "KEY=FILE, or FILE with its name as the key; - reads stdin. May be repeated")
	f.BoolVar(&replace, "replace", false, "replace the values of an existing one: services get them as the on_change of their files says")
	if kind == api.KindSecret {
		f.StringVar(&registry, "registry", "", "make it the account of the tenant's services at this image registry, such as registry.example.org:5000")
		f.StringVar(&username, "username", "", "with --registry, the account's name")
		f.StringVar(&passwordFile, "password-file", "", "with --registry, the file with the account's password; - reads stdin")
	}
	c.outputFlags(cmd)
	return cmd
}

// readValues reads the values of --from-file.
func (c *cli) readValues(n *api.NewValues, files []string) error {
	for _, arg := range files {
		key, file, ok := strings.Cut(arg, "=")
		if !ok {
			key, file = filepath.Base(arg), arg
		}
		if _, again := n.Data[key]; again {
			return usage("--from-file gives the key %s twice", key)
		}
		if !ok && file == "-" {
			return usage("--from-file -: name the key: KEY=-")
		}
		in := c.In
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return usage("--from-file: %v", err)
			}
			defer f.Close()
			in = f
		}
		text, err := io.ReadAll(io.LimitReader(in, api.MaxValueBytes+1))
		if err != nil {
			return usage("--from-file %s: %v", key, err)
		}
		if len(text) > api.MaxValueBytes {
			return usage("--from-file %s: more than %d bytes", key, api.MaxValueBytes)
		}
		n.Data[key] = text
	}
	return nil
}

// readAccount reads the account of a registry.
func (c *cli) readAccount(n *api.NewValues, registry, username, passwordFile string) error {
	if username == "" || passwordFile == "" || len(n.Data) > 0 {
		return usage("a secret with --registry takes --username and --password-file, and no --from-file")
	}
	password, err := c.secret("--password-file", passwordFile, "password: ")
	if err != nil {
		return err
	}
	n.Type, n.Registry = api.TypeRegistry, registry
	n.Data[api.UsernameKey], n.Data[api.PasswordKey] = []byte(username), []byte(password)
	return nil
}

func (c *cli) putValues(ctx context.Context, a *client.Client, kind api.ValueKind, n api.NewValues, replace bool) (api.Values, error) {
	if !replace {
		return a.CreateValues(ctx, kind, c.tenant(), n)
	}
	id, err := c.valuesID(n.Name)
	if err != nil {
		return api.Values{}, err
	}
	return a.ReplaceValues(ctx, kind, id, n, 0)
}

// getValuesCmds returns the commands that show configs and secrets.
func (c *cli) getValuesCmds() (out []*cobra.Command) {
	for _, kind := range valueKinds {
		cmd := &cobra.Command{
			Use: string(kind) + "s [NAME…]", Aliases: []string{string(kind)}, Short: "Show " + string(kind) + "s",
			ValidArgsFunction: c.complete(string(kind) + "s"),
			RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
				if len(args) > 0 {
					return named(c, p, valuesTable(kind), args, func(name string) (v api.Values, err error) {
						id, err := c.valuesID(name)
						if err != nil {
							return v, err
						}
						return a.Values(ctx, kind, id)
					})
				}
				all, rev, err := a.ValuesList(ctx, kind, client.ListOptions{Tenant: c.tenant()})
				if err != nil {
					return err
				}
				return list(c, p, valuesTable(kind), all, rev)
			}),
		}
		c.outputFlags(cmd)
		out = append(out, cmd)
	}
	return out
}

func (c *cli) describeValues(kind api.ValueKind) func(context.Context, *description, string) error {
	return func(ctx context.Context, d *description, name string) error {
		id, err := c.valuesID(name)
		if err != nil {
			return err
		}
		v, err := d.api.Values(ctx, kind, id)
		if err != nil {
			return err
		}
		d.of(string(v.ID), v)
		d.line(strings.ToUpper(string(kind)[:1])+string(kind)[1:], "%s", v.ID)
		d.line("Registry", "%s", v.Registry)
		d.line("Version", "%d, changed %s ago by %s", v.Version, d.Age(v.Changed), v.By)
		d.line("Digest", "%s", v.Digest)
		for _, k := range v.Keys {
			d.line("Key", "%s, %d bytes", k.Name, k.Bytes)
		}
		for _, s := range v.Services {
			d.line("Used by", "%s", d.Short(string(s)))
		}
		d.line("Created", "%s ago", d.Age(v.Created))
		d.line("Revision", "%d", v.Revision)
		return d.events(ctx, client.ListOptions{Tenant: v.Tenant}, func(e api.Event) bool {
			return e.Kind == string(kind) && e.Object == v.ID.Name() && e.Tenant == v.Tenant
		})
	}
}

// deleteValuesCmds returns the commands that delete configs and secrets.
func (c *cli) deleteValuesCmds() (out []*cobra.Command) {
	for _, kind := range valueKinds {
		var yes, force bool
		cmd := &cobra.Command{
			Use: string(kind) + " NAME…", Aliases: []string{string(kind) + "s"}, Short: "Delete " + string(kind) + "s", Args: cobra.MinimumNArgs(1),
			ValidArgsFunction: c.complete(string(kind) + "s"),
			RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
				return each(args, func(name string) error { return c.deleteValues(ctx, a, kind, name, yes, force) })
			}),
		}
		cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
		cmd.Flags().BoolVar(&force, "force", false, "delete it although services use it: their instances keep the files that they have, and do not start again")
		out = append(out, cmd)
	}
	return out
}

func (c *cli) deleteValues(ctx context.Context, a *client.Client, kind api.ValueKind, name string, yes, force bool) error {
	id, err := c.valuesID(name)
	if err != nil {
		return err
	}
	v, err := a.Values(ctx, kind, id)
	if err != nil {
		return err
	}
	question := fmt.Sprintf("This deletes %s %s with all its versions.", kind, v.ID)
	if len(v.Services) > 0 && force {
		question += fmt.Sprintf(" %s use it; their instances will not start again.", output.Plural(len(v.Services), "service"))
	}
	if err := c.confirm(yes, question); err != nil {
		return err
	}
	if err := a.DeleteValues(ctx, kind, id, v.Revision, force); err != nil {
		return fmt.Errorf("delete %s %s: %w", kind, id, err)
	}
	c.say("%s %s deleted", kind, id)
	return nil
}

// files formats the files of a service, without their text.
func files(all []api.File) (out []string) {
	for _, f := range all {
		text := f.Path
		switch kind, name, key := f.Source(); {
		case kind == "":
			text += fmt.Sprintf(", %d bytes of the SLA", len(f.Content))
		default:
			text += fmt.Sprintf(" from %s %s", kind, strings.Join(slices.DeleteFunc([]string{name, key}, func(s string) bool { return s == "" }), "."))
		}
		text += fmt.Sprintf(", mode %04o", f.Permissions())
		if f.Template {
			text += ", template"
		}
		if f.OnChange != "" && f.OnChange != api.ChangeIgnored {
			text += ", on change " + strings.ReplaceAll(string(f.OnChange), ":", " ")
		}
		out = append(out, text)
	}
	return out
}
