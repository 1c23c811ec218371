package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/artifact"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) addonCmd() *cobra.Command {
	group := &cobra.Command{
		Use: "addon", Short: "Install packages of an application, kinds, resources and webhooks",
		Long: `Install packages of an application, kinds, resources and webhooks.

A PACKAGE is a directory, a file that "treeline addon pack" wrote, or a reference in a
registry, such as registry.example.org/addons/mqtt:1.0.0. Installing, upgrading and
removing an addon changes all of its objects, or none.`,
	}
	group.AddCommand(c.addonInstallCmd(), c.addonUpgradeCmd(), c.addonRemoveCmd(), c.addonListCmd(), c.addonShowCmd(), c.addonInspectCmd(), c.addonPackCmd(), c.addonPushCmd())
	return group
}

func registryFlags(cmd *cobra.Command, r *artifact.Registry) {
	cmd.Flags().BoolVar(&r.PlainHTTP, "plain-http", false, "use the registry without TLS")
}

// found is a package and where it was read.
type found struct {
	artifact.Artifact
	source string
}

// findPackage reads a directory, a file or a reference.
func findPackage(ctx context.Context, r artifact.Registry, name string) (f found, err error) {
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		p, err := artifact.ReadDirectory(name)
		if err != nil {
			return f, err
		}
		f.Artifact, err = artifact.New(p)
		if err != nil {
			return f, fmt.Errorf("%s: %w", name, err)
		}
		return f, nil
	case err == nil:
		file, err := os.Open(name)
		if err != nil {
			return f, err
		}
		defer file.Close()
		if f.Artifact, err = artifact.ReadLayout(file); err != nil {
			return f, fmt.Errorf("%s: %w", name, err)
		}
		return f, nil
	case !errors.Is(err, os.ErrNotExist), strings.HasPrefix(name, "."), strings.HasPrefix(name, "/"):
		return f, err
	}
	f.Artifact, f.source, err = r.Pull(ctx, name)
	return f, err
}

// newAddon reads a package and returns the request to install or upgrade it with --set NAME=VALUE.
func newAddon(ctx context.Context, r artifact.Registry, name string, sets []string) (api.NewAddon, error) {
	f, err := findPackage(ctx, r, name)
	if err != nil {
		return api.NewAddon{}, err
	}
	return f.request(sets)
}

// request returns the request to install or upgrade the package.
func (f found) request(sets []string) (api.NewAddon, error) {
	n := api.NewAddon{Package: f.Package, Source: f.source, Digest: f.Digest().String()}
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if len(f.Package.Parameters) > 0 {
		if err := json.Unmarshal(f.Package.Parameters, &s); err != nil {
			return n, fmt.Errorf("parameters of %s: %w", f.Package.Name, err)
		}
	}
	for _, set := range sets {
		name, value, ok := strings.Cut(set, "=")
		if !ok || name == "" {
			return n, usage("--set %s: want NAME=VALUE", set)
		}
		if n.Values == nil {
			n.Values = map[string]json.RawMessage{}
		}
		n.Values[name] = valueOf(s.Properties[name], value)
	}
	return n, nil
}

// valueOf returns the value of --set as JSON. It is a JSON string if the schema says string or text is not valid
// JSON, otherwise text as it is.
func valueOf(schema json.RawMessage, text string) json.RawMessage {
	var s struct {
		Type any `json:"type"`
	}
	_ = json.Unmarshal(schema, &s)
	if s.Type != "string" && json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	quoted, _ := json.Marshal(text)
	return quoted
}

// applied prints what an installation or upgrade did.
func (c *cli) applied(p output.Printer, verb string, did api.AddonApplied) error {
	a := did.Addon
	c.say("addon %s %s %s (%s)", a.ID, a.Version, verb, a.Digest)
	c.changed(did.Changes)
	for _, w := range did.Webhooks {
		c.say("webhook %s to %s; its secret is shown only now:", w.ID, output.Clean(w.URL))
		if _, err := fmt.Fprintln(p.Out, w.Secret); err != nil {
			return err
		}
	}
	return nil
}

var changeWords = map[string]string{"create": "created", "update": "changed", "delete": "deleted", "release": "kept, and no longer owned by the addon"}

func (c *cli) changed(changes []api.AddonChange) {
	for _, ch := range changes {
		if word := changeWords[ch.Action]; word != "" {
			c.say("  %s %s %s", ch.Kind, ch.ID, word)
		}
	}
}

func (c *cli) addonInstallCmd() *cobra.Command {
	var sets []string
	var r artifact.Registry
	cmd := &cobra.Command{
		Use: "install PACKAGE", Short: "Install an addon", Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			n, err := newAddon(ctx, r, args[0], sets)
			if err != nil {
				return err
			}
			did, err := a.InstallAddon(ctx, c.tenant(), n)
			if err != nil {
				return fmt.Errorf("install %s: %w", args[0], err)
			}
			return c.applied(p, "installed", did)
		}),
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "the value of a parameter, NAME=VALUE; may be repeated")
	registryFlags(cmd, &r)
	return cmd
}

