package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

// errPlan marks errors of the commands plan and diff, whose exit code 1 means that something would change.
var errPlan = errors.New("plan")

func (c *cli) planCmd() *cobra.Command {
	var from slaFile
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Show what apply would change, and where each instance would be placed", Args: fileByFlag,
		Long: `Show what applying an SLA (JSON or YAML) would change, where each instance would be
placed, and what that cluster or node would have left. The root asks the clusters
that it would choose. Nothing is reserved, so a later apply may place instances
differently; apply --if-match applies only to the revision that was planned for.
The command exits with 0 if nothing would change, with 1 if something would, and
with 2 or more on errors.`,
		Example: "  treeline plan -f shop.yaml\n  treeline plan -f shop.yaml -o json | jq .apps[].instances",
		RunE:    c.compares(&from, c.plan),
	}
	c.slaFlags(cmd, &from)
	c.outputFlags(cmd)
	return cmd
}

// compares returns the action of a command whose exit code says whether applying the file would change something: 0, 1,
// or 2 and more on errors.
func (c *cli) compares(from *slaFile, changes func(context.Context, output.Printer, *client.Client, slaFile) (bool, error)) func(*cobra.Command, []string) error {
	return c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
		changed, err := changes(ctx, p, a, *from)
		switch {
		case err != nil:
			return fmt.Errorf("%w%w", hidden{errPlan}, err)
		case changed:
			return errReported
		}
		return nil
	})
}

func (c *cli) plan(ctx context.Context, p output.Printer, a *client.Client, from slaFile) (changes bool, err error) {
	_, plan, err := c.planned(ctx, a, from)
	if err != nil {
		return false, err
	}
	changes = output.Changes(plan)
	switch {
	case p.Format == output.Name:
		for _, app := range plan.Apps {
			if app.Action != "none" {
				p.Printf("%s", app.ID)
			}
		}
	case !p.ForPeople():
		return changes, p.Object(plan)
	default:
		if err := output.Plan(p, plan); err != nil {
			return false, err
		}
		if changes {
			c.say("to apply: %s", applyLine(from, plan))
		}
	}
	return changes, nil
}

// planned returns the SLA in a file and the root's plan for it.
func (c *cli) planned(ctx context.Context, a *client.Client, from slaFile) (doc []byte, plan api.Plan, err error) {
	if doc, err = c.document(ctx, from.name); err != nil {
		return nil, plan, err
	}
	options, err := c.options(ctx, from, doc)
	if err != nil {
		return nil, plan, err
	}
	if plan, err = a.Plan(ctx, doc, options); err != nil {
		err = fmt.Errorf("plan %s: %w%s", from.name, err, tabs(from.name, doc, err))
	}
	return doc, plan, err
}

// applyLine returns the command that applies a plan. With several applications it has no
// --if-match, because each application has its own revision.
func applyLine(from slaFile, plan api.Plan) string {
	line := "treeline apply -f " + from.name
	if from.application != "" {
		line += " --application " + from.application
	}
	if len(plan.Apps) == 1 {
		line += fmt.Sprintf(" --if-match %d", plan.Apps[0].Revision)
	}
	return line
}
