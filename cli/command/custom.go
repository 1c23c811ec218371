package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/internal/yaml"
)

var customKinds = resource[api.CustomResource]{client.CustomResources, "", output.CustomResources}

// kindID returns the id that the name of a custom kind stands for: NAME of the command's tenant, or TENANT/NAME.
func (c *cli) kindID(name string) (api.KindID, error) {
	id, err := c.valuesID(name)
	return api.KindID(id), err
}

// customID returns the id that KIND:NAME or TENANT/KIND:NAME stands for.
func (c *cli) customID(name string) (api.CustomID, error) {
	if kind, of, ok := strings.Cut(name, ":"); !ok || kind == "" || of == "" {
		return "", usage("%s: name a custom resource as KIND:NAME", name)
	}
	id, err := c.valuesID(name)
	return api.CustomID(id), err
}

// customNames returns the names of the resources of a kind from their names within it.
func customNames(kind string, names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = kind + ":" + n
	}
	return out
}

// takesKinds makes a group of commands accept a custom kind as the name of its command: treeline get sensor.
func (c *cli) takesKinds(group *cobra.Command, use string, least int, run func(ctx context.Context, p output.Printer, a *client.Client, kind string, names []string) error) {
	group.Use, group.Args = group.Name()+" "+use, cobra.ArbitraryArgs
	group.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return unknown(cmd, args)
		}
		return c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			id, err := c.kindID(args[0])
			if err == nil && !api.ValidKindName(id.Name()) {
				err = api.ErrNotFound
			}
			if err == nil {
				_, err = a.CustomKind(ctx, id)
			}
			switch {
			case errors.Is(err, errUsage), errors.Is(err, api.ErrNotFound), err != nil && len(cmd.SuggestionsFor(args[0])) > 0:
				return unknown(cmd, args)
			case err != nil:
				return err
			case len(args) <= least:
				return usage("%s %s: name some of its resources", cmd.CommandPath(), args[0])
			}
			return run(ctx, p, a, args[0], args[1:])
		})(cmd, args)
	}
}

func (c *cli) getKindsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "kinds [NAME…]", Aliases: []string{"kind"}, Short: "Show the kinds of custom resources", ValidArgsFunction: c.complete("kinds"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			if len(args) > 0 {
				return named(c, p, output.CustomKinds, args, func(name string) (k api.CustomKind, err error) {
					id, err := c.kindID(name)
					if err != nil {
						return k, err
					}
					return a.CustomKind(ctx, id)
				})
			}
			all, rev, err := client.List[api.CustomKind](ctx, a, string(client.CustomKinds), client.ListOptions{Tenant: c.tenant()})
			if err != nil {
				return err
			}
			return list(c, p, output.CustomKinds, all, rev)
		}),
	}
	c.outputFlags(cmd)
	c.sortFlag(cmd)
	return cmd
}

func (c *cli) getCustomCmd() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "resources [KIND|KIND:NAME…]", Aliases: []string{"resource"}, Short: "Show custom resources", ValidArgsFunction: c.complete("resources"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			return c.showCustom(ctx, p, a, args, watch)
		}),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep printing resources that change")
	c.outputFlags(cmd)
	c.sortFlag(cmd)
	return cmd
}

// showCustom prints the resources of kinds, or single ones; all without names. With watch it then prints changes.
func (c *cli) showCustom(ctx context.Context, p output.Printer, a *client.Client, names []string, watch bool) error {
	single := slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, ":") })
	if single && !watch && !slices.ContainsFunc(names, func(n string) bool { return !strings.Contains(n, ":") }) {
		return named(c, p, output.CustomResources, names, func(name string) (r api.CustomResource, err error) {
			id, err := c.customID(name)
			if err != nil {
				return r, err
			}
			return a.CustomResource(ctx, id)
		})
	}
	var wanted []string
	for _, n := range names {
		id, err := c.valuesID(n)
		if err != nil {
			return err
		}
		if kind := api.CustomID(id).Kind(); !watch {
			if _, err := a.CustomKind(ctx, kind); err != nil {
				return err
			}
		}
		wanted = append(wanted, string(id))
	}
	s := source[api.CustomResource]{customKinds, a, client.ListOptions{}}
	switch len(names) {
	case 0:
		s.list.Tenant = c.tenant()
	case 1:
		s.list.Under = string(api.CustomID(wanted[0]).Kind())
	}
	unwanted := func(id string) bool {
		return len(wanted) > 0 && !slices.Contains(wanted, id) && !slices.Contains(wanted, string(api.CustomID(id).Kind()))
	}
	rows := output.NewRows(p, output.CustomResources)
	err := s.follow(ctx, func(e seen[api.CustomResource]) (bool, error) {
		switch {
		case e.Whole:
			found := slices.DeleteFunc(e.Items, func(o api.CustomResource) bool { return unwanted(string(o.ID)) })
			if !watch {
				return false, list(c, p, output.CustomResources, found, e.Rev)
			}
			return true, s.each(p, rows, found)
		case unwanted(e.ID):
			return true, nil
		case e.Object == nil:
			return true, gone(p, e.ID)
		}
		return true, s.each(p, rows, []api.CustomResource{*e.Object})
	})
	if watch && errors.Is(err, context.Canceled) {
		return nil // ended by Ctrl-C
	}
	return err
}

