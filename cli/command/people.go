package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/contexts"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) tenantCmd() *cobra.Command {
	group := &cobra.Command{Use: "tenant", Aliases: []string{"tenants"}, Short: "Create, list and delete tenants"}
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
	lister := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List your tenant and those below it", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			all, err := a.Tenants(ctx)
			if err != nil {
				return err
			}
			return list(c, p, tenantTable, all, 0)
		}),
	}
	c.outputFlags(lister)
	c.sortFlag(lister)
	var yes bool
	del := &cobra.Command{
		Use: "delete PATH…", Aliases: []string{"rm"}, Short: "Delete tenants that have nothing left", Args: cobra.MinimumNArgs(1),
		Long:              `Delete tenants. They must have no users, tenants below them, applications, volumes or clusters.`,
		ValidArgsFunction: c.complete("tenants"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(name string) error {
				if err := c.confirm(yes, "This deletes tenant "+name+"."); err != nil {
					return err
				}
				if err := a.DeleteTenant(ctx, api.Tenant(name)); err != nil {
					return err
				}
				c.say("tenant %s deleted", name)
				return nil
			})
		}),
	}
	del.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	group.AddCommand(create, lister, del)
	return group
}

var tenantTable = output.Table[client.TenantInfo]{
	Kind: "tenants",
	Name: func(t client.TenantInfo) string { return string(t.Path) },
	Columns: []output.Column[client.TenantInfo]{
		{Header: "PATH", Cell: func(_ output.Printer, t client.TenantInfo) string { return string(t.Path) }},
		{Header: "TITLE", Cell: func(_ output.Printer, t client.TenantInfo) string { return t.Title }},
		{Header: "AGE", Cell: func(p output.Printer, t client.TenantInfo) string { return p.Age(t.Created) }},
	},
}

var userTable = output.Table[client.User]{
	Kind: "users",
	Name: func(u client.User) string { return u.ID },
	Columns: []output.Column[client.User]{
		{Header: "NAME", Cell: func(_ output.Printer, u client.User) string { return u.ID }},
		{Header: "ROLES", Cell: func(_ output.Printer, u client.User) string { return strings.Join(u.Roles, ",") }},
		{Header: "STATUS", Cell: func(_ output.Printer, u client.User) string {
			switch {
			case u.Disabled:
				return "disabled"
			case u.Pending:
				return "invited"
			}
			return "active"
		}},
		{Header: "EMAIL", Cell: func(_ output.Printer, u client.User) string { return u.Email }},
		{Header: "AGE", Wide: true, Cell: func(p output.Printer, u client.User) string { return p.Age(u.Created) }},
	},
}

var roleNames = []string{"Admin", "Organization_Admin", "Application_Provider", "Infrastructure_Provider"}

// roleFlag adds --role, which may be repeated.
func roleFlag(cmd *cobra.Command, to *[]string, byDefault []string, usage string) {
	cmd.Flags().StringSliceVar(to, "role", byDefault, usage+": "+strings.Join(roleNames[:3], ", ")+" or "+roleNames[3]+"; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roleNames, cobra.ShellCompDirectiveNoFileComp))
}

func (c *cli) userCmd() *cobra.Command {
	group := &cobra.Command{Use: "user", Aliases: []string{"users"}, Short: "Create, invite, change and delete users"}
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
	roleFlag(create, &roles, []string{"Application_Provider"}, "role")
	invite := &cobra.Command{
		Use: "invite TENANT/NAME", Aliases: []string{"reset-password"}, Short: "Print a new first sign-in command, for a lost code or password", Args: cobra.ExactArgs(1),
		Long: `Print a new command for the first sign-in, for a user who lost the code or the
password. Earlier codes become invalid; the password stays valid until the user sets
another one. It needs the rights to create the user with all of the user's roles.`,
		ValidArgsFunction: c.complete("users"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			i, err := a.Invite(ctx, args[0])
			if err != nil {
				return err
			}
			return c.invitation(a, i)
		}),
	}
	lister := &cobra.Command{
		Use: "list [TENANT/NAME…]", Aliases: []string{"ls"}, Short: "List users and their roles", ValidArgsFunction: c.complete("users"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			if len(args) > 0 {
				return named(c, p, userTable, args, func(name string) (client.User, error) { return a.User(ctx, name) })
			}
			all, err := a.Users(ctx)
			if err != nil {
				return err
			}
			return list(c, p, userTable, all, 0)
		}),
	}
	c.outputFlags(lister)
	c.sortFlag(lister)
	var yes bool
	del := &cobra.Command{
		Use: "delete TENANT/NAME…", Aliases: []string{"rm"}, Short: "Delete users with their sessions and tokens", Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.complete("users"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(name string) error {
				if err := c.confirm(yes, "This deletes user "+name+" with all sessions and tokens."); err != nil {
					return err
				}
				if err := a.DeleteUser(ctx, name); err != nil {
					return err
				}
				c.say("user %s deleted", name)
				return nil
			})
		}),
	}
	del.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	group.AddCommand(create, invite, lister, c.userSetCmd(), del)
	return group
}

