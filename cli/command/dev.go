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
	"github.com/treeline-edge/treeline/api/client"
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
		Use: "dev", Short: "Run a whole installation on this machine, until Ctrl-C", Args: cobra.NoArgs,
		Long: `Run a whole installation on this machine: the real daemons, as processes, in a data
directory that later runs go on with. Daemons that die are started again. Ctrl-C
ends the daemons and leaves what they run; the next start finds it. --rm deletes
the applications and the data at the end.

You are signed in: the context is written and made the current one.`,
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
				return usage("--dev-tenant %q: a path of lower-case names", tenant)
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
			return c.file().Update(func(all *contexts.All) error { // it leads nowhere now
				if at, ok := all.Contexts[name]; !ok || at.CA != ca {
					return nil // another installation has taken the name over
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
	f.IntVar(&cfg.Nodes, "nodes", 1, "number of nodes, spread over the clusters")
	f.StringVar(&cfg.Data, "data", "", "data directory (default $XDG_DATA_HOME/treeline/dev)")
	f.StringVar(&cfg.Bin, "bin-dir", "", "directory of the daemons' binaries (default: beside this program)")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "the root's address; port 0 takes a free one. Other machines can join where it is not 127.0.0.1")
	f.StringVar(&cfg.Runtime, "runtime", "auto", "auto, containerd or process")
	f.StringVar(&cfg.Containerd, "containerd-address", "", "containerd's socket")
	f.StringVar(&cfg.Network, "workload-network", "auto", "of containers: overlay (addresses and names of their own; needs root, ip and nft), host, none (loopback only), or auto: overlay where it can be, else host")
	f.StringArrayVar(&cfg.ImageDirs, "image-dir", nil, "directory of OCI archives to take images from")
	f.StringArrayVar(&cfg.Allow, "allow", nil, "directory that programs of the process runtime may lie below")
	f.StringVar(&tenant, "dev-tenant", "dev", "tenant that owns the applications and clusters")
	f.StringVar(&name, "name", "dev", "context to write")
	f.StringVar(&sla, "apply", "", "SLA to apply when everything is up")
	f.BoolVar(&cfg.Remove, "rm", false, "at the end, delete the applications and the data")
	return cmd
}

func (c *cli) devData() string {
	dir := c.Env("XDG_DATA_HOME")
	if dir == "" {
		dir = filepath.Join(c.Env("HOME"), ".local", "share")
	}
	return filepath.Join(dir, "treeline", "dev")
}

// devUp writes the context, shows what runs, and applies what is to be applied.
func (c *cli) devUp(ctx context.Context, p output.Printer, cfg dev.Config, up dev.Up, name, sla string) error {
	at := contexts.Context{URL: up.URL, CA: string(up.CA), Tenant: cfg.Tenant}
	at.SetSession(up.Session)
	var other string // where the name led to before
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
		c.say("context %s pointed at another installation, %s; now it points at this one (--name gives each its own)", name, other)
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
			c.report(ctx, err) // the daemons go on; the SLA can be mended
		}
	}
	c.say("running; Ctrl-C ends the daemons%s", map[bool]string{true: " and deletes everything", false: " and leaves what they run"}[cfg.Remove])
	return nil
}

func (c *cli) devApply(ctx context.Context, sla string) error {
	doc, err := c.document(ctx, sla)
	if err != nil {
		return err
	}
	a, err := c.api()
	if err != nil {
		return err
	}
	since, err := revision(ctx, a)
	if err != nil {
		return err
	}
	apps, err := a.Apply(ctx, doc, client.ApplyOptions{Tenant: c.tenant(), ContentType: contentType(sla, doc)})
	if err != nil {
		return fmt.Errorf("apply %s: %w", sla, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errTimeout)
	defer cancel()
	return c.monitor(ctx, a, apps, since)
}
