package command

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
)

// grantCmd returns a command that changes a cluster's grant. prepare adds the command's
// flags and returns the function that changes the present grant.
func (c *cli) grantCmd(use, short, long string, prepare func(*cobra.Command) func(*api.Grant) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.MatchAll(cobra.ExactArgs(2), func(_ *cobra.Command, args []string) error {
		if args[0] != "cluster" && args[0] != "clusters" {
			return usage("%q: only clusters have a grant: %s", args[0], use)
		}
		return nil
	})}
	change := prepare(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a, err := c.api()
		if err != nil {
			return err
		}
		id := api.ClusterID(args[1])
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
	return cmd
}

func (c *cli) openCmd() *cobra.Command {
	return c.grantCmd("open cluster NAME", "Let a cluster get the services of all tenants, or of those named",
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
	return c.grantCmd("close cluster NAME", "Keep the services of others than its owner off a cluster",
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
	return c.grantCmd("cap cluster NAME", "Limit how much of what a cluster claims counts",
		`Limit how much of what a cluster claims counts, whatever it reports. 0 lifts a limit.
Flags that are not given leave theirs as they are.`,
		func(cmd *cobra.Command) func(*api.Grant) error {
			f := cmd.Flags()
			vcpus := f.Float64("vcpus", 0, "vCPUs in all")
			memory := f.Int64("memory", 0, "memory in all, MiB")
			storage := f.Int64("storage", 0, "disk in all, MiB")
			nodes := f.Int("nodes", 0, "nodes")
			devices := f.StringToInt("device", nil, "devices of a kind, such as gpu=2; may be repeated")
			privileged := f.Bool("privileged", true, "whether it gets privileged workloads")
			return func(g *api.Grant) error {
				k := &g.Caps
				if f.NFlag() == 0 {
					return usage("name at least one limit")
				}
				if *vcpus < 0 || *vcpus > 1e6 || math.IsNaN(*vcpus) || *memory < 0 || *storage < 0 || *nodes < 0 {
					return usage("limits are 0 or more")
				}
				if f.Changed("vcpus") {
					k.MilliCPU = int64(math.Round(*vcpus * 1000))
				}
				if f.Changed("memory") {
					k.MemoryMB = *memory
				}
				if f.Changed("storage") {
					k.StorageMB = *storage
				}
				if f.Changed("nodes") {
					k.Nodes = *nodes
				}
				if f.Changed("device") {
					k.Devices = *devices
				}
				if f.Changed("privileged") {
					k.NoPrivileged = !*privileged
				}
				return nil
			}
		})
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

// caps describes the limits of a cluster's claims; empty: there are none.
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
