package command

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
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

// JoinLine returns the command that joins a machine. It passes the token on stdin, because
// other users of the machine can read arguments.
func JoinLine(t api.JoinToken) string {
	if t.Kind == "node" {
		return "echo " + t.Token + " | node-engine --token-file -"
	}
	name := cmp.Or(string(t.Cluster), "NAME")
	return fmt.Sprintf("echo %s | cluster-orchestrator --name %s --token-file -", t.Token, name)
}

func (c *cli) tokenCmd() *cobra.Command {
	group := &cobra.Command{Use: "token", Aliases: []string{"tokens"}, Short: "Create, list and revoke join tokens"}
	var node, bare bool
	var cluster string
	var ttl time.Duration
	var uses int
	var open bool
	var create *cobra.Command
	create = &cobra.Command{
		Use: "create --cluster NAME | --node --cluster NAME", Short: "Create a join token, and print the command that joins a machine", Args: cobra.NoArgs,
		Long: `Create a join token, and print the command to run on the machine that joins: as the
cluster of that name, or with --node as a node of that cluster. The token is shown
once; treat it as a password.`,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
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
			c.say("run this on the machine that joins (valid for %s, until %s):", output.Plural(t.Uses, "use"), t.Expires.Local().Format(time.DateTime))
			p.Printf("%s", JoinLine(t))
			return nil
		}),
	}
	f := create.Flags()
	f.BoolVar(&node, "node", false, "let a node join the cluster, instead of the cluster itself")
	f.BoolVar(&bare, "token-only", false, "print only the token, for a file")
	f.StringVar(&cluster, "cluster", "", "the cluster's name")
	f.BoolVar(&open, "open", false, "whether the cluster may run the services of all tenants (default: true if the installation owns it, see --tenant)")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long the token is valid, 1s or more")
	f.IntVar(&uses, "uses", 1, "how many machines may join with the token, 1 or more")
	_ = create.MarkFlagRequired("cluster")
	c.outputFlags(create)

	var listed string
	lister := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the join tokens for clusters, or with --cluster those for its nodes", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			all, err := a.JoinTokens(ctx, api.ClusterID(listed))
			if err != nil {
				return err
			}
			return list(c, p, tokenTable, all, 0)
		}),
	}
	c.outputFlags(lister)
	c.tokensOfFlag(lister, &listed)

	var revoked string
	revoke := &cobra.Command{
		Use: "revoke ID…", Short: "Revoke join tokens; machines that have joined stay joined", Args: cobra.MinimumNArgs(1),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(id string) error {
				if err := a.RevokeJoinToken(ctx, api.ClusterID(revoked), id); err != nil {
					return err
				}
				c.say("join token %s revoked", id)
				return nil
			})
		}),
	}
	c.tokensOfFlag(revoke, &revoked)
	group.AddCommand(create, lister, revoke)
	return group
}

func (c *cli) tokensOfFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "cluster", "", "the cluster whose nodes join by the tokens (default: the tokens are for clusters)")
	c.completeCluster(cmd)
}