func (c *cli) describeKind(ctx context.Context, d *description, name string) error {
	id, err := c.kindID(name)
	if err != nil {
		return err
	}
	k, err := d.api.CustomKind(ctx, id)
	if err != nil {
		return err
	}
	d.of(string(id), k)
	d.line("Kind", "%s", id)
	d.line("Description", "%s", k.Description)
	d.line("Resources", "%d", k.Resources)
	d.line("Changed", "%s ago by %s", d.Age(k.Changed), k.By)
	d.line("Created", "%s ago", d.Age(k.Created))
	d.line("Revision", "%d", k.Revision)
	d.block("Schema", k.Schema)
	return d.events(ctx, client.ListOptions{Tenant: k.Tenant}, func(e api.Event) bool {
		return e.Kind == "kind" && e.Object == k.Name && e.Tenant == k.Tenant
	})
}

func (c *cli) describeCustom(ctx context.Context, d *description, name string) error {
	id, err := c.customID(name)
	if err != nil {
		return err
	}
	r, err := d.api.CustomResource(ctx, id)
	if err != nil {
		return err
	}
	d.of(string(id), r)
	d.line("Resource", "%s", id)
	d.line("Changed", "%s ago by %s", d.Age(r.Changed), r.By)
	d.line("Created", "%s ago", d.Age(r.Created))
	d.line("Revision", "%d", r.Revision)
	d.block("Spec", r.Spec)
	return d.events(ctx, client.ListOptions{Tenant: r.Tenant, Under: string(id)}, func(e api.Event) bool { return e.Kind == "resource" })
}

// block prints a JSON value as YAML under a name.
func (d *description) block(name string, text json.RawMessage) {
	if !d.ForPeople() {
		return
	}
	d.Printf("%s:", name)
	y, err := yaml.FromJSON(text)
	if err != nil {
		y = text
	}
	for line := range strings.Lines(strings.TrimRight(string(y), "\n")) {
		d.Printf("  %s", strings.TrimRight(line, "\n"))
	}
}

// deleteCustomCmds returns the commands that delete custom kinds and resources.
func (c *cli) deleteCustomCmds(yes *bool) []*cobra.Command {
	var force bool
	kind := &cobra.Command{
		Use: "kind NAME…", Aliases: []string{"kinds"}, Short: "Delete kinds of custom resources", ValidArgsFunction: c.complete("kinds"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(name string) error { return c.deleteKind(ctx, a, name, *yes, force) })
		}),
	}
	kind.Flags().BoolVar(&force, "force", false, "delete it with its resources")
	return []*cobra.Command{kind, {
		Use: "resource KIND:NAME…", Aliases: []string{"resources"}, Short: "Delete custom resources", ValidArgsFunction: c.complete("resources"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(name string) error { return c.deleteCustom(ctx, a, name, *yes) })
		}),
	}}
}

func (c *cli) deleteKind(ctx context.Context, a *client.Client, name string, yes, force bool) error {
	id, err := c.kindID(name)
	if err != nil {
		return err
	}
	k, err := a.CustomKind(ctx, id)
	if err != nil {
		return err
	}
	question := fmt.Sprintf("This deletes kind %s.", id)
	if force && k.Resources > 0 {
		question = fmt.Sprintf("This deletes kind %s with its %s.", id, output.Plural(k.Resources, "resource"))
	}
	if err := c.confirm(yes, question); err != nil {
		return err
	}
	if err := a.DeleteKind(ctx, id, k.Revision, force); err != nil {
		return fmt.Errorf("delete %w", err)
	}
	c.say("kind %s deleted", id)
	return nil
}

func (c *cli) deleteCustom(ctx context.Context, a *client.Client, name string, yes bool) error {
	id, err := c.customID(name)
	if err != nil {
		return err
	}
	r, err := a.CustomResource(ctx, id)
	if err != nil {
		return err
	}
	if err := c.confirm(yes, fmt.Sprintf("This deletes resource %s.", id)); err != nil {
		return err
	}
	if err := a.DeleteResource(ctx, id, r.Revision); err != nil {
		return fmt.Errorf("delete %w", err)
	}
	c.say("resource %s deleted", id)
	return nil
}

// definition is a document that defines a custom kind, or a custom resource.
type definition struct {
	Kind        string          `json:"kind"` // "kind", or the custom kind of a resource
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"` // of a kind
	Spec        json.RawMessage `json:"spec"`   // of a resource
}

// definesKind is the kind of documents that define a custom kind.
const definesKind = "kind"

