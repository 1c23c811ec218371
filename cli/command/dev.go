//go:build linux

package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/contexts"
	"github.com/treeline-edge/treeline/cli/dev"
	"github.com/treeline-edge/treeline/cli/output"
)

var daemonTable = output.Table[dev.Daemon]{
	Kind: "daemons",
	Name: func(d dev.Daemon) string { return d.Name },
	Columns: []output.Column[dev.Daemon]{
		{Header: "NAME", Cell: func(_ output.Printer, d dev.Daemon) string { return d.Name }},
		{Header: "KIND", Cell: func(_ output.Printer, d dev.Daemon) string { return d.Kind }},
		{Header: "PID", Cell: func(_ output.Printer, d dev.Daemon) string { return strconv.Itoa(d.PID) }},
		{Header: "ADDRESS", Cell: func(_ output.Printer, d dev.Daemon) string { return d.Address }},
		{Header: "LOG", Cell: func(_ output.Printer, d dev.Daemon) string { return d.Log }},
	},
}

func (c *cli) devCmd() *cobra.Command {
	cfg := dev.Config{}
	var sla, name, tenant string
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a whole installation on this machine until Ctrl-C", Args: cobra.NoArgs,
		Long: `Run a whole installation on this machine: the daemons as processes, with a data
directory that later runs use again. Daemons that crash are restarted. Ctrl-C stops
the daemons; workloads keep running, and the next start adopts them. With --rm, the
applications and the data are deleted at the end.

The command signs in, writes a context and makes it the current one.`,
		Example: "  treeline dev --clusters 2 --nodes 3\n  treeline dev --runtime process --allow /usr/bin --apply shop.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			if cfg.Data == "" {
				cfg.Data = c.devData()
			}
			if cfg.Bin == "" {
				exe, err := os.Executable()
				if err != nil {
					return fmt.Errorf("find the daemons beside this program: %w", err)
				}
				cfg.Bin = filepath.Dir(exe)
			}
			if cfg.Bin, err = filepath.Abs(cfg.Bin); err != nil {
				return err
			}
			if cfg.Tenant = api.Tenant(tenant); !api.ValidTenant(cfg.Tenant) {
				return usage("--dev-tenant %q: want a path of lower-case names such as acme or acme/lab", tenant)
			}
			begun := c.Now()
			out := c.progress()
			step := func(format string, args ...any) {
				out.Printf("  %7.3fs  %s", c.Now().Sub(begun).Seconds(), fmt.Sprintf(format, args...))
			}
			var ca string // of this installation
			err = dev.Run(cmd.Context(), cfg, dev.Hooks{Step: step, Up: func(ctx context.Context, up dev.Up) error {
				ca = string(up.CA)
				return c.devUp(ctx, p, cfg, up, name, sla)
			}})
			if err != nil || !cfg.Remove {
				return err
			}
			return c.file().Update(func(all *contexts.All) error { // the installation is gone
				if at, ok := all.Contexts[name]; !ok || at.CA != ca {
					return nil // the context is of another installation
				}
				if delete(all.Contexts, name); all.Current == name {
					all.Current = ""
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Clusters, "clusters", 1, "number of clusters")
	f.IntVar(&cfg.Nodes, "nodes", 1, "number of nodes, distributed over the clusters")
	f.StringVar(&cfg.Data, "data", "", "data directory (default $XDG_DATA_HOME/treeline/dev)")
	f.StringVar(&cfg.Bin, "bin-dir", "", "directory of the daemons' binaries (default: the directory of this program)")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "the root's address; port 0 selects a free port. Other machines can join unless it is 127.0.0.1")
	f.StringVar(&cfg.Runtime, "runtime", "auto", "runtime of the nodes: auto, containerd or process")
	f.StringVar(&cfg.Containerd, "containerd-address", "", "containerd's socket")
	f.StringVar(&cfg.Network, "workload-network", "auto", "network of containers: overlay (own addresses and names; needs root, ip and nft), host, none (loopback only), or auto: overlay if possible, else host")
	f.StringArrayVar(&cfg.ImageDirs, "image-dir", nil, "directory with OCI archives of images; may be repeated")
	f.StringArrayVar(&cfg.Allow, "allow", nil, "directory below which the process runtime may start programs; may be repeated")
	f.StringVar(&tenant, "dev-tenant", "dev", "tenant that owns the applications and clusters")
	f.StringVar(&name, "name", "dev", "context to write")
	f.StringVar(&sla, "apply", "", "SLA to apply when the installation is ready")
	f.BoolVar(&cfg.HA, "ha", false, "two replicas of the root and of each cluster, with FerretDB and Mosquitto; the data directory keeps the choice")
	f.StringVar(&cfg.FerretDB, "ferretdb", "", "with --ha: the program FerretDB, which scripts/ferretdb builds")
	f.BoolVar(&cfg.Remove, "rm", false, "delete the applications and the data at the end")
	return cmd
}

func (c *cli) devData() string {
	dir := c.Env("XDG_DATA_HOME")
	if dir == "" {
		dir = filepath.Join(c.Env("HOME"), ".local", "share")
	}
	return filepath.Join(dir, "treeline", "dev")
}

func (c *cli) devUp(ctx context.Context, p output.Printer, cfg dev.Config, up dev.Up, name, sla string) error {
	at := contexts.Context{URL: up.URL, CA: string(up.CA), Tenant: cfg.Tenant}
	at.SetSession(up.Session)
	var other string // URL that the context had before
	err := c.file().Update(func(all *contexts.All) error {
		if was, ok := all.Contexts[name]; ok && was.CA != at.CA {
			other = was.URL
		}
		all.Contexts[name], all.Current = at, name
		return nil
	})
	if err != nil {
		return err
	}
	if other != "" {
		c.say("context %s was of another installation, %s, and is now of this one; to keep both, use --name", name, other)
	}
	if err := output.List(p, daemonTable, api.Page[dev.Daemon]{Items: up.Daemons}); err != nil {
		return err
	}
	p.Printf("")
	p.Printf("API:              %s   (context %s, tenant %s, signed in as %s)", up.URL, name, cfg.Tenant, up.Session.User)
	p.Printf("API description:  %s/v1/docs", up.URL)
	p.Printf("one more node:    %s --data DIR --token-file %s   (until %s)", filepath.Join(cfg.Bin, "node-engine"), up.JoinFile, up.Join.Expires.Local().Format(time.TimeOnly))
	if sla != "" {
		c.chosen = &contexts.Chosen{Context: at, Name: name}
		if err := c.devApply(ctx, sla); err != nil && ctx.Err() == nil {
			c.report(ctx, err) // the daemons keep running, so that the SLA can be corrected
		}
	}
	c.say("running; Ctrl-C stops the daemons%s", map[bool]string{true: " and deletes the applications and data", false: ", workloads keep running"}[cfg.Remove])
	return nil
}

func (c *cli) devApply(ctx context.Context, sla string) error {
	a, err := c.api()
	if err != nil {
		return err
	}
	doc, err := c.document(ctx, sla)
	if err != nil {
		return err
	}
	apps, since, err := c.apply(ctx, a, slaFile{name: sla}, doc, "")
	if err != nil {
		return err
	}
	return c.monitor(ctx, a, apps, since, 5*time.Minute)
}
