package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) netCmd() *cobra.Command {
	group := &cobra.Command{
		Use: "net", Aliases: []string{"network"}, Short: "Inspect the overlay network",
		Long: `Inspect the overlay network: the routes and peers of a node, the path of a new flow,
and the packets of an instance. The nodes answer, through their cluster.`,
	}
	group.AddCommand(
		c.nodeNetCmd(c.unnamedFlags, "status", "Show the state of a node's netmanager", showNet),
		c.nodeNetCmd(c.outputFlags, "routes", "List the services that a node has routes to", func(ctx context.Context, p output.Printer, n client.Nodes, id api.NodeID) error {
			all, err := n.Routes(ctx, id)
			if err != nil {
				return err
			}
			return output.List(p, output.Routes, api.Page[api.RouteStatus]{Items: all})
		}),
		c.nodeNetCmd(c.unnamedFlags, "peers", "List the nodes that a node exchanges packets with, and the path to each", func(ctx context.Context, p output.Printer, n client.Nodes, id api.NodeID) error {
			all, err := n.Peers(ctx, id)
			if err != nil {
				return err
			}
			return output.List(p, output.Peers, api.Page[api.PeerStatus]{Items: all})
		}),
		c.traceCmd(), c.captureCmd(),
	)
	return group
}

func (c *cli) nodeNetCmd(flags func(*cobra.Command), verb, short string, show func(context.Context, output.Printer, client.Nodes, api.NodeID) error) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use: verb + " [CLUSTER/]NODE", Short: short, Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			of, id, err := c.findNode(ctx, a, cluster, args[0])
			if err != nil {
				return err
			}
			return show(ctx, p, a.NodesOf(of), id)
		}),
	}
	flags(cmd)
	c.clusterFlag(cmd, &cluster)
	return cmd
}

func showNet(ctx context.Context, p output.Printer, n client.Nodes, id api.NodeID) error {
	s, err := n.Net(ctx, id)
	if err != nil {
		return err
	}
	if !p.ForPeople() {
		return p.Object(s)
	}
	d := &description{Printer: p}
	d.line("Node", "%s of cluster %s", s.Node, s.Cluster)
	d.line("Ready", "%t", s.Ready)
	d.line("Trouble", "%s", s.Error)
	if s.Subnet.IsValid() {
		d.line("Subnet", "%s", s.Subnet)
	}
	d.line("Key", "%s", s.Key)
	d.line("Data plane", "%s", s.Plane)
	if s.Listen.IsValid() {
		d.line("Listens", "%s", s.Listen)
	}
	for _, m := range s.Mapped {
		d.line("Seen as", "%s", m)
	}
	return nil
}

func (c *cli) traceCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trace INSTANCE NAME|ADDRESS", Short: "Show step by step how a new flow would be treated", Args: cobra.ExactArgs(2),
		Long: `Show step by step how a new flow of an instance to a service name or address would be
treated: the name's address, the route, whether the flow is allowed, the instance and
the path that it would get. No packet is sent.`,
		ValidArgsFunction: c.complete("instances"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			i, err := instanceKind.find(ctx, c, args[0])
			if err != nil {
				return err
			}
			t, err := a.Trace(ctx, i.ID, args[1])
			if err != nil {
				return err
			}
			if err := output.Trace(p, t); err != nil {
				return err
			}
			if !t.OK {
				return fmt.Errorf("a new flow from %s would not reach %s: %w", c.progress().Short(string(i.ID)), args[1], api.ErrUnavailable)
			}
			return nil
		}),
	}
	c.unnamedFlags(cmd)
	return cmd
}

func (c *cli) captureCmd() *cobra.Command {
	var file string
	var duration time.Duration
	var mib int
	cmd := &cobra.Command{
		Use: "capture INSTANCE", Short: "Capture the packets of an instance in pcap format", Args: cobra.ExactArgs(1),
		Long: `Capture the packets of an instance on its node, in pcap format:

  treeline net capture shop/web#0 | tcpdump -r -

It needs the right to read the instance's logs.`,
		ValidArgsFunction: c.complete("instances"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			i, err := instanceKind.find(ctx, c, args[0])
			if err != nil {
				return err
			}
			body, err := a.Capture(ctx, i.ID, duration, mib<<20)
			if err != nil {
				return err
			}
			defer body.Close()
			out := c.Out
			if file != "" {
				f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) // packets may contain secrets
				if err != nil {
					return fmt.Errorf("write the packets: %w", err)
				}
				defer f.Close()
				out = f
			}
			n, err := io.Copy(out, body)
			c.say("%s captured", output.Bytes(uint64(n)))
			if err != nil && !errors.Is(err, context.Canceled) && ctx.Err() == nil {
				return fmt.Errorf("capture packets of %s: %w", i.ID, interrupted(err))
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&file, "write", "w", "", "file to write to; empty: stdout")
	f.DurationVar(&duration, "for", time.Minute, "stop after this time, at most 1h")
	f.IntVar(&mib, "size", 64, "stop after this many MiB, at most 1024")
	return cmd
}