func (c *cli) userSetCmd() *cobra.Command {
	var roles []string
	var email string
	var disable, enable bool
	cmd := &cobra.Command{
		Use: "set TENANT/NAME…", Short: "Change users' roles or e-mail address, or whether they may sign in", Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.complete("users"),
		Long: `Change users. --role replaces all roles. You can give and take only roles that you could
give to a new user. Sessions with a role that was taken, and those of users who are disabled, end at once.`,
		Example: "  treeline user set acme/alice --role Organization_Admin\n  treeline user set acme/bob --disable",
	}
	f := cmd.Flags()
	roleFlag(cmd, &roles, nil, "replace the roles by this one")
	f.StringVar(&email, "email", "", "e-mail address")
	f.BoolVar(&disable, "disable", false, "end the user's sessions, and allow no sign-in")
	f.BoolVar(&enable, "enable", false, "allow the user to sign in again")
	cmd.MarkFlagsMutuallyExclusive("disable", "enable")
	cmd.MarkFlagsOneRequired("role", "email", "disable", "enable")
	cmd.RunE = c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
		return each(args, func(name string) error {
			u, err := a.User(ctx, name)
			if err != nil {
				return err
			}
			if f.Changed("role") {
				u.Roles = roles
			}
			if f.Changed("email") {
				u.Email = email
			}
			u.Disabled = (u.Disabled || disable) && !enable
			if u, err = a.SetUser(ctx, u); err != nil {
				return err
			}
			state := ""
			if u.Disabled {
				state = ", disabled"
			}
			c.say("user %s: %s%s", u.ID, strings.Join(u.Roles, ", "), state)
			return nil
		})
	})
	return cmd
}

func (c *cli) passwdCmd() *cobra.Command {
	var stdin bool
	cmd := &cobra.Command{
		Use: "passwd", Short: "Change your own password", Args: cobra.NoArgs,
		Long: `Change your own password. All your sessions and personal tokens end; this context is
signed in again. If you have lost the password, an administrator of your tenant prints a
new sign-in command with treeline user invite.`,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, _ []string) error {
			w, err := c.where()
			if err != nil {
				return err
			}
			if w.Name == "" || w.Token != "" {
				return usage("changing a password needs the session of a context, not a token: treeline login")
			}
			old, err := c.password(w.User, false, stdin)
			if err != nil {
				return err
			}
			fresh, err := c.password(w.User, true, stdin)
			if err != nil {
				return err
			}
			if err := a.ChangePassword(ctx, old, fresh); err != nil {
				return fmt.Errorf("change the password of %s: %w", w.User, err)
			}
			s, err := a.Login(ctx, api.Login{User: w.User, Password: fresh})
			if err != nil {
				return fmt.Errorf("the password is changed, but signing in again failed: %w", err)
			}
			err = c.file().Update(func(all *contexts.All) error {
				at, err := all.Get(w.Name)
				if err == nil {
					at.SetSession(s)
					all.Contexts[w.Name] = at
				}
				return err
			})
			if err != nil {
				return err
			}
			c.say("password of %s changed; all other sessions and personal tokens have ended", w.User)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&stdin, "password-stdin", false, "read the present password and then the new one from stdin, one a line")
	return cmd
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
