package command

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/contexts"
	"github.com/treeline-edge/treeline/cli/output"
)

type shownContext struct {
	Name     string        `json:"name"`
	Current  bool          `json:"current"`
	URL      string        `json:"url"`
	Tenant   api.Tenant    `json:"tenant,omitempty"`
	Cluster  api.ClusterID `json:"cluster,omitempty"`
	User     string        `json:"user,omitempty"`
	SignedIn bool          `json:"signed_in"`
	Pinned   bool          `json:"ca_pinned"`
	Replicas []string      `json:"replicas,omitempty"`
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

var contextTable = output.Table[shownContext]{
	Kind: "contexts; create one with treeline login URL or treeline dev",
	Name: func(s shownContext) string { return s.Name },
	Columns: []output.Column[shownContext]{
		{Header: "CURRENT", Cell: func(_ output.Printer, s shownContext) string {
			if s.Current {
				return "*"
			}
			return ""
		}},
		{Header: "NAME", Cell: func(_ output.Printer, s shownContext) string { return s.Name }},
		{Header: "URL", Cell: func(_ output.Printer, s shownContext) string { return s.URL }},
		{Header: "USER", Cell: func(_ output.Printer, s shownContext) string { return s.User }},
		{Header: "SIGNED IN", Cell: func(_ output.Printer, s shownContext) string { return yesNo(s.SignedIn) }},
		{Header: "TENANT", Cell: func(_ output.Printer, s shownContext) string { return string(s.Tenant) }},
		{Header: "CLUSTER", Wide: true, Cell: func(_ output.Printer, s shownContext) string { return string(s.Cluster) }},
		{Header: "CA PINNED", Wide: true, Cell: func(_ output.Printer, s shownContext) string { return yesNo(s.Pinned) }},
		{Header: "REPLICAS", Wide: true, Cell: func(_ output.Printer, s shownContext) string { return strings.Join(s.Replicas, " ") }},
	},
}

func shown(all contexts.All, name string) shownContext {
	x := all.Contexts[name]
	return shownContext{
		Name: name, Current: name == all.Current, URL: x.URL, Cluster: x.Cluster, Tenant: x.Tenant, User: x.User,
		SignedIn: x.SignedIn(), Pinned: x.CA != "", Replicas: x.Replicas,
	}
}

func (c *cli) ctxCmd() *cobra.Command {
	group := &cobra.Command{Use: "ctx", Aliases: []string{"context"}, Short: "Manage contexts: root addresses with sessions"}
	names := c.contextNames
	lister := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the contexts", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			all, err := c.file().Load()
			if err != nil {
				return err
			}
			var items []shownContext
			for _, n := range all.Names() {
				items = append(items, shown(all, n))
			}
			return list(c, p, contextTable, items, 0)
		},
	}
	show := &cobra.Command{
		Use: "show [NAME]", Short: "Show a context without its tokens", Args: cobra.MaximumNArgs(1), ValidArgsFunction: names,
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			all, err := c.file().Load()
			if err != nil {
				return err
			}
			name := all.Current
			if w, err := c.where(); err == nil && w.Name != "" {
				name = w.Name
			}
			if len(args) > 0 {
				name = args[0]
			}
			if _, err := all.Get(name); err != nil {
				return err
			}
			return output.One(p, contextTable, shown(all, name))
		},
	}
	c.outputFlags(lister)
	c.outputFlags(show)
	use := &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Args: cobra.ExactArgs(1), ValidArgsFunction: names,
		RunE: func(_ *cobra.Command, args []string) error {
			return c.file().Update(func(all *contexts.All) error {
				if _, err := all.Get(args[0]); err != nil {
					return err
				}
				all.Current = args[0]
				return nil
			})
		},
	}
	var pin string
	add := &cobra.Command{
		Use: "add NAME URL", Short: "Add a context, or change its address, CA or tenant", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			url := contexts.URL(args[1])
			ca, err := c.pinned(cmd.Context(), url, pin)
			if err != nil {
				return err
			}
			if _, err := client.New(client.Options{URL: url, CA: []byte(ca)}); err != nil {
				return err
			}
			return c.file().Update(func(all *contexts.All) error {
				x := all.Contexts[args[0]]
				if x.Cluster != "" {
					return usage("context %s is of cluster %s itself: change it with treeline login --cluster", args[0], x.Cluster)
				}
				if ca != "" && ca != x.CA {
					x.SetSession(api.Session{}) // the session belongs to another installation
					x.CA, x.Replicas = ca, nil
				}
				if x.URL != url {
					x.URL, x.Replicas = url, nil
				}
				if c.flags.Tenant != "" {
					x.Tenant = api.Tenant(c.flags.Tenant)
				}
				all.Contexts[args[0]] = x
				all.Current = cmp.Or(all.Current, args[0])
				return nil
			})
		},
	}
	add.Flags().StringVar(&pin, "pin", "", "SHA-256 of the root's CA certificate, to pin it")
	var yes bool
	del := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a context and its session", Args: cobra.ExactArgs(1), ValidArgsFunction: names,
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := c.file().Load()
			if err != nil {
				return err
			}
			x, err := all.Get(args[0])
			if err != nil {
				return err
			}
			if err := c.confirm(yes, "This deletes context "+args[0]+" ("+x.URL+") and its session."); err != nil {
				return err
			}
			return c.file().Update(func(all *contexts.All) error {
				delete(all.Contexts, args[0])
				if all.Current == args[0] {
					all.Current = ""
				}
				return nil
			})
		},
	}
	del.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	group.AddCommand(lister, use, show, add, del)
	return group
}
