package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

// grantCmd returns a command whose subcommand "cluster" changes a cluster's grant. prepare adds the
// subcommand's flags and returns the function that changes the grant.
func (c *cli) grantCmd(verb, short, long string, prepare func(*cobra.Command) func(*api.Grant) error) *cobra.Command {
	group := &cobra.Command{Use: verb, Short: short}
	cmd := &cobra.Command{
		Use: "cluster NAME", Aliases: []string{"clusters"}, Short: short, Long: long, Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.complete("clusters"),
	}
	group.AddCommand(cmd)
	change := prepare(cmd)
	cmd.RunE = c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
		id := api.ClusterID(args[0])
		cl, err := a.Cluster(ctx, id)
		if err != nil {
			return err
		}
		g := cl.Grant
		if err := change(&g); err != nil {
			return err
		}
		if cl, err = a.SetGrant(ctx, id, g, cl.Revision); err != nil {
			return err
		}
		text := fmt.Sprintf("cluster %s is %s", id, audience(cl))
		if k := caps(cl.Grant.Caps); k != "" {
			text += "; its capacity is limited to " + k
		}
		c.say("%s", text)
		return nil
	})
	return group
}

func (c *cli) openCmd() *cobra.Command {
	return c.grantCmd("open", "Let a cluster run the services of all or of named tenants",
		`Let a cluster run the services of all tenants, or with --to those of the named
tenants and of the tenants below them, in addition to its owner's. Only admins of
the installation can open a cluster to all tenants.`,
		func(cmd *cobra.Command) func(*api.Grant) error {
			to := cmd.Flags().StringSlice("to", nil, "open only to this tenant; may be repeated")
			cmd.PreRunE = func(*cobra.Command, []string) error {
				for _, t := range *to {
					if !api.ValidTenant(api.Tenant(t)) {
						return fmt.Errorf("--to %q: want a tenant such as acme or acme/lab", t)
					}
				}
				return nil
			}
			return func(g *api.Grant) error {
				if len(*to) == 0 {
					g.Open = true
					return nil
				}
				for _, t := range *to {
					if !slices.Contains(g.Tenants, api.Tenant(t)) {
						g.Tenants = append(slices.Clone(g.Tenants), api.Tenant(t))
					}
				}
				return nil
			}
		})
}

func (c *cli) closeCmd() *cobra.Command {
	return c.grantCmd("close", "Stop running the services of other tenants in a cluster",
		`Let a cluster run only its owner's services, or with --to withdraw the permission of
the named tenants. Instances that the cluster may no longer run are stopped at once
and placed in other clusters as far as there is capacity.`,
		func(cmd *cobra.Command) func(*api.Grant) error {
			to := cmd.Flags().StringSlice("to", nil, "withdraw only from this tenant, which the cluster was opened to by name; may be repeated")
			return func(g *api.Grant) error {
				if len(*to) == 0 {
					g.Open, g.Tenants = false, nil
					return nil
				}
				for _, t := range *to {
					if !slices.Contains(g.Tenants, api.Tenant(t)) {
						return usage("--to %s: the cluster was not opened to this tenant by name", t)
					}
				}
				g.Tenants = slices.DeleteFunc(slices.Clone(g.Tenants), func(t api.Tenant) bool { return slices.Contains(*to, string(t)) })
				return nil
			}
		})
}

func (c *cli) capCmd() *cobra.Command {
	group := c.grantCmd("cap", "Limit the capacity that a cluster or node may report",
		`Limit the capacity that a cluster may report: what it reports beyond a limit is
ignored. 0 removes a limit, except that of devices: --device gpu=0 permits none, and
--device gpu=-1 removes the limit. Limits without a flag stay as they are.`,
		func(cmd *cobra.Command) func(*api.Grant) error {
			set := capFlags(cmd)
			nodes := cmd.Flags().Int("nodes", 0, "maximum number of nodes")
			return func(g *api.Grant) error {
				if cmd.Flags().Changed("nodes") {
					g.Caps.Nodes = *nodes
				}
				set(&g.Caps)
				return nil
			}
		})
	var cluster string
	node := &cobra.Command{
		Use: "node [CLUSTER/]NAME", Aliases: []string{"nodes"}, Short: "Limit the capacity that a node may report", Args: cobra.ExactArgs(1),
		Long: `Limit the capacity that a node may report: what it reports beyond a limit is
ignored. 0 removes a limit, except that of devices: --device gpu=0 permits none, and
--device gpu=-1 removes the limit. Limits without a flag stay as they are. The cluster's
configuration (node_caps) may set limits too; the lower limit of the two applies.
Instances that are on the node stay there.`,
	}
	set := capFlags(node)
	c.clusterFlag(node, &cluster)
	node.RunE = c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
		n, err := c.node(ctx, a, cluster, args[0])
		if err != nil {
			return err
		}
		k := n.Caps
		set(&k)
		if _, err := a.NodesOf(n.Cluster).SetCaps(ctx, n.ID, k); err != nil {
			return fmt.Errorf("cap node %s of cluster %s: %w", n.ID, n.Cluster, err)
		}
		text := cmp.Or(caps(k), "node_caps of its cluster only")
		c.say("node %s of cluster %s is limited to %s", n.ID, n.Cluster, text)
		return nil
	})
	group.AddCommand(node)
	return group
}