func (c *cli) addonUpgradeCmd() *cobra.Command {
	var sets []string
	var r artifact.Registry
	var o client.AddonOptions
	cmd := &cobra.Command{
		Use: "upgrade PACKAGE", Short: "Replace an addon by another version, or change its values", Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			n, err := newAddon(ctx, r, args[0], sets)
			if err != nil {
				return err
			}
			id, err := c.addonID(n.Package.Name)
			if err != nil {
				return err
			}
			now, err := a.Addon(ctx, id)
			if err != nil {
				return err
			}
			o.At = now.Revision
			did, err := a.UpgradeAddon(ctx, id, n, o)
			if err != nil {
				return fmt.Errorf("upgrade %w", err)
			}
			return c.applied(p, "is installed, before "+now.Version, did)
		}),
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "the value of a parameter, NAME=VALUE; may be repeated; others keep theirs, and NAME=null returns to the default of one that is no string")
	cmd.Flags().BoolVar(&o.Downgrade, "downgrade", false, "also to an older version")
	cmd.Flags().BoolVar(&o.KeepResources, "keep-resources", false, "keep kinds that the new version does not have if others have resources of them")
	registryFlags(cmd, &r)
	return cmd
}

func (c *cli) addonID(name string) (api.AddonID, error) {
	id, err := c.valuesID(name)
	return api.AddonID(id), err
}

func (c *cli) addonRemoveCmd() *cobra.Command {
	var yes bool
	var o client.AddonOptions
	cmd := &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm", "delete"}, Short: "Remove an addon with its objects", Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			id, err := c.addonID(args[0])
			if err != nil {
				return err
			}
			now, err := a.Addon(ctx, id)
			if err != nil {
				return err
			}
			if err := c.confirm(yes, fmt.Sprintf("This removes addon %s %s with its application, kinds, resources and webhooks.", id, now.Version)); err != nil {
				return err
			}
			o.At = now.Revision
			changes, err := a.RemoveAddon(ctx, id, o)
			if err != nil {
				return fmt.Errorf("remove %w", err)
			}
			c.say("addon %s removed", id)
			c.changed(changes)
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&o.KeepResources, "keep-resources", false, "keep the kinds of which others have resources, with these")
	return cmd
}

func (c *cli) addonListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Show installed addons", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			all, rev, err := client.List[api.Addon](ctx, a, string(client.Addons), client.ListOptions{Tenant: c.tenant()})
			if err != nil {
				return err
			}
			return list(c, p, output.Addons, all, rev)
		}),
	}
	c.outputFlags(cmd)
	return cmd
}

func (c *cli) addonShowCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME…", Short: "Show installed addons, with their values and objects as -o yaml", Args: cobra.MinimumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			return named(c, p, output.Addons, args, func(name string) (o api.Addon, err error) {
				id, err := c.addonID(name)
				if err != nil {
					return o, err
				}
				return a.Addon(ctx, id)
			})
		}),
	}
	c.outputFlags(cmd)
	return cmd
}

// local returns a command that reads a package and needs no root.
func (c *cli) local(cmd *cobra.Command, run func(ctx context.Context, f found, args []string) error) *cobra.Command {
	var r artifact.Registry
	registryFlags(cmd, &r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := findPackage(cmd.Context(), r, args[0])
		if err != nil {
			return err
		}
		return run(cmd.Context(), f, args)
	}
	return cmd
}

func (c *cli) addonInspectCmd() *cobra.Command {
	return c.local(&cobra.Command{
		Use: "inspect PACKAGE", Short: "Print a package as JSON, without installing it", Args: cobra.ExactArgs(1),
	}, func(_ context.Context, f found, _ []string) error {
		c.say("%s %s (%s)", f.Package.Name, f.Package.Version, f.Digest())
		text, err := json.MarshalIndent(f.Package, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(c.Out, string(text))
		return err
	})
}

func (c *cli) addonPackCmd() *cobra.Command {
	var file string
	cmd := c.local(&cobra.Command{
		Use: "pack DIR", Short: "Write a package to a file, as an OCI image layout", Args: cobra.ExactArgs(1),
	}, func(_ context.Context, f found, _ []string) error {
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		if err := errors.Join(f.WriteLayout(out), out.Close()); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
		c.say("%s %s written to %s (%s)", f.Package.Name, f.Package.Version, file, f.Digest())
		return nil
	})
	cmd.Flags().StringVarP(&file, "file", "o", "addon.tar", "the file to write")
	return cmd
}

func (c *cli) addonPushCmd() *cobra.Command {
	var r artifact.Registry
	cmd := &cobra.Command{
		Use: "push PACKAGE REFERENCE", Short: "Write a package to a registry", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := findPackage(cmd.Context(), r, args[0])
			if err != nil {
				return err
			}
			at, err := r.Push(cmd.Context(), args[1], f.Artifact)
			if err != nil {
				return err
			}
			c.say("%s %s is at %s", f.Package.Name, f.Package.Version, at)
			return nil
		},
	}
	registryFlags(cmd, &r)
	return cmd
}
