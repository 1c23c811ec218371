package command

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
)

func (c *cli) tenantCmd() *cobra.Command {
	group := &cobra.Command{Use: "tenant", Aliases: []string{"tenants"}, Short: "Create tenants"}
	var title string
	create := &cobra.Command{
		Use: "create PATH", Short: "Create a tenant: acme, acme/lab", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !api.ValidTenant(api.Tenant(args[0])) {
				return usage("tenant %q: a path of lower-case letters, digits and inner hyphens, such as acme or acme/lab", args[0])
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			if err := a.CreateTenant(cmd.Context(), api.Tenant(args[0]), title); err != nil {
				return err
			}
			c.say("tenant %s is there", args[0])
			return nil
		},
	}
	create.Flags().StringVar(&title, "title", "", "what people call it")
	group.AddCommand(create)
	return group
}

func (c *cli) userCmd() *cobra.Command {
	group := &cobra.Command{Use: "user", Aliases: []string{"users"}, Short: "Create users"}
	var roles []string
	create := &cobra.Command{
		Use: "create TENANT/NAME", Short: "Create a user, and print the line to sign in with for the first time", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := c.api()
			if err != nil {
				return err
			}
			i, err := a.CreateUser(cmd.Context(), args[0], roles...)
			if err != nil {
				return err
			}
			p, err := c.printer()
			if err != nil {
				return err
			}
			c.say("one use, until %s; the user signs in with the root's CA and:", i.Expires.Local().Format(time.DateTime))
			p.Printf("treeline login %s --user %s --code %s", a.URL(), i.User, i.Code)
			return nil
		},
	}
	create.Flags().StringSliceVar(&roles, "role", []string{"Application_Provider"}, "Admin, Organization_Admin, Application_Provider, Infrastructure_Provider")
	group.AddCommand(create)
	return group
}
