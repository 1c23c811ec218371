package command

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

const keysPath = "/v1/system/keys"

func (c *cli) rotateCmd() *cobra.Command {
	var revoke, yes, list bool
	cmd := &cobra.Command{
		Use: "signing-key", Short: "Replace the key with which the root signs the tokens of users", Args: cobra.NoArgs,
		Long: `Replace the key with which the root signs the tokens of users. Nobody has to sign in again: the
new key signs after 90 minutes, when all clusters have fetched it, and the earlier key is
valid until the last token that it may have signed has ended, at most 366 days later.

After the theft of a key, --revoke-tokens drops the earlier keys at once. All sessions and
personal tokens end. Clusters refuse their tokens when they have fetched the keys: within a
minute of the first new token that they get, otherwise within an hour.`,
		Example: `  treeline rotate signing-key
  treeline rotate signing-key --list
  treeline rotate signing-key --revoke-tokens`,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			if revoke {
				if list {
					return usage("give either --list or --revoke-tokens")
				}
				if err := c.confirm(yes, "This ends all sessions and personal tokens, also yours."); err != nil {
					return err
				}
			}
			if !list {
				if _, err := a.Do(ctx, client.Request{Method: http.MethodPost, Path: keysPath, Body: api.RotateKey{RevokeTokens: revoke}}, nil); err != nil {
					return err
				}
			}
			if revoke {
				c.say("earlier keys dropped; sign in again with treeline login")
				return nil
			}
			var page api.Page[api.SigningKey]
			if _, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: keysPath}, &page); err != nil {
				return err
			}
			for _, k := range page.Items {
				state := "signs"
				switch {
				case k.Signs.After(time.Now()):
					state = "signs from " + k.Signs.Local().Format(time.DateTime)
				case k.Replaced.After(time.Now()):
					state = "signs until " + k.Replaced.Local().Format(time.DateTime)
				case !k.Ends.IsZero():
					state = "verifies until " + k.Ends.Local().Format(time.DateTime)
				}
				p.Printf("%s  made %s  %s\n", output.Clean(k.ID), k.Made.Local().Format(time.DateTime), state)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&revoke, "revoke-tokens", false, "drop the earlier keys at once, after a theft")
	cmd.Flags().BoolVar(&list, "list", false, "show the keys and change nothing")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	group := &cobra.Command{Use: "rotate", Short: "Replace keys of the installation"}
	group.AddCommand(cmd, c.rotateClusterCA(), c.rotateRootCA())
	return group
}

const authorityPath = "/v1/system/authority"

// maxBehind is the number of nodes that are shown.
const maxBehind = 20

// rotation makes cmd replace and retire the key of the certificate authority of the server, with the flags of both. check refuses the
// server, body makes the request, and show prints the authority that a client reads. leave describes the flag --leave-behind.
func (c *cli) rotation(cmd *cobra.Command, leave string, check func() error, body func(retire bool, leave []string) any, show func(context.Context, output.Printer, *client.Client) error) {
	var list, retire, yes bool
	var behind []string
	cmd.Flags().BoolVar(&list, "list", false, "show the rotation and change nothing")
	cmd.Flags().BoolVar(&retire, "retire", false, "have certificates of the earlier key refused")
	cmd.Flags().StringSliceVar(&behind, "leave-behind", nil, "with --retire: "+leave)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	cmd.RunE = c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
		switch err := check(); {
		case err != nil:
			return err
		case list && (retire || len(behind) > 0):
			return usage("give either --list or --retire")
		case len(behind) > 0 && !retire:
			return usage("--leave-behind is for --retire")
		}
		if retire {
			if err := c.confirm(yes, "Certificates of the earlier key are refused from now on."); err != nil {
				return err
			}
		}
		if !list {
			if _, err := a.Do(ctx, client.Request{Method: http.MethodPost, Path: authorityPath, Body: body(retire, behind)}, nil); err != nil {
				return err
			}
		}
		return show(ctx, p, a)
	})
}

// show reads the authority of the server and prints it.
func show[S any](write func(output.Printer, S)) func(context.Context, output.Printer, *client.Client) error {
	return func(ctx context.Context, p output.Printer, a *client.Client) error {
		var s S
		if _, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: authorityPath}, &s); err != nil {
			return err
		}
		write(p, s)
		return nil
	}
}

