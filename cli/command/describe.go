package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/internal/cron"
)

// shownEvents is the number of events at the end of a description.
const shownEvents = 20

func (c *cli) describeCmd() *cobra.Command {
	group := &cobra.Command{Use: "describe", Aliases: []string{"desc"}, Short: "Show an object in detail, with its events"}
	var cluster string
	for _, k := range []struct {
		use     string
		aliases []string
		names   string
		run     func(ctx context.Context, d *description, name string) error
	}{
		{"app NAME…", []string{"application"}, "apps", c.describeApp},
		{"service NAME…", []string{"svc"}, "services", c.describeService},
		{"instance NAME…", []string{"inst"}, "instances", c.describeInstance},
		{"volume INSTANCE:NAME…", []string{"vol"}, "volumes", c.describeVolume},
		{"cluster NAME…", nil, "clusters", c.describeCluster},
		{"config NAME…", nil, "configs", c.describeValues(api.KindConfig)},
		{"secret NAME…", nil, "secrets", c.describeValues(api.KindSecret)},
		{"kind NAME…", nil, "kinds", c.describeKind},
		{"resource KIND:NAME…", nil, "resources", c.describeCustom},
		{"node [CLUSTER/]NAME…", nil, "", func(ctx context.Context, d *description, name string) error {
			return c.describeNode(ctx, d, api.ClusterID(cluster), name)
		}},
	} {
		kind, _, _ := strings.Cut(k.use, " ")
		cmd := &cobra.Command{
			Use: k.use, Aliases: k.aliases, Short: "Describe a " + kind, Args: cobra.MinimumNArgs(1),
			ValidArgsFunction: c.complete(k.names),
			RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
				return several(p, args, func(name string) error {
					d := &description{Printer: p, api: a}
					if err := k.run(ctx, d, name); err != nil {
						return err
					}
					return d.end(args)
				})
			}),
		}
		c.outputFlags(cmd)
		if kind == "node" {
			c.clusterFlag(cmd, &cluster)
		}
		if many := map[string]string{"app": "applications", "service": "services", "instance": "instances", "node": "nodes"}[kind]; many != "" {
			c.selectable(cmd, many, false)
		}
		group.AddCommand(cmd)
	}
	c.takesKinds(group, "KIND NAME…", 1, func(ctx context.Context, p output.Printer, a *client.Client, kind string, names []string) error {
		names = customNames(kind, names)
		return several(p, names, func(name string) error {
			d := &description{Printer: p, api: a}
			if err := c.describeCustom(ctx, d, name); err != nil {
				return err
			}
			return d.end(names)
		})
	})
	c.outputFlags(group)
	return group
}

// description prints a description line by line. For JSON and YAML it collects the objects, which
// end prints.
type description struct {
	output.Printer
	api   *client.Client
	name  string
	whole gathered

	trouble error // what could not be found out; the command prints the rest and fails
}

// gathered has the objects of a description, for JSON and YAML.
type gathered struct {
	Object    any            `json:"object"`
	Services  []api.Service  `json:"services,omitempty"`
	Instances []api.Instance `json:"instances,omitempty"`
	Why       *api.Why       `json:"why,omitempty"`

	Peers  []api.PeerStatus `json:"peers,omitempty"`
	Events []api.Event      `json:"events"`
}

func (d *description) of(name string, o any) { d.name, d.whole.Object = name, o }

func (d *description) end(args []string) error {
	switch {
	case d.ForPeople():
		return d.trouble
	case d.Format == output.Name:
		d.Printf("%s", d.name)
		return nil
	}
	return errors.Join(item(d.Printer, args, d.whole), d.trouble)
}

// line prints a name and a value, unless the value is empty.
func (d *description) line(name, format string, args ...any) {
	if s := fmt.Sprintf(format, args...); s != "" && d.ForPeople() {
		d.Printf("%-13s %s", name+":", s)
	}
}

