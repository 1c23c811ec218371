package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/internal/yaml"
)

func (c *cli) diffCmd() *cobra.Command {
	var from slaFile
	cmd := &cobra.Command{
		Use: "diff -f FILE", Short: "Compare an SLA with the applications that exist, line by line", Args: fileByFlag,
		Long: `Print what applying an SLA (JSON or YAML) would change, as the lines that differ between
the SLA documents of the present and the new applications (treeline get app -o sla).
Applications of the file that would not change are not printed. plan shows where
instances would be placed, too. The command exits with 0 if nothing would change, with
1 if something would, and with 2 or more on errors.`,
		Example: "  treeline diff -f shop.yaml",
		RunE:    c.compares(&from, c.diff),
	}
	c.slaFlags(cmd, &from)
	return cmd
}

func (c *cli) diff(ctx context.Context, p output.Printer, a *client.Client, from slaFile) (changes bool, err error) {
	doc, plan, err := c.planned(ctx, a, from)
	if err != nil {
		return false, err
	}
	// The root decides what changes. The text of the new document needs a client that knows its fields.
	doc = asJSON(from.name, doc)
	if from.application != "" && len(plan.Apps) == 1 {
		if doc, err = withServices(ctx, a, plan.Apps[0], doc); err != nil {
			return false, err
		}
	}
	sla, unread := api.ParseSLA(doc)
	for _, app := range plan.Apps {
		if app.Action == "none" {
			continue
		}
		changes = true
		i := slices.IndexFunc(sla.Applications, func(spec api.Application) bool { return app.ID.Tenant().App(spec.Name, spec.Namespace) == app.ID })
		if i < 0 {
			c.say("this treeline cannot print the new document (%v); the root reports these changes", unread)
			for _, f := range app.Changes {
				p.Printf("%s %s: %s → %s", app.ID, f.Path, f.Old, f.New)
			}
			continue
		}
		var old []byte
		if app.Action != "create" {
			if old, err = a.SLA(ctx, app.ID); err != nil {
				return changes, err
			}
		}
		keepReplicas(&sla.Applications[i], old)
		fresh, err := sla.Applications[i].Document()
		if err == nil {
			fresh, err = yaml.FromJSON(fresh)
		}
		if err == nil && old != nil {
			old, err = yaml.FromJSON(old)
		}
		if err != nil {
			return changes, err
		}
		name := p.Short(string(app.ID))
		if _, err := p.Out.Write(diff.Diff(name+" (revision "+fmt.Sprint(uint64(app.Revision))+")", old, name+" ("+from.name+")", fresh)); err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// withServices returns the SLA of a planned application with the services of a document.
func withServices(ctx context.Context, a *client.Client, plan api.AppPlan, doc []byte) ([]byte, error) {
	app, err := a.App(ctx, plan.ID)
	if errors.Is(err, api.ErrNotFound) {
		app.Spec.Name, app.Spec.Namespace, _ = strings.Cut(plan.ID.Name(), ".")
		err = nil
	}
	if err != nil {
		return nil, err
	}
	sla, _, err := app.Spec.AddServices(doc)
	return sla, err
}

// asJSON converts an SLA to JSON; it returns an invalid document unchanged.
func asJSON(file string, doc []byte) []byte {
	if contentType(file, doc) == "application/json" {
		return doc
	}
	if text, err := yaml.ToJSON(doc); err == nil {
		return text
	}
	return doc
}

// keepReplicas sets the numbers of instances that the document leaves to the present application,
// whose SLA is old.
func keepReplicas(app *api.Application, old []byte) {
	had, err := api.ParseSLA(old)
	if err != nil || len(had.Applications) != 1 {
		return
	}
	for i := range app.Services {
		m := &app.Services[i]
		for _, was := range had.Applications[0].Services {
			if m.Replicas == nil && m.Scale == nil && m.Completions == 0 && was.Name == m.Name && was.Namespace == m.Namespace {
				m.Replicas = was.Replicas
			}
		}
	}
}

// showSLA prints the applications as one SLA document, for an editor and for apply.
func (c *cli) showSLA(ctx context.Context, a *client.Client, apps []api.App) error {
	if len(apps) == 0 {
		return fmt.Errorf("no application to print: %w", api.ErrNotFound)
	}
	type document struct {
		Version      string            `json:"sla_version"`
		Applications []json.RawMessage `json:"applications"`
	}
	var whole document
	tenant := apps[0].ID.Tenant()
	for _, app := range apps {
		if app.ID.Tenant() != tenant {
			return usage("-o sla: the applications are of the tenants %s and %s, and an SLA is of one; choose it with --tenant", tenant, app.ID.Tenant())
		}
		text, err := a.SLA(ctx, app.ID)
		var of document
		if err == nil {
			err = json.Unmarshal(text, &of)
		}
		if err != nil {
			return fmt.Errorf("SLA of %s: %w", app.ID, err) // some of the applications would look like all of them
		}
		whole.Version, whole.Applications = of.Version, append(whole.Applications, of.Applications...)
	}
	text, err := json.Marshal(whole)
	if err != nil {
		return fmt.Errorf("encode an SLA: %w", err)
	}
	if text, err = yaml.FromJSON(text); err != nil {
		return err
	}
	_, err = c.Out.Write(text)
	return err
}
