package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

var tokenTable = output.Table[api.JoinToken]{
	Kind: "join tokens",
	Name: func(t api.JoinToken) string { return t.ID },
	Columns: []output.Column[api.JoinToken]{
		{Header: "ID", Cell: func(_ output.Printer, t api.JoinToken) string { return t.ID }},
		{Header: "FOR", Cell: func(_ output.Printer, t api.JoinToken) string { return t.Kind }},
		{Header: "CLUSTER", Cell: func(_ output.Printer, t api.JoinToken) string { return string(t.Cluster) }},
		{Header: "TENANT", Cell: func(_ output.Printer, t api.JoinToken) string { return string(t.Tenant) }},
		{Header: "USES LEFT", Cell: func(_ output.Printer, t api.JoinToken) string { return strconv.Itoa(t.Uses) }},
		{Header: "EXPIRES", Cell: func(_ output.Printer, t api.JoinToken) string { return t.Expires.Local().Format(time.DateTime) }},
	},
}

func (c *cli) tokenCmd() *cobra.Command {
	group := &cobra.Command{Use: "token", Aliases: []string{"tokens"}, Short: "Create, list and revoke personal tokens and join tokens"}
	var node, bare bool
	var cluster string
	var ttl time.Duration
	var uses int
	var open bool
	var name string
	var roles []string
	var create *cobra.Command
	create = &cobra.Command{
		Use: "create --cluster NAME | --node --cluster NAME | --name NAME", Short: "Create a join token or a personal token", Args: cobra.NoArgs,
		Long: `With --cluster, create a join token and print the command to run on the machine that
joins: as the cluster of that name, or with --node as a node of that cluster.

Without --cluster, create a personal token, for scripts: it has your roles, or with --role
some of them, and ends after --ttl, at most 366 days. It cannot create tokens, change a
password or change your user. Pass it to commands with --token-file or TREELINE_TOKEN.

A token is shown once; treat it as a password.`,
		Example: `  treeline token create --node --cluster munich
  treeline token create --name ci --role Application_Provider --ttl 720h --token-only > token`,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			f := cmd.Flags()
			personal, join := []string{"role", "name"}, []string{"cluster", "node", "uses", "open"}
			if f.Changed("cluster") {
				join = personal
			}
			for _, flag := range join {
				if f.Changed(flag) {
					return fmt.Errorf("--%s: give --cluster for a join token, or --name and --role for a personal token, not both", flag)
				}
			}
			if !f.Changed("cluster") && !f.Changed("name") {
				return errors.New("give --cluster for a join token, or --name for a personal token")
			}
			return nil
		},
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			if cluster == "" && !create.Flags().Changed("cluster") {
				return c.createPersonal(ctx, p, a, name, roles, ttl, bare)
			}
			r := api.TokenRequest{Kind: "cluster", Cluster: api.ClusterID(cluster), TTL: int(ttl / time.Second), Uses: uses}
			if node {
				r.Kind = "node"
			} else {
				r.Tenant = c.tenant()
			}
			if create.Flags().Changed("open") {
				r.Open = &open
			}
			switch {
			case node && r.Open != nil:
				return usage("--open applies to clusters, not to nodes: omit --node or --open")
			case !api.ValidMachineName(cluster):
				return usage("--cluster %q: want a cluster name of lower-case letters, digits and hyphens", cluster)
			case ttl < time.Second:
				return usage("--ttl %s: want 1s or more", ttl)
			case uses < 1:
				return usage("--uses %d: want 1 or more", uses)
			}
			t, err := a.CreateJoinToken(ctx, r)
			if err != nil {
				return err
			}
			if !p.ForPeople() {
				return output.One(p, tokenTable, t)
			}
			if bare {
				p.Printf("%s", t.Token)
				return nil
			}
			line, err := t.JoinCommand() // not t.Command: its parts are checked
			if err != nil {
				return err
			}
			c.say("run this as root on the machine that joins (valid for %s, until %s):", output.Plural(t.Uses, "use"), t.Expires.Local().Format(time.DateTime))
			p.Printf("%s", line)
			return nil
		}),
	}
	f := create.Flags()
	f.BoolVar(&node, "node", false, "let a node join the cluster, instead of the cluster itself")
	f.BoolVar(&bare, "token-only", false, "print only the token, for a file")
	f.StringVar(&cluster, "cluster", "", "the cluster's name")
	f.BoolVar(&open, "open", false, "whether the cluster may run the services of all tenants (default: true if the installation owns it, see --tenant)")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long the token is valid: 1s or more, of a personal token 1m to 8784h")
	f.StringVar(&name, "name", "", "create a personal token, which lists show with this name")
	roleFlag(create, &roles, nil, "role of a personal token (default: all of yours)")
	f.IntVar(&uses, "uses", 1, "how many machines may join with the token, 1 or more")
	c.outputFlags(create)

	var listed string
	var personal bool
	lister := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the join tokens for clusters, with --cluster those for its nodes, or your personal tokens", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			if personal {
				all, err := a.Tokens(ctx)
				if err != nil {
					return err
				}
				return list(c, p, personalTable, all, 0)
			}
			all, err := a.JoinTokens(ctx, api.ClusterID(listed))
			if err != nil {
				return err
			}
			return list(c, p, tokenTable, all, 0)
		}),
	}
	c.outputFlags(lister)
	c.sortFlag(lister)
	c.tokensOfFlag(lister, &listed)
	lister.Flags().BoolVar(&personal, "personal", false, "list your personal tokens")
	lister.MarkFlagsMutuallyExclusive("personal", "cluster")

	var revoked string
	var own bool
	revoke := &cobra.Command{
		Use: "revoke ID…", Short: "Revoke join tokens, of which joined machines stay joined, or your personal tokens", Args: cobra.MinimumNArgs(1),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(id string) error {
				if own {
					if err := a.RevokeToken(ctx, id); err != nil {
						return err
					}
					c.say("personal token %s revoked", id)
					return nil
				}
				if err := a.RevokeJoinToken(ctx, api.ClusterID(revoked), id); err != nil {
					return err
				}
				c.say("join token %s revoked", id)
				return nil
			})
		}),
	}
	c.tokensOfFlag(revoke, &revoked)
	revoke.Flags().BoolVar(&own, "personal", false, "the ids are of your personal tokens")
	revoke.MarkFlagsMutuallyExclusive("personal", "cluster")
	group.AddCommand(create, lister, revoke)
	return group
}

