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
	group := &cobra.Command{Use: "token", Aliases: []string{"tokens"}, Short: "Create, list and revoke personal tokens, join tokens and named operator tokens of a cluster"}
	var node, bare bool
	var cluster string
	var ttl time.Duration
	var uses int
	var open bool
	var name, operator string
	var roles []string
	var create *cobra.Command
	create = &cobra.Command{
		Use: "create --cluster NAME | --node --cluster NAME | --name NAME | --operator NAME", Short: "Create a join token, a personal token or a named operator token", Args: cobra.NoArgs,
		Long: `With --cluster, create a join token and print the command to run on the machine that
joins: as the cluster of that name, or with --node as a node of that cluster.

Without --cluster, create a personal token, for scripts: it has your roles, or with --role
some of them, and ends after --ttl, at most 366 days. It cannot create tokens, change a
password or change your user. Pass it to commands with --token-file or TREELINE_TOKEN.

With --operator, in the context of a cluster's own API (treeline login --cluster), create a
named token for that API, for an operator who works while the root is away. With the
role Infrastructure_Provider, the default, it permits work on nodes and join tokens for
nodes; with Admin, everything except work on such tokens. It ends after --ttl, at most 366 days.

A token is shown once; treat it as a password.`,
		Example: `  treeline token create --operator night --ttl 720h --token-only > night.token
  treeline token create --node --cluster munich
  treeline token create --name ci --role Application_Provider --ttl 720h --token-only > token`,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			f := cmd.Flags()
			personal, join := []string{"role", "name"}, []string{"cluster", "node", "uses", "open"}
			if f.Changed("operator") {
				for _, flag := range append(join, "name") {
					if f.Changed(flag) {
						return fmt.Errorf("--operator creates a named operator token: omit --%s", flag)
					}
				}
				return nil
			}
			if f.Changed("cluster") {
				join = personal
			}
			for _, flag := range join {
				if f.Changed(flag) {
					return fmt.Errorf("--%s: give --cluster for a join token, or --name and --role for a personal token, not both", flag)
				}
			}
			if !f.Changed("cluster") && !f.Changed("name") {
				return errors.New("give --cluster for a join token, --name for a personal token, or --operator for a token of a cluster's own API")
			}
			return nil
		},
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			if operator != "" || create.Flags().Changed("operator") {
				return c.createOperator(ctx, p, a, operator, roles, ttl, bare)
			}
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
	f.DurationVar(&ttl, "ttl", time.Hour, "how long the token is valid: 1s or more, of a personal or operator token 1m to 8784h")
	f.StringVar(&name, "name", "", "create a personal token, which lists show with this name")
	f.StringVar(&operator, "operator", "", "create a token of this name for the cluster's own API that the context is of")
	roleFlag(create, &roles, nil, "role of a personal token (default: all of yours) or of an operator token (default: Infrastructure_Provider)")
	f.IntVar(&uses, "uses", 1, "how many machines may join with the token, 1 or more")
	c.outputFlags(create)

	var listed string
	var personal, operators bool
	lister := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the join tokens for clusters, with --cluster those for its nodes, your personal tokens, or a cluster's named operator tokens", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			if operators {
				if err := c.needOwn("--operators"); err != nil {
					return err
				}
				all, err := a.Operators(ctx)
				if err != nil {
					return err
				}
				return list(c, p, operatorTable, all, 0)
			}
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
	lister.Flags().BoolVar(&operators, "operators", false, "list the named operator tokens of the cluster that the context is of")
	lister.MarkFlagsMutuallyExclusive("personal", "cluster", "operators")

	var revoked string
	var own, named bool
	revoke := &cobra.Command{
		Use: "revoke ID…", Short: "Revoke join tokens, of which joined machines stay joined, your personal tokens, or named operator tokens", Args: cobra.MinimumNArgs(1),
		Long: `Revoke tokens at once and for good. With --operators, the arguments are names of operator
tokens of the cluster that the context is of; what was open with them ends, and the join
tokens that were created with them are revoked, too. Machines that have joined stay joined:
see treeline get nodes.`,
		ValidArgsFunction: c.completeTokens(&named),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			if named {
				if err := c.needOwn("--operators"); err != nil {
					return err
				}
			}
			return each(args, func(id string) error {
				if named {
					if err := a.RevokeOperator(ctx, id); err != nil {
						return err
					}
					c.say("operator token %s revoked", id)
					return nil
				}
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
	revoke.Flags().BoolVar(&named, "operators", false, "the names are of operator tokens of the cluster that the context is of")
	revoke.MarkFlagsMutuallyExclusive("personal", "cluster", "operators")
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

// needOwn returns an error unless the context is of a cluster's own API.
func (c *cli) needOwn(flag string) error {
	if c.own() == "" {
		return usage("%s is for the own API of a cluster: sign in there with treeline login https://HOST:PORT --cluster NAME --token-file FILE", flag)
	}
	return nil
}

func (c *cli) createOperator(ctx context.Context, p output.Printer, a *client.Client, name string, roles []string, ttl time.Duration, bare bool) error {
	if err := c.needOwn("--operator"); err != nil {
		return err
	}
	if ttl < time.Minute || ttl > 366*24*time.Hour || !api.ValidMachineName(name) {
		return usage("--operator %q, --ttl %s: want a name of lower-case letters, digits and hyphens, and 1m to 8784h", name, ttl)
	}
	t, err := a.CreateOperator(ctx, api.OperatorRequest{Name: name, Roles: roles, TTL: int(ttl / time.Second)})
	switch {
	case err != nil:
		return err
	case !p.ForPeople():
		return output.One(p, operatorTable, t)
	case !bare:
		c.say("operator token %s of cluster %s (%s), valid until %s; to sign in with it: treeline login %s --cluster %s --token-file FILE",
			t.Name, c.own(), strings.Join(t.Roles, ", "), t.Expires.Local().Format(time.DateTime), a.URL(), c.own())
	}
	p.Printf("%s", t.Token)
	return nil
}

var operatorTable = output.Table[api.OperatorToken]{
	Kind: "operator tokens",
	Name: func(t api.OperatorToken) string { return t.Name },
	Columns: []output.Column[api.OperatorToken]{
		{Header: "NAME", Cell: func(_ output.Printer, t api.OperatorToken) string { return t.Name }},
		{Header: "ROLES", Cell: func(_ output.Printer, t api.OperatorToken) string { return strings.Join(t.Roles, ",") }},
		{Header: "BY", Cell: func(_ output.Printer, t api.OperatorToken) string { return t.By }},
		{Header: "CREATED", Cell: func(_ output.Printer, t api.OperatorToken) string { return t.Created.Local().Format(time.DateTime) }},
		{Header: "EXPIRES", Cell: func(_ output.Printer, t api.OperatorToken) string { return t.Expires.Local().Format(time.DateTime) }},
	},
}

// completeTokens completes the names of operator tokens, if the flag --operators is given.
func (c *cli) completeTokens(operators *bool) cobra.CompletionFunc {
	named := c.complete("operators")
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if !*operators {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return named(cmd, args, begun)
	}
}
