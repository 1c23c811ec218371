package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/contexts"
)

// ownCommands are the commands that a cluster serves itself, so that its operator can work while the root
// is away.
var ownCommands = []string{
	"get nodes", "get instances", "get replicas", "ps", "ui", "top", "describe node", "cordon", "uncordon", "drain", "move instance", "cap node", "delete node",
	"logs", "exec", "attach", "port-forward", "cp", "events", "net", "snapshot save", "snapshot schedule", "snapshot accept", "rotate cluster-ca", "token create", "token list", "token revoke", "logout",
}

func served(cmd *cobra.Command) bool {
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	return slices.ContainsFunc(ownCommands, func(own string) bool { return path == own || strings.HasPrefix(path, own+" ") })
}

// own returns the cluster whose own API the command uses; empty: it uses the root's.
func (c *cli) own() api.ClusterID {
	w, err := c.where()
	if err != nil {
		return ""
	}
	return w.Cluster
}

// notOwn returns an error if the command uses the own API of another cluster.
func (c *cli) notOwn(cluster api.ClusterID) error {
	if own := c.own(); own != "" && cluster != "" && cluster != own {
		return fmt.Errorf("cluster %s: this context is of cluster %s itself; choose another with --context: %w", cluster, own, api.ErrNotFound)
	}
	return nil
}

// loginCluster saves a context of a cluster's own API with its operator's token.
func (c *cli) loginCluster(ctx context.Context, all contexts.All, args []string, name, cluster, pin string) error {
	if len(args) == 0 || !api.ValidMachineName(cluster) {
		return usage("give the address and the name of the cluster: treeline login https://HOST:PORT --cluster NAME --token-file FILE")
	}
	if c.tokenFile == "" {
		return usage("give the operator's token, which is in operator-token in the cluster's data directory, with --token-file")
	}
	if pin != "" {
		return usage("--pin is for the root; a cluster is known by the root's CA: give it with --ca, or sign in at the root first")
	}
	token, err := c.secret("--token-file", c.tokenFile, "operator's token of "+cluster+": ")
	if err != nil {
		return err
	}
	at := contexts.Context{URL: contexts.URL(args[0]), Cluster: api.ClusterID(cluster), Access: token, User: "operator"}
	if at.CA, err = c.pinned(ctx, at.URL, ""); err != nil {
		return err
	}
	if current, err := all.Get(cmp.Or(c.flags.Context, all.Current)); err == nil {
		at.CA = cmp.Or(at.CA, current.CA)
	}
	if at.CA == "" {
		return usage("give the root's CA certificate with --ca, or sign in at the root first")
	}
	a, err := client.New(client.Options{URL: at.URL, CA: []byte(at.CA), Expect: client.OfCluster(at.Cluster), Tokens: client.Static(token)})
	if err != nil {
		return err
	}
	defer a.Close()
	status, err := a.Status(ctx)
	if err != nil {
		return fmt.Errorf("sign in to cluster %s: %w", cluster, err)
	}
	name = cmp.Or(name, cluster)
	err = c.file().Update(func(all *contexts.All) error {
		if old, ok := all.Contexts[name]; ok && old.Cluster != at.Cluster {
			return usage("context %s is of %s; give another name with --name", name, old.URL)
		}
		all.Contexts[name], all.Current = at, name
		return nil
	})
	if err != nil {
		return err
	}
	root := "its root is not connected"
	if status.Root {
		root = "its root is connected"
	}
	c.say("signed in as operator of cluster %s at %s; context %s; %d nodes, %d instances, %s", cluster, at.URL, name, status.Nodes, status.Instances, root)
	return nil
}
