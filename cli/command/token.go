package command

import (
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

// JoinLine returns the command to paste on the machine that joins. It passes the token on
// stdin, because other users of the machine can read arguments.
func JoinLine(t api.JoinToken) string {
	if t.Kind == "node" {
		return "echo " + t.Token + " | node-engine --token-file -"
	}
	name := string(t.Cluster)
	if name == "" {
		name = "NAME"
	}
	return fmt.Sprintf("echo %s | cluster-orchestrator --name %s --token-file -", t.Token, name)
}

func (c *cli) tokenCmd() *cobra.Command {
	group := &cobra.Command{Use: "token", Aliases: []string{"tokens"}, Short: "Create, list and revoke join tokens"}
	var node, bare bool
	var cluster string
	var ttl time.Duration
	var uses int
	var open bool
	create := &cobra.Command{
		Use: "create --cluster NAME | --node --cluster NAME", Short: "Print the line to paste on the machine that joins", Args: cobra.NoArgs,
		Long: `Print the line to paste on the machine that joins: a cluster of that name, or with
--node a node of that cluster. It is shown once; treat it as a password.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			r := api.TokenRequest{Kind: "cluster", Cluster: api.ClusterID(cluster), TTL: int(ttl / time.Second), Uses: uses}
			switch {
			case node:
				r.Kind = "node"
			default:
				r.Tenant = c.tenant()
			}
			if cmd.Flags().Changed("open") {
				if node {
					return usage("--open is for clusters, not for nodes")
				}
				r.Open = &open
			}
			if cluster == "" || !api.ValidMachineName(cluster) {
				return usage("--cluster %q: it takes the name of the cluster, lower-case letters, digits and hyphens", cluster)
			}
			if ttl < 0 || uses < 0 {
				return usage("--ttl and --uses must be above 0")
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			t, err := a.CreateToken(cmd.Context(), r)
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
			c.say("%d uses, until %s; paste on the machine that joins:", t.Uses, t.Expires.Local().Format(time.DateTime))
			p.Printf("%s", JoinLine(t))
			return nil
		},
	}
	f := create.Flags()
	f.BoolVar(&node, "node", false, "for a node of the cluster, instead of for the cluster")
	f.BoolVar(&bare, "token-only", false, "print the token alone, for a file")
	f.StringVar(&cluster, "cluster", "", "the cluster's name")
	f.BoolVar(&open, "open", false, "whether the cluster gets the services of all tenants (default: if the installation owns it, see --tenant)")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long it can be used")
	f.IntVar(&uses, "uses", 1, "how often it can be used")
	_ = create.MarkFlagRequired("cluster")
	c.outputFlags(create)

	var listed string
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the join tokens for clusters, or with --cluster those for its nodes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			all, err := tokens(cmd.Context(), a, api.ClusterID(listed))
			if err != nil {
				return err
			}
			if len(all) == 0 && p.ForPeople() {
				c.say("no join tokens")
			}
			return output.List(p, tokenTable, api.Page[api.JoinToken]{Items: all})
		},
	}
	c.outputFlags(list)
	c.tokensOfFlag(list, &listed)

	var revoked string
	revoke := &cobra.Command{
		Use: "revoke ID…", Short: "Revoke join tokens; machines that have joined stay", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := c.api()
			if err != nil {
				return err
			}
			return each(args, func(id string) error {
				if err := revokeToken(cmd.Context(), a, api.ClusterID(revoked), id); err != nil {
					return err
				}
				c.say("join token %s is revoked", id)
				return nil
			})
		},
	}
	c.tokensOfFlag(revoke, &revoked)
	group.AddCommand(create, list, revoke)
	return group
}

func (c *cli) tokensOfFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "cluster", "", "the tokens that let nodes join this cluster")
	c.completeCluster(cmd)
}

// tokens are those for clusters, or for nodes of the cluster.
func tokens(ctx context.Context, a *client.Client, cluster api.ClusterID) ([]api.JoinToken, error) {
	if cluster == "" {
		return a.Tokens(ctx)
	}
	return a.NodeTokens(ctx, cluster)
}

func revokeToken(ctx context.Context, a *client.Client, cluster api.ClusterID, id string) error {
	if cluster == "" {
		return a.RevokeToken(ctx, id)
	}
	return a.RevokeNodeToken(ctx, cluster, id)
}
