package command

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
)

// grantCmd returns a command whose subcommand changes a cluster's grant. prepare adds the
// subcommand's flags and returns the function that changes the present grant.
func (c *cli) grantCmd(verb, short, long string, prepare func(*cobra.Command) func(*api.Grant) error) *cobra.Command {
	group := &cobra.Command{Use: verb, Short: short}
	cmd := &cobra.Command{
		Use: "cluster NAME", Aliases: []string{"clusters"}, Short: short, Long: long, Args: cobra.ExactArgs(1),
		ValidArgsFunction: c.complete("clusters"),
	}
	group.AddCommand(cmd)
	change := prepare(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a, err := c.api()
		if err != nil {
			return err
		}
		id := api.ClusterID(args[0])
		cl, err := a.Cluster(cmd.Context(), id)
		if err != nil {
			return err
		}
		g := cl.Grant
		if err := change(&g); err != nil {
			return err
		}
		if cl, err = a.SetGrant(cmd.Context(), id, g, cl.Revision); err != nil {
			return err
		}
		text := fmt.Sprintf("cluster %s is %s", id, audience(cl))
		if k := caps(cl.Grant.Caps); k != "" {
			text += "; it counts for at most " + k
		}
		c.say("%s", text)
		return nil
	}
	return group
}

func (c *cli) openCmd() *cobra.Command {
	return c.grantCmd("open", "Let a cluster get the services of all tenants, or of those named",
		`Let a cluster get the services of all tenants, or with --to of the named tenants and
those below them, beside its owner's. Only the installation's admins open a cluster
to all.`,
		func(cmd *cobra.Command) func(*api.Grant) error {
			to := cmd.Flags().StringSlice("to", nil, "only to these tenants; may be repeated")
			return func(g *api.Grant) error {
				if len(*to) == 0 {
					g.Open = true
					return nil
				}
				for _, t := range *to {
					if !api.ValidTenant(api.Tenant(t)) {
						return usage("--to %q is not a name of a tenant", t)
					}
					if !slices.Contains(g.Tenants, api.Tenant(t)) {
						g.Tenants = append(slices.Clone(g.Tenants), api.Tenant(t))
					}
				}
				return nil
			}
		})
}

func (c *cli) closeCmd() *cobra.Command {
	return c.grantCmd("close", "Keep the services of others than its owner off a cluster",
		`Keep the services of all tenants but its owner's off a cluster, or with --to of the
named tenants alone. What runs there and is not admitted any more is stopped at once
and placed elsewhere, or waits.`,
		func(cmd *cobra.Command) func(*api.Grant) error {
			to := cmd.Flags().StringSlice("to", nil, "only to these tenants, of those it was opened to by name; may be repeated")
			return func(g *api.Grant) error {
				if len(*to) == 0 {
					g.Open, g.Tenants = false, nil
					return nil
				}
				for _, t := range *to {
					if !slices.Contains(g.Tenants, api.Tenant(t)) {
						return usage("--to %s: the cluster is not open to this tenant by name", t)
					}
				}
				g.Tenants = slices.DeleteFunc(slices.Clone(g.Tenants), func(t api.Tenant) bool { return slices.Contains(*to, string(t)) })
				return nil
			}
		})
}

