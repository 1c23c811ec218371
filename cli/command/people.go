package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) tenantCmd() *cobra.Command {
	group := &cobra.Command{Use: "tenant", Aliases: []string{"tenants"}, Short: "Create tenants"}
	var title string
	create := &cobra.Command{
		Use: "create PATH", Short: "Create a tenant: acme, acme/lab", Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			if !api.ValidTenant(api.Tenant(args[0])) {
				return usage("tenant %q: want a path of lower-case letters, digits and inner hyphens, such as acme or acme/lab", args[0])
			}
			if err := a.CreateTenant(ctx, api.Tenant(args[0]), title); err != nil {
				return err
			}
			c.say("tenant %s created", args[0])
			return nil
		}),
	}
	create.Flags().StringVar(&title, "title", "", "display name")
	group.AddCommand(create)
	return group
}

func (c *cli) userCmd() *cobra.Command {
	group := &cobra.Command{Use: "user", Aliases: []string{"users"}, Short: "Create and invite users"}
	var roles []string
	create := &cobra.Command{
		Use: "create TENANT/NAME", Short: "Create a user, and print the command for the first sign-in", Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			i, err := a.CreateUser(ctx, args[0], roles...)
			if err != nil {
				return err
			}
			return c.invitation(a, i)
		}),
	}
	create.Flags().StringSliceVar(&roles, "role", []string{"Application_Provider"}, "role: Admin, Organization_Admin, Application_Provider or Infrastructure_Provider; may be repeated")
	group.AddCommand(create, &cobra.Command{
		Use: "invite TENANT/NAME", Short: "Print a new first sign-in command, for a lost code or password", Args: cobra.ExactArgs(1),
		Long: `Print a new command for the first sign-in, for a user who lost the code or the
password. Earlier codes become invalid. It needs the rights to create the user.`,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			i, err := a.Invite(ctx, args[0])
			if err != nil {
				return err
			}
			return c.invitation(a, i)
		}),
	})
	return group
}

// invitation prints the command for a first sign-in, and on its own line the code that the command
// asks for, because other users of the machine can read arguments. The command pins the CA of this
// context, so that the user needs no CA file.
func (c *cli) invitation(a *client.Client, i client.Invitation) error {
	p, err := c.printer()
	if err != nil {
		return err
	}
	w, err := c.where()
	if err != nil {
		return err
	}
	pin := ""
	if hash := client.PinOf([]byte(w.CA)); hash != "" {
		pin = " --pin " + hash
	}
	c.say("the user signs in with this command, which asks for the code below it (valid once, until %s):", i.Expires.Local().Format(time.DateTime))
	p.Printf("treeline login %s --user %s --code-file -%s", a.URL(), i.User, pin)
	p.Printf("%s", i.Code)
	return nil
}