// events prints the newest shownEvents events for which keep returns true; nil: all.
func (d *description) events(ctx context.Context, o client.ListOptions, keep func(api.Event) bool) error {
	kept, _, err := d.api.Events(ctx, o)
	if errors.Is(err, api.ErrForbidden) { // providers of machines may not see those of applications
		d.Say("events are not shown: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	if keep != nil {
		kept = slices.DeleteFunc(kept, func(e api.Event) bool { return !keep(e) })
	}
	kept = append([]api.Event{}, kept[max(0, len(kept)-shownEvents):]...) // in JSON [], not null
	if d.whole.Events = kept; len(kept) == 0 && d.ForPeople() {
		d.Printf("")
		d.Printf("no events")
	}
	return section(d, output.Events, kept)
}

// section prints a table after an empty line, unless there are no objects.
func section[T any](d *description, table output.Table[T], all []T) error {
	if len(all) == 0 || !d.ForPeople() {
		return nil
	}
	d.Printf("")
	return output.List(d.Printer, table, api.Page[T]{Items: all})
}

func (d *description) instances(ctx context.Context, o client.ListOptions) error {
	all, _, err := d.api.Instances(ctx, o)
	if d.whole.Instances = all; err != nil {
		return err
	}
	return section(d, output.Instances, all)
}

func (c *cli) describeApp(ctx context.Context, d *description, name string) error {
	a, err := appKind.find(ctx, c, name)
	if err != nil {
		return err
	}
	d.of(string(a.ID), a)
	d.line("Application", "%s", a.ID)
	d.line("Status", "%s, %s running", output.AppStatus(a), output.Running(output.OfApp(a)))
	d.line("Description", "%s", a.Spec.Description)
	d.line("Labels", "%s", output.Labels(a.Spec.Labels))
	d.line("Created", "%s ago", d.Age(a.Created))
	d.line("Applied by", "%s", a.By)
	d.line("Revision", "%d", a.Revision)
	services, _, err := d.api.Services(ctx, client.ListOptions{Under: string(a.ID)})
	if err != nil {
		return err
	}
	d.whole.Services = services
	if err := section(d, output.Services, services); err != nil {
		return err
	}
	if err := d.instances(ctx, client.ListOptions{Under: string(a.ID)}); err != nil {
		return err
	}
	return d.events(ctx, client.ListOptions{Under: string(a.ID)}, nil)
}

func (c *cli) describeService(ctx context.Context, d *description, name string) error {
	s, err := serviceKind.find(ctx, c, name)
	if err != nil {
		return err
	}
	m := s.Spec
	d.of(string(s.ID), s)
	d.line("Service", "%s", s.ID)
	d.line("Instances", "%s running", output.Running(output.OfService(s)))
	d.line("Labels", "%s", output.Labels(s.Labels))
	d.line("Runs", "%s as %s", output.Codes(s), m.Virtualization)
	d.line("Command", "%s", strings.Join(m.Cmd, " "))
	d.line("Addresses", "%s", output.Addresses(s.Addresses))
	d.line("Publishes", "%s", m.Port)
	d.line("Callers", "%s", strings.Join(m.Callers, ", "))
	d.line("Calls", "%s", strings.Join(m.Calls, ", "))
	if m.BandwidthIn > 0 || m.BandwidthOut > 0 {
		d.line("Bandwidth", "%s in, %s out", bandwidth(m.BandwidthIn), bandwidth(m.BandwidthOut))
	}
	d.line("Needs", "%s", m.Needs())
	for _, n := range m.NeedsDevices() {
		d.line("Device", "%d %s, exclusively", n.Count, n.Name)
	}
	for _, v := range m.Volumes {
		if v.Type == api.VolumeCSIEphemeral {
			d.line("Volume", "%s at %s: %s of %s", v.Name, v.MountPath, v.Type, v.Driver)
			continue
		}
		access := ""
		if v.Shared() {
			access = ", shared: " + v.Access
		}
		d.line("Volume", "%s at %s: %s, %d MiB%s", v.Name, v.MountPath, v.Type, v.SizeMB, access)
	}
	d.line("Priority", "%s", m.Priority)
	d.line("Environment", "%s", names(m.Environment)) // without values, which may be secrets
	for _, f := range files(m.Files) {
		d.line("File", "%s", f)
	}
	d.line("Processors", "%s", strings.Join(m.Arch, ", "))
	for _, k := range m.Constraints {
		d.line("Constraint", "%s", constraint(k))
	}
	for _, l := range m.Connectivity {
		d.line("Link", "%s", link(l))
	}
	for _, h := range healthLines(m.Health) {
		d.line("Health", "%s", h)
	}
	if m.Scale != nil {
		d.line("Scale", "%s", output.Clean(output.Scale(m.Scale)))
		if err := d.scaling(ctx, s.ID); err != nil {
			return err
		}
	}
	if s := m.Schedule; s != nil {
		zone := ""
		if s.TimeZone != "" {
			zone = " (" + s.TimeZone + ")"
		}
		if n := s.Lane(); n > 1 {
			zone += fmt.Sprintf(", up to %d runs at once", n)
		}
		d.line("Schedule", "%s%s", output.NextRuns(s.Cron, cron.Next(s, d.Now(), 3)), zone)
	}
	var properties []string
	for _, w := range []struct {
		is   bool
		text string
	}{
		{m.OneShot, fmt.Sprintf("one-shot: completed when it exits with 0, failed after %d attempts", m.Attempts())},
		{m.Deadline > 0, fmt.Sprintf("fails after %d s", m.Deadline)},
		{m.Parallelism > 0, fmt.Sprintf("at most %d at a time", m.Parallelism)},
		{m.TimeToLive > 0, fmt.Sprintf("removed %d s after all have ended", m.TimeToLive)},
		{m.Exclusive, "exclusive: never runs twice"},
		{m.Privileged, "privileged"},
		{m.Stdin, "stdin: its input is open for attach -i"},
		{m.TTY, "tty: it runs in a terminal"},
		{m.StopsWhenCutOff() && !m.Exclusive, "stops when its node loses the cluster"},
	} {
		if w.is {
			properties = append(properties, w.text)
		}
	}
	d.line("Properties", "%s", strings.Join(properties, ", "))
	d.line("Revision", "%d", s.SpecRev)
	d.line("Update", "%s", m.UpdatePolicy(s.Replicas))
	if s.RollOut != "" {
		r, err := d.api.RollOut(ctx, s.ID)
		if err != nil {
			return err
		}
		d.line("Roll-out", "%s", r.Standing())
	}
	if err := d.instances(ctx, client.ListOptions{Under: string(s.ID)}); err != nil {
		return err
	}
	return d.events(ctx, client.ListOptions{Under: string(s.ID)}, nil)
}

func bandwidth(mbits int64) string {
	if mbits == 0 {
		return "any"
	}
	return fmt.Sprintf("%d Mbit/s", mbits)
}

// names returns the keys of KEY=value pairs.
func names(environment []string) string {
	var keys []string
	for _, e := range environment {
		k, _, _ := strings.Cut(e, "=")
		keys = append(keys, k)
	}
	return strings.Join(keys, ", ")
}

func (c *cli) describeInstance(ctx context.Context, d *description, name string) error {
	i, err := instanceKind.find(ctx, c, name)
	if err != nil {
		return err
	}
	d.of(string(i.ID), i)
	d.line("Instance", "%s", i.ID)
	d.line("State", "%s since %s", output.StateOf(i), d.Age(i.Since))
	d.line("Reason", "%s", i.Reason)
	d.line("Detail", "%s", i.Detail)
	d.line("Cluster", "%s", i.Cluster)
	to := c.reach(d.api)
	n, _ := to.node(ctx, i)
	d.line("Node", "%s", n.ID)
	if i.Address.IsValid() {
		d.line("Address", "%s on the overlay network", i.Address)
	}
	d.line("Reached at", "%s", strings.Join(to.urls(ctx, i), ", "))
	d.trouble = to.err()
	d.line("Devices", "%s", strings.Join(i.Devices, ", "))
	d.line("Violates", "%s", i.Violated)
	d.line("Epoch", "%s, placed %d times", i.Epoch, i.Tries)
	d.line("Restarts", "%d", i.Restarts)
	if i.ExitCode != nil {
		d.line("Exit code", "%d", *i.ExitCode)
	}
	d.line("Created", "%s ago", d.Age(i.Created))
	d.line("Revision", "%d, of its spec %d", i.Revision, i.Spec)
	if err := section(d, output.Runs, i.Runs); err != nil {
		return err
	}
	w, err := d.api.Why(ctx, i.ID)
	if err != nil {
		return err
	}
	d.whole.Why = &w
	if d.ForPeople() {
		d.Printf("")
		if err := output.Why(d.Printer, w); err != nil {
			return err
		}
	}
	return d.events(ctx, client.ListOptions{Instance: i.ID}, nil)
}

func (c *cli) describeCluster(ctx context.Context, d *description, name string) error {
	cl, err := d.api.Cluster(ctx, api.ClusterID(name))
	if err != nil {
		return err
	}
	d.of(string(cl.ID), cl)
	d.line("Cluster", "%s", cl.ID)
	d.line("Status", "%s, heard %s ago", cl.Status, d.Age(cl.Heard))
	d.line("Location", "%s", cl.Location)
	d.line("Tenant", "%s", cl.Tenant)
	d.line("Audience", "%s", audience(cl))
	d.line("Caps", "%s", caps(cl.Grant.Caps))
	d.line("Version", "%s", cl.Version)
	d.line("Joined", "%s ago", d.Age(cl.Joined))
	d.line("Trouble", "%s", cl.NetworkError)
	nodes := fmt.Sprintf("%d schedulable", cl.Aggregate.Nodes)
	if n := cl.Aggregate.Overlay; n != nil {
		nodes += fmt.Sprintf(", %d with an overlay network", *n)
	}
	d.line("Nodes", "%s", nodes)
	d.line("Instances", "%d", cl.Instances)
	d.line("Capacity", "%s", cl.Aggregate.Capacity)
	d.line("Free", "%s; most on one node: %s", cl.Aggregate.Free, cl.Aggregate.Largest)
	if n := cl.Aggregate.BandwidthUnknown; n > 0 {
		d.line("Bandwidth", "unknown on %d of the nodes, which the sums do not include", n)
	}
	for _, s := range cl.Aggregate.Slots {
		d.line("Slot", "%s", slot(s))
	}
	d.line("Region", "%s", region(cl.Aggregate))
	d.line("Latency", "%s", spread(cl.Aggregate.Latency))
	all, _, err := d.api.Instances(ctx, client.ListOptions{Cluster: cl.ID})
	if errors.Is(err, api.ErrForbidden) { // but perhaps what runs on the cluster's nodes
		all, err = d.api.InstancesOn(ctx, cl.ID)
	}
	if d.whole.Instances = all; err != nil {
		d.trouble = fmt.Errorf("list instances of cluster %s: %w", cl.ID, err)
	}
	if err := section(d, output.Instances, all); err != nil {
		return err
	}
	return d.events(ctx, client.ListOptions{}, func(e api.Event) bool {
		return e.Kind == "cluster" && (e.Cluster == cl.ID || e.Object == string(cl.ID))
	})
}

func (c *cli) describeNode(ctx context.Context, d *description, cluster api.ClusterID, name string) error {
	n, err := c.node(ctx, d.api, string(cluster), name)
	if err != nil {
		return err
	}
	cluster, name = n.Cluster, string(n.ID)
	d.of(string(n.Cluster)+"/"+name, n)
	d.line("Node", "%s of cluster %s", n.ID, n.Cluster)
	d.line("Status", "%s, heard %s ago", n.Status, d.Age(n.Heard))
	d.line("Host", "%s, %s/%s", n.Hostname, n.OS, n.Arch)
	d.line("Address", "%s", n.Address)
	d.line("Version", "%s", n.Version)
	d.line("Joined", "%s ago", d.Age(n.Joined))
	if n.Location != nil {
		d.line("Location", "%s", n.Location)
	}
	d.line("Areas", "%s", strings.Join(n.Areas, ", "))
	d.line("Labels", "%s", output.Labels(n.Labels))
	d.line("Runtimes", "%s", strings.Join(n.Runtimes, ", "))
	d.line("Addons", "%s", strings.Join(n.Addons, ", "))
	d.line("Supports", "%s", features(n.Features))
	for _, dev := range n.Devices {
		d.line("Device", "%s", device(dev))
	}
	d.line("Coordinate", "%s", coordinate(n.Coord))
	d.line("Trouble", "%s", n.RuntimeError)
	d.line("Network", "%s", n.Network)
	d.line("Trouble", "%s", n.NetworkError)
	d.line("Capacity", "%s, of which %s is allocated", n.Capacity, n.Allocated)
	if n.Reserved != (api.Resources{}) {
		d.line("Reserved", "%s, for instances that wait until others have stopped", n.Reserved)
	}
	if n.BandwidthUnknown {
		d.line("Bandwidth", "unknown: services that reserve bandwidth are not placed here until bandwidth is set in the node's configuration")
	}
	for _, v := range n.Volumes {
		d.line("Volume", "%s, %d MiB", v.ID, v.SizeMB)
	}
	d.line("Used", "%d%% cpu, %d%% memory", n.CPUUsed, n.MemUsed)
	d.line("Instances", "%d", n.Instances)
	if d.ForPeople() {
		var runs map[string][]api.InstanceID
		runs, d.trouble = c.runs(ctx, d.api, []api.Node{n})
		for _, id := range runs[string(cluster)+"/"+name] {
			d.line("Runs", "%s", d.Short(string(id)))
		}
	}
	for _, r := range n.Remaining {
		d.line("Remains", "%s %s: %s", d.Short(string(r.Instance)), r.State, r.Why)
	}
	if n.Privileged {
		d.line("Privileged", "allowed")
	}
	d.line("Caps", "%s", caps(n.Caps))
	for _, k := range n.Capped {
		d.line("Capped", "%s: reports %s, limited to %s", k.What, k.Claims, cmp.Or(k.Counts, "none"))
	}
	if n.Network == api.NetworkOverlay {
		if err := d.peers(ctx, cluster, n.ID); err != nil {
			return err
		}
	}
	return d.events(ctx, client.ListOptions{}, func(e api.Event) bool {
		return e.Tier == "node "+name && e.Cluster == cluster || e.Kind == "node" && e.Object == string(cluster)+"/"+name
	})
}

// peers prints the paths from a node to its peers, or why they are unknown.
func (d *description) peers(ctx context.Context, cluster api.ClusterID, n api.NodeID) error {
	peers, err := d.api.NodesOf(cluster).Peers(ctx, n)
	if err != nil {
		d.line("Peers", "unknown: %s", err)
		d.trouble = errors.Join(d.trouble, fmt.Errorf("peers of node %s: %w", n, err))
		return ctx.Err()
	}
	d.whole.Peers = peers
	return section(d, output.Peers, peers)
}

// scaling adds what scaling does with a service in each of its clusters.
func (d *description) scaling(ctx context.Context, id api.ServiceID) error {
	all, _, err := d.api.Instances(ctx, client.ListOptions{Under: string(id)})
	if err != nil {
		return err
	}
	asked := map[api.ClusterID]bool{}
	for _, in := range all {
		if in.Cluster == "" || asked[in.Cluster] {
			continue
		}
		asked[in.Cluster] = true
		w, err := d.api.Why(ctx, in.ID)
		if err != nil {
			return err
		}
		for _, c := range w.Clusters {
			if s := c.Answer.Scale; s != nil && c.Cluster == in.Cluster {
				for _, line := range output.ScaleLines(*s) {
					d.line("", "%s: %s", c.Cluster, output.Clean(line))
				}
			}
		}
	}
	return nil
}