// capFlags adds the flags of the caps that clusters and nodes have in common, and their check. It
// returns the function that sets the caps whose flags were given.
func capFlags(cmd *cobra.Command) func(*api.Caps) {
	f := cmd.Flags()
	vcpus := f.Float64("vcpus", 0, "maximum vCPUs")
	memory := f.Int64("memory", 0, "maximum memory, MiB")
	storage := f.Int64("storage", 0, "maximum disk space, MiB")
	devices := f.StringToInt("device", nil, "maximum devices of a kind, such as gpu=2; 0: none, -1: no limit; may be repeated")
	privileged := f.Bool("privileged", true, "whether it may run privileged workloads")
	setters := map[string]func(*api.Caps){
		"vcpus":      func(k *api.Caps) { k.MilliCPU = int64(math.Round(*vcpus * 1000)) },
		"memory":     func(k *api.Caps) { k.MemoryMB = *memory },
		"storage":    func(k *api.Caps) { k.StorageMB = *storage },
		"device":     func(k *api.Caps) { k.Devices = deviceCaps(k.Devices, *devices) },
		"privileged": func(k *api.Caps) { k.NoPrivileged = !*privileged },
	}
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *vcpus < 0 || *vcpus > 1e6 || math.IsNaN(*vcpus) || *vcpus > 0 && *vcpus < 0.001 || *memory < 0 || *storage < 0 {
			return fmt.Errorf("--vcpus %g, --memory %d, --storage %d: want 0 (no limit) or more, and at least 0.001 and at most 1000000 vCPUs", *vcpus, *memory, *storage)
		}
		given := 0
		f.Visit(func(g *pflag.Flag) {
			if g.Name == "nodes" || setters[g.Name] != nil {
				given++
			}
		})
		if nodes, err := f.GetInt("nodes"); err == nil && nodes < 0 {
			return fmt.Errorf("--nodes %d: want 0 (no limit) or more", nodes)
		} else if given == 0 {
			return errors.New("give at least one limit, such as --vcpus 4")
		}
		return nil
	}
	return func(k *api.Caps) {
		for flag, set := range setters {
			if f.Changed(flag) {
				set(k)
			}
		}
	}
}

// noDeviceCap removes the limit of a kind of devices: 0 permits none.
const noDeviceCap = -1

// deviceCaps returns the limits of devices with the changed ones; those of -1 are removed.
func deviceCaps(had, changed map[string]int) map[string]int {
	all := map[string]int{}
	maps.Copy(all, had)
	maps.Copy(all, changed)
	maps.DeleteFunc(all, func(_ string, n int) bool { return n == noDeviceCap })
	return all
}

// audience describes the tenants whose services a cluster may run.
func audience(cl api.Cluster) string {
	if cl.Grant.Open {
		return "open to all tenants"
	}
	var to []string
	if cl.Tenant != "" {
		to = append(to, string(cl.Tenant))
	}
	for _, t := range cl.Grant.Tenants {
		to = append(to, string(t))
	}
	if len(to) == 0 {
		return "closed to all tenants"
	}
	return "open to " + strings.Join(to, ", ")
}

// caps describes the caps of a cluster or node; empty: there are none.
func caps(k api.Caps) string {
	var parts []string
	for _, p := range []struct {
		n    int64
		text string
	}{
		{k.MilliCPU, fmt.Sprintf("%.15g vCPU", float64(k.MilliCPU)/1000)},
		{k.MemoryMB, api.MiB(k.MemoryMB)},
		{k.StorageMB, api.MiB(k.StorageMB) + " disk"},
		{int64(k.Nodes), fmt.Sprintf("%d nodes", k.Nodes)},
	} {
		if p.n > 0 {
			parts = append(parts, p.text)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(k.Devices)) {
		parts = append(parts, fmt.Sprintf("%d %s", k.Devices[kind], kind))
	}
	if k.NoPrivileged {
		parts = append(parts, "no privileged workloads")
	}
	return strings.Join(parts, ", ")
}