func (c *cli) rotateClusterCA() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cluster-ca", Short: "Replace the key of a cluster's certificate authority", Args: cobra.NoArgs,
		Long: `Replace the key with which a cluster signs the certificates of its nodes. It is for the
operator of the cluster, with a context of the cluster's own API, and needs the root.

The root certifies a new key, which signs from then on. The cluster asks all connected nodes
to renew their certificates, a few at a time; nothing is interrupted. With an external broker,
the new key signs when the broker trusts it. When --list shows no nodes any more, --retire
has the certificates of the earlier key refused everywhere.

A node that was not connected keeps its old certificate. --leave-behind retires the key without
it; to be used again, it must be deleted and join with a new token.`,
		Example: `  treeline rotate cluster-ca
  treeline rotate cluster-ca --list
  treeline rotate cluster-ca --retire
  treeline rotate cluster-ca --retire --leave-behind n7,n8`,
	}
	c.rotation(cmd, "nodes that lose their access if they have not renewed", func() error {
		if c.own() == "" {
			return usage("the cluster itself rotates its key: sign in to it with treeline login https://HOST:PORT --cluster NAME --token-file FILE")
		}
		return nil
	}, func(retire bool, leave []string) any {
		body := api.RotateAuthority{Retire: retire}
		for _, n := range leave {
			body.LeaveBehind = append(body.LeaveBehind, api.NodeID(n))
		}
		return body
	}, show(showAuthority))
	return cmd
}

func showAuthority(p output.Printer, s api.Authority) {
	state := map[string]string{
		"":                     "was never replaced",
		api.AuthorityRequested: "the root has not certified the new key yet",
		api.AuthorityAnnounced: "the new key does not sign yet",
		api.AuthoritySigning:   "the new key signs, the earlier one is valid",
		api.AuthorityRetired:   "earlier keys are retired",
	}[s.State]
	p.Printf("generation %d: %s\n", s.Generation, cmp.Or(state, output.Clean(s.State)))
	if s.Waits != "" {
		p.Printf("waits: %s\n", output.Clean(s.Waits))
	}
	if s.State != api.AuthoritySigning && s.State != api.AuthorityRetired {
		return
	}
	p.Printf("%d nodes have not renewed their certificates since\n", len(s.Behind))
	for _, b := range s.Behind[:min(len(s.Behind), maxBehind)] {
		p.Printf("  %s  generation %d  %s\n", output.Clean(string(b.Node)), b.Generation, output.Clean(b.Error))
	}
	if more := len(s.Behind) - maxBehind; more > 0 {
		p.Printf("  and %d more\n", more)
	}
}

func (c *cli) rotateRootCA() *cobra.Command {
	cmd := &cobra.Command{
		Use: "root-ca", Short: "Replace the key of the root's certificate authority", Args: cobra.NoArgs,
		Long: `Replace the key with which the root signs the certificates of clusters. It is for an
administrator of the root, and a personal token cannot do it.

The new key signs at once. The earlier one signs a certificate for it, by which clusters, nodes
and contexts of treeline verify the new one and learn it; nothing is interrupted. Clusters renew
their certificates at once if they are connected, and ask their nodes to. When --list shows no
clusters any more, --retire has the certificates of the earlier key refused everywhere.

Clusters and nodes that were not connected keep their old certificates. --leave-behind retires
the key without them; to be used again, they must join again with an empty data directory. A
context of treeline that was not used in between needs the pin that --list shows.`,
		Example: `  treeline rotate root-ca
  treeline rotate root-ca --list
  treeline rotate root-ca --retire
  treeline rotate root-ca --retire --leave-behind munich,rome`,
	}
	c.rotation(cmd, "clusters that lose their access, or whose nodes do, if they have not renewed", func() error { return nil }, func(retire bool, leave []string) any {
		body := api.RotateRootAuthority{Retire: retire}
		for _, id := range leave {
			body.LeaveBehind = append(body.LeaveBehind, api.ClusterID(id))
		}
		return body
	}, show(showRootAuthority))
	return cmd
}

func showRootAuthority(p output.Printer, s api.RootAuthority) {
	state := map[string]string{
		"":                   "was never replaced",
		api.AuthoritySigning: "the new key signs, the earlier one is valid",
		api.AuthorityRetired: "the earlier key is retired",
	}[s.State]
	p.Printf("generation %d: %s\npin %s\n", s.Generation, cmp.Or(state, output.Clean(s.State)), output.Clean(s.Pin))
	if s.State == "" {
		return
	}
	p.Printf("%d clusters, or some of their nodes, have not renewed their certificates since\n", len(s.Behind))
	for _, b := range s.Behind[:min(len(s.Behind), maxBehind)] {
		p.Printf("  %s  generation %d  %d nodes", output.Clean(string(b.Cluster)), b.Generation, b.Nodes)
		for _, n := range b.Names {
			p.Printf(" %s", output.Clean(string(n)))
		}
		p.Printf("  %s\n", output.Clean(b.Error))
	}
	if more := len(s.Behind) - maxBehind; more > 0 {
		p.Printf("  and %d more\n", more)
	}
}