// definitions returns the custom kinds and resources in a file. It returns none if the file is an SLA.
func definitions(file string, doc []byte) ([]definition, error) {
	parts := [][]byte{doc}
	if contentType(file, doc) != "application/json" {
		parts = yamlDocuments(doc)
	}
	var all []definition
	for i, part := range parts {
		bad := func(err error) error { return fmt.Errorf("-f %s: document %d: %w", file, i+1, err) }
		text := part
		if contentType(file, doc) != "application/json" {
			var err error
			if text, err = yaml.ToJSON(part); err != nil {
				if i == 0 {
					return nil, nil //nolint:nilerr // the root reports the fault of an SLA
				}
				return nil, bad(err)
			}
		}
		var head struct {
			Kind *string `json:"kind"`
		}
		if err := json.Unmarshal(text, &head); (err != nil || head.Kind == nil) && i == 0 {
			return nil, nil //nolint:nilerr // see above
		}
		var d definition
		strict := json.NewDecoder(bytes.NewReader(text))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&d); err != nil {
			return nil, bad(fmt.Errorf("want kind, name, and spec or (of a kind) schema: %w: %w", err, api.ErrInvalid))
		}
		switch {
		case d.Kind == definesKind && (d.Name == "" || d.Schema == nil || d.Spec != nil):
			return nil, bad(fmt.Errorf("a kind has name and schema: %w", api.ErrInvalid))
		case d.Kind != definesKind && (d.Kind == "" || d.Name == "" || d.Spec == nil || d.Schema != nil || d.Description != ""):
			return nil, bad(fmt.Errorf("a custom resource has kind, name and spec: %w", api.ErrInvalid))
		}
		all = append(all, d)
	}
	return all, nil
}

// yamlDocuments splits a YAML stream at its lines "---".
func yamlDocuments(doc []byte) (out [][]byte) {
	var part []byte
	for line := range bytes.Lines(doc) {
		if string(bytes.TrimRight(line, " \r\n")) == "---" {
			out, part = append(out, part), nil
			continue
		}
		part = append(part, line...)
	}
	return slices.DeleteFunc(append(out, part), func(p []byte) bool { return len(bytes.TrimSpace(p)) == 0 })
}

// applyDefinitions creates or replaces custom kinds and resources in their order.
func (c *cli) applyDefinitions(ctx context.Context, p output.Printer, a *client.Client, file, ifMatch string, all []definition) error {
	at, create, err := match(ifMatch)
	if err != nil {
		return err
	}
	if ifMatch != "" && len(all) > 1 {
		return usage("--if-match needs a file with one document, this has %d", len(all))
	}
	var shown []any
	for i, d := range all {
		var o any
		if d.Kind == definesKind {
			o, err = put(create, func() (api.CustomKind, error) {
				id, err := c.kindID(d.Name)
				if err != nil {
					return api.CustomKind{}, err
				}
				return a.ReplaceKind(ctx, id, d.kind(), at)
			}, func() (api.CustomKind, error) { return a.CreateKind(ctx, c.tenant(), d.kind()) }, at)
		} else {
			o, err = put(create, func() (api.CustomResource, error) {
				id, err := c.customID(d.Kind + ":" + d.Name)
				if err != nil {
					return api.CustomResource{}, err
				}
				return a.ReplaceResource(ctx, id, d.resource(), at)
			}, func() (api.CustomResource, error) { return a.CreateResource(ctx, c.tenant(), d.resource()) }, at)
		}
		if err != nil {
			if i > 0 {
				err = fmt.Errorf("applied %d of %d documents, but then: %w", i, len(all), err)
			}
			return fmt.Errorf("apply %s: %w", file, err)
		}
		shown = append(shown, o)
	}
	return showDefinitions(p, shown)
}

// put replaces an object, or creates it if it does not exist.
func put[T any](mustCreate bool, replace, create func() (T, error), at api.Revision) (o T, err error) {
	if !mustCreate {
		if o, err = replace(); at != 0 || !errors.Is(err, api.ErrNotFound) {
			return o, err
		}
	}
	return create()
}

func (d definition) kind() api.NewCustomKind {
	return api.NewCustomKind{Name: d.Name, Description: d.Description, Schema: d.Schema}
}

func (d definition) resource() api.NewCustomResource {
	return api.NewCustomResource{Kind: d.Kind, Name: d.Name, Spec: d.Spec}
}

func showDefinitions(p output.Printer, all []any) error {
	if !p.ForPeople() && p.Format != output.Name {
		if len(all) == 1 {
			return p.Object(all[0])
		}
		return p.Object(api.Page[any]{Items: all})
	}
	for _, o := range all {
		var err error
		switch o := o.(type) {
		case api.CustomKind:
			err = showDefinition(p, "kind", string(o.ID), o.Revision)
		case api.CustomResource:
			err = showDefinition(p, "resource", string(o.ID), o.Revision)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func showDefinition(p output.Printer, what, id string, rev api.Revision) error {
	if p.Format == output.Name {
		_, err := fmt.Fprintln(p.Out, id)
		return err
	}
	_, err := fmt.Fprintf(p.Out, "%s %s is at revision %d\n", what, p.Short(id), rev)
	return err
}
