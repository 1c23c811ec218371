package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) webhookCmd() *cobra.Command {
	group := &cobra.Command{
		Use: "webhook", Short: "Send events to URLs",
		Long: `Send events to URLs.

Each event is posted as JSON, signed with the webhook's secret, in order and at least
once. After eight failed tries, within about an hour and a half, it is a dead letter.`,
	}
	var n api.NewWebhook
	var reasons []string
	create := &cobra.Command{
		Use: "create URL", Short: "Send a tenant's events to a URL from now on", Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			n.URL, n.Tenant = args[0], c.tenant()
			for _, r := range reasons {
				n.Reasons = append(n.Reasons, api.Reason(r))
			}
			w, err := a.CreateWebhook(ctx, n)
			if err != nil {
				return err
			}
			c.say("webhook %s created; its secret is shown only now:", w.ID)
			_, err = fmt.Fprintln(p.Out, w.Secret)
			return err
		}),
	}
	create.Flags().StringSliceVar(&n.Kinds, "kind", nil, "only events of this kind: instance, app, service, cluster, volume, config, secret, kind or resource (custom ones), addon, user, tenant, token, webhook or node")
	create.Flags().StringSliceVar(&reasons, "reason", nil, "only events with this reason, for example unhealthy")
	retry := &cobra.Command{
		Use: "retry ID…", Short: "Send the dead letters of webhooks once more", Args: cobra.MinimumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(id string) error { return a.RetryWebhook(ctx, id) })
		}),
	}
	remove := &cobra.Command{
		Use: "delete ID…", Short: "Delete webhooks", Args: cobra.MinimumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(id string) error {
				if err := a.DeleteWebhook(ctx, id); err != nil {
					return err
				}
				c.say("webhook %s deleted", id)
				return nil
			})
		}),
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Show webhooks", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			all, err := a.Webhooks(ctx)
			if err != nil {
				return err
			}
			return list(c, p, output.Webhooks, all, 0)
		}),
	}
	c.outputFlags(list)
	dead := &cobra.Command{
		Use: "dead ID", Short: "Show the events that a webhook could not deliver", Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			w, err := a.Webhook(ctx, args[0])
			if err != nil {
				return err
			}
			var errs []error
			for _, d := range w.Dead {
				_, err := fmt.Fprintf(p.Out, "%s  %s %s %s: %s\n", d.Time.Local().Format(time.DateTime), d.Event.Kind, d.Event.Object, d.Event.Reason, output.Clean(d.Error))
				errs = append(errs, err)
			}
			if w.Lost > 0 {
				c.say("%d older ones are not kept any more", w.Lost)
			}
			return errors.Join(errs...)
		}),
	}
	group.AddCommand(create, list, dead, retry, remove)
	return group
}