func (c *cli) createPersonal(ctx context.Context, p output.Printer, a *client.Client, name string, roles []string, ttl time.Duration, bare bool) error {
	if ttl < time.Minute || ttl > 366*24*time.Hour || name == "" || len(name) > 100 {
		return usage("--name %q, --ttl %s: want a name of 1 to 100 bytes, and 1m to 8784h", name, ttl)
	}
	t, err := a.CreateToken(ctx, name, ttl, roles...)
	switch {
	case err != nil:
		return err
	case !p.ForPeople():
		return output.One(p, personalTable, t)
	case !bare:
		c.say("personal token %s of %s (%s), valid until %s:", t.ID, t.User, strings.Join(t.Roles, ", "), t.Expires.Local().Format(time.DateTime))
	}
	p.Printf("%s", t.Token)
	return nil
}

var personalTable = output.Table[client.Token]{
	Kind: "personal tokens",
	Name: func(t client.Token) string { return t.ID },
	Columns: []output.Column[client.Token]{
		{Header: "ID", Cell: func(_ output.Printer, t client.Token) string { return t.ID }},
		{Header: "NAME", Cell: func(_ output.Printer, t client.Token) string { return t.Name }},
		{Header: "ROLES", Cell: func(_ output.Printer, t client.Token) string { return strings.Join(t.Roles, ",") }},
		{Header: "CREATED", Cell: func(_ output.Printer, t client.Token) string { return t.Created.Local().Format(time.DateTime) }},
		{Header: "EXPIRES", Cell: func(_ output.Printer, t client.Token) string { return t.Expires.Local().Format(time.DateTime) }},
	},
}

func (c *cli) tokensOfFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "cluster", "", "the cluster whose nodes join by the tokens (default: the tokens are for clusters)")
	c.completeCluster(cmd)
}