func (c *cli) capCmd() *cobra.Command {
	group := c.grantCmd("cap", "Limit how much of what a cluster or a node claims counts",
		`Limit how much of what a cluster claims counts, whatever it reports. 0 lifts a limit.
Flags that are not given leave theirs as they are.`,
		func(cmd *cobra.Command) func(*api.Grant) error {
			change := capFlags(cmd)
			nodes := cmd.Flags().Int("nodes", 0, "nodes")
			return func(g *api.Grant) error {
				if *nodes < 0 {
					return usage("limits are 0 or more")
				}
				if !cmd.Flags().Changed("nodes") {
					return change(&g.Caps)
				}
				g.Caps.Nodes = *nodes
				if err := change(&g.Caps); !errors.Is(err, errNoLimit) {
					return err
				}
				return nil
			}
		})
	var cluster string
	node := &cobra.Command{
		Use: "node [CLUSTER/]NAME", Aliases: []string{"nodes"}, Short: "Limit how much of what a node claims counts", Args: cobra.ExactArgs(1),
		Long: `Limit how much of what a node claims counts, whatever it reports. 0 lifts a limit.
Flags that are not given leave theirs as they are. The limits of the cluster's
configuration (node_caps) hold beside these: of each, the lower one counts. What runs
on the node stays there.`,
	}
	change := capFlags(node)
	c.clusterFlag(node, &cluster)
	node.RunE = func(cmd *cobra.Command, args []string) error {
		a, n, err := c.node(cmd.Context(), cluster, args[0])
		if err != nil {
			return err
		}
		k := n.Caps
		if err := change(&k); err != nil {
			return err
		}
		if _, err := a.CapNode(cmd.Context(), n.Cluster, n.ID, k); err != nil {
			return fmt.Errorf("cap node %s of %s: %w", n.ID, n.Cluster, err)
		}
		text := caps(k)
		if text == "" {
			text = "what it claims, within node_caps of its cluster"
		} else {
			text = "at most " + text
		}
		c.say("node %s of cluster %s counts for %s", n.ID, n.Cluster, text)
		return nil
	}
	group.AddCommand(node)
	return group
}

var errNoLimit = usage("name at least one limit")

// capFlags are the flags of the limits that clusters and nodes have. The function that
// it returns sets those that were given; none are errNoLimit.
func capFlags(cmd *cobra.Command) func(*api.Caps) error {
	f := cmd.Flags()
	vcpus := f.Float64("vcpus", 0, "vCPUs in all")
	memory := f.Int64("memory", 0, "memory in all, MiB")
	storage := f.Int64("storage", 0, "disk in all, MiB")
	devices := f.StringToInt("device", nil, "devices of a kind, such as gpu=2; may be repeated")
	privileged := f.Bool("privileged", true, "whether it gets privileged workloads")
	return func(k *api.Caps) error {
		if *vcpus < 0 || *vcpus > 1e6 || math.IsNaN(*vcpus) || *vcpus > 0 && *vcpus < 0.001 || *memory < 0 || *storage < 0 {
			return usage("limits are 0 or more, of vCPUs 0 or 0.001 and more")
		}
		given := 0
		for flag, set := range map[string]func(){
			"vcpus":      func() { k.MilliCPU = int64(math.Round(*vcpus * 1000)) },
			"memory":     func() { k.MemoryMB = *memory },
			"storage":    func() { k.StorageMB = *storage },
			"device":     func() { k.Devices = *devices },
			"privileged": func() { k.NoPrivileged = !*privileged },
		} {
			if f.Changed(flag) {
				given++
				set()
			}
		}
		if given == 0 {
			return errNoLimit
		}
		return nil
	}
}

// audience describes which tenants' services a cluster gets.
func audience(cl api.Cluster) string {
	if cl.Grant.Open {
		return "open to all tenants"
	}
	to := ""
	if cl.Tenant != "" {
		to = string(cl.Tenant)
	}
	for _, t := range cl.Grant.Tenants {
		if to != "" {
			to += ", "
		}
		to += string(t)
	}
	if to == "" {
		return "closed: no tenant's services go there"
	}
	return "open to " + to
}

// caps describes the limits of the claims of a cluster or a node; empty: there are none.
func caps(k api.Caps) string {
	var parts []string
	for _, p := range []struct {
		n    float64
		unit string
	}{
		{float64(k.MilliCPU) / 1000, "vCPU"},
		{float64(k.MemoryMB), "MiB"},
		{float64(k.StorageMB), "MiB disk"},
		{float64(k.Nodes), "nodes"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%.15g %s", p.n, p.unit))
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
