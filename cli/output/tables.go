package output

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

var Apps = Table[api.App]{
	Kind: "applications",
	Name: func(a api.App) string { return string(a.ID) },
	Columns: []Column[api.App]{
		{Header: "NAME", Cell: func(p Printer, a api.App) string { return p.Short(string(a.ID)) }},
		{Header: "SERVICES", Cell: func(_ Printer, a api.App) string { return strconv.Itoa(len(a.Services)) }},
		{Header: "RUNNING", Cell: func(_ Printer, a api.App) string { return Running(OfApp(a)) }, Style: func(a api.App) Style {
			return progressStyle(OfApp(a))
		}},
		{Header: "STATUS", Cell: func(_ Printer, a api.App) string { return AppStatus(a) }},
		{Header: "AGE", Cell: func(p Printer, a api.App) string { return p.Age(a.Created) }},
		{Header: "REVISION", Wide: true, Cell: func(_ Printer, a api.App) string { return strconv.FormatUint(uint64(a.Revision), 10) }},
		{Header: "BY", Wide: true, Cell: func(_ Printer, a api.App) string { return a.By }},
		{Header: "LABELS", Wide: true, Cell: func(_ Printer, a api.App) string { return Labels(a.Spec.Labels) }},
		{Header: "DESCRIPTION", Wide: true, Cell: func(_ Printer, a api.App) string { return a.Spec.Description }},
	},
}

// AppStatus summarizes an application's state in one word.
func AppStatus(a api.App) string {
	switch {
	case a.Leaving:
		return "leaving"
	case a.Failed > 0:
		return "failed"
	case a.Running+a.Completed+a.Dormant < a.Wanted:
		return "incomplete"
	case a.Completed >= a.Wanted && a.Wanted > 0:
		return "completed"
	}
	return "complete"
}

// Counts are the numbers of instances of an application or a service.
type Counts struct{ Running, Completed, Dormant, Failed, Wanted int }

func OfApp(a api.App) Counts { return Counts{a.Running, a.Completed, a.Dormant, a.Failed, a.Wanted} }

func OfService(s api.Service) Counts {
	return Counts{s.Running, s.Completed, s.Dormant, s.Failed, s.Replicas}
}

// Running formats the numbers of running and wanted instances, and of those that do not run any more
// or not now.
func Running(n Counts) string {
	s := fmt.Sprintf("%d/%d", n.Running, n.Wanted)
	for _, c := range []struct {
		n  int
		is string
	}{{n.Completed, "completed"}, {n.Dormant, "dormant"}, {n.Failed, "failed"}} {
		if c.n > 0 {
			s += fmt.Sprintf(", %d %s", c.n, c.is)
		}
	}
	return s
}

func progressStyle(n Counts) Style {
	switch {
	case n.Failed > 0:
		return Bad
	case n.Running+n.Completed+n.Dormant < n.Wanted:
		return Busy
	}
	return Good
}

// Codes formats a service's images. During a roll-out, each has its number of instances, the newest
// first.
func Codes(s api.Service) string {
	var codes []string
	count := map[string]int{}
	for _, v := range s.Versions {
		if count[v.Code] == 0 {
			codes = append(codes, v.Code)
		}
		count[v.Code] += v.Instances
	}
	if len(codes) == 0 {
		return s.Spec.Code
	}
	for i, c := range codes {
		codes[i] = fmt.Sprintf("%s (%d)", c, count[c])
	}
	return strings.Join(codes, ", ")
}

var Services = Table[api.Service]{
	Kind: "services",
	Name: func(s api.Service) string { return string(s.ID) },
	Columns: []Column[api.Service]{
		{Header: "NAME", Cell: func(p Printer, s api.Service) string { return p.Short(string(s.ID)) }},
		{Header: "RUNNING", Cell: func(_ Printer, s api.Service) string { return Running(OfService(s)) }, Style: func(s api.Service) Style {
			return progressStyle(OfService(s))
		}},
		{Header: "RUNTIME", Cell: func(_ Printer, s api.Service) string { return s.Spec.Virtualization }},
		{Header: "CODE", Cell: func(_ Printer, s api.Service) string { return Codes(s) }},
		{Header: "ROLLOUT", Wide: true, Cell: func(_ Printer, s api.Service) string { return string(s.RollOut) }},
		{Header: "ADDRESSES", Wide: true, Cell: func(_ Printer, s api.Service) string { return Addresses(s.Addresses) }},
		{Header: "NEEDS", Wide: true, Cell: func(_ Printer, s api.Service) string { return s.Spec.Needs().String() }},
		{Header: "LABELS", Wide: true, Cell: func(_ Printer, s api.Service) string { return Labels(s.Labels) }},
		{Header: "REVISION", Wide: true, Cell: func(_ Printer, s api.Service) string { return strconv.FormatUint(uint64(s.SpecRev), 10) }},
	},
}

// Runs has the runs of a scheduled instance.
var Runs = Table[api.Run]{
	Kind: "runs",
	Name: func(r api.Run) string { return r.At.UTC().Format(time.RFC3339) },
	Columns: []Column[api.Run]{
		{Header: "RUN", Cell: func(_ Printer, r api.Run) string { return r.At.UTC().Format(time.RFC3339) }},
		{Header: "RESULT", Cell: func(_ Printer, r api.Run) string { return string(r.Result) }, Style: runStyle},
		{Header: "STARTED", Cell: func(_ Printer, r api.Run) string {
			if r.Started.IsZero() {
				return ""
			}
			return "+" + Duration(max(0, r.Started.Sub(r.At)))
		}},
		{Header: "TOOK", Cell: func(_ Printer, r api.Run) string {
			if r.Started.IsZero() || r.Ended.IsZero() {
				return ""
			}
			return Duration(max(0, r.Ended.Sub(r.Started)))
		}},
		{Header: "EXIT", Cell: func(_ Printer, r api.Run) string {
			if r.ExitCode == nil {
				return ""
			}
			return strconv.Itoa(*r.ExitCode)
		}},
		{Header: "REASON", Cell: func(_ Printer, r api.Run) string { return string(r.Reason) }},
		{Header: "DETAIL", Cell: func(_ Printer, r api.Run) string { return r.Detail }},
	},
}

// InstanceRun is a run with its instance.
type InstanceRun struct {
	Instance api.InstanceID `json:"instance"`
	api.Run
}

// InstanceRuns has the runs of several instances.
var InstanceRuns = Table[InstanceRun]{
	Kind:    "runs",
	Name:    func(r InstanceRun) string { return string(r.Instance) + "@" + Runs.Name(r.Run) },
	Columns: instanceRunColumns(),
}

func instanceRunColumns() []Column[InstanceRun] {
	all := []Column[InstanceRun]{{Header: "INSTANCE", Cell: func(p Printer, r InstanceRun) string { return p.Short(string(r.Instance)) }}}
	for _, col := range Runs.Columns {
		x := Column[InstanceRun]{Header: col.Header, Wide: col.Wide, Cell: func(p Printer, r InstanceRun) string { return col.Cell(p, r.Run) }}
		if col.Style != nil {
			x.Style = func(r InstanceRun) Style { return col.Style(r.Run) }
		}
		all = append(all, x)
	}
	return all
}

func runStyle(r api.Run) Style {
	switch r.Result {
	case api.RunCompleted:
		return Good
	case api.RunFailed, api.RunMissed:
		return Bad
	}
	return Busy
}

var Instances = Table[api.Instance]{
	Kind: "instances",
	Name: func(i api.Instance) string { return string(i.ID) },
	Columns: []Column[api.Instance]{
		{Header: "NAME", Cell: func(p Printer, i api.Instance) string { return p.Short(string(i.ID)) }},
		{Header: "STATE", Cell: func(_ Printer, i api.Instance) string { return StateOf(i) }, Style: func(i api.Instance) Style { return StateStyle(i.State) }},
		{Header: "REASON", Cell: func(_ Printer, i api.Instance) string { return string(i.Reason) }},
		{Header: "CLUSTER", Cell: func(_ Printer, i api.Instance) string { return string(i.Cluster) }},
		{Header: "RESTARTS", Cell: func(_ Printer, i api.Instance) string { return strconv.Itoa(i.Restarts) }},
		{Header: "SINCE", Cell: func(p Printer, i api.Instance) string { return p.Age(i.Since) }},
		{Header: "NODE", Wide: true, Cell: func(_ Printer, i api.Instance) string { return string(i.Node) }},
		{Header: "ADDRESS", Wide: true, Cell: func(_ Printer, i api.Instance) string {
			if !i.Address.IsValid() {
				return ""
			}
			return i.Address.String()
		}},
		{Header: "EPOCH", Wide: true, Cell: func(_ Printer, i api.Instance) string { return i.Epoch.String() }},
		{Header: "PLACED", Wide: true, Cell: func(_ Printer, i api.Instance) string { return strconv.Itoa(i.Tries) }},
		{Header: "EXIT", Wide: true, Cell: func(_ Printer, i api.Instance) string {
			if i.ExitCode == nil {
				return ""
			}
			return strconv.Itoa(*i.ExitCode)
		}},
		{Header: "DETAIL", Wide: true, Cell: func(_ Printer, i api.Instance) string { return i.Detail }},
	},
}

// InstancesAt is Instances with their nodes and where the ports that they publish are reached.
func InstancesAt(node func(api.Instance) api.NodeID, urls func(api.Instance) []string) Table[api.Instance] {
	t := Instances
	at := slices.IndexFunc(t.Columns, func(c Column[api.Instance]) bool { return c.Header == "EPOCH" })
	t.Columns = slices.Insert(slices.Clone(t.Columns), at, Column[api.Instance]{
		Header: "URL", Wide: true, Cell: func(_ Printer, i api.Instance) string { return strings.Join(urls(i), ",") },
	})
	at = slices.IndexFunc(t.Columns, func(c Column[api.Instance]) bool { return c.Header == "NODE" })
	t.Columns[at].Cell = func(_ Printer, i api.Instance) string { return string(node(i)) }
	return t
}

// shownRuns limits the instances of a node without -o wide.
const shownRuns = 3

// NodesWith is Nodes with the instances on each, by the node's name as the table prints it.
func NodesWith(runs map[string][]api.InstanceID) Table[api.Node] {
	t := Nodes
	at := slices.IndexFunc(t.Columns, func(c Column[api.Node]) bool { return c.Header == "VCPUS" })
	t.Columns = slices.Insert(slices.Clone(t.Columns), at, Column[api.Node]{Header: "RUNS", Cell: func(p Printer, n api.Node) string {
		shown, more := shorten(p, runs[t.Name(n)], shownRuns)
		texts := make([]string, len(shown))
		for i, id := range shown {
			texts[i] = p.Short(string(id))
		}
		s := strings.Join(texts, ",")
		if more > 0 {
			s += fmt.Sprintf(" and %d more", more)
		}
		return s
	}})
	return t
}

// StateOf formats an instance's state and the conditions leaving, stale and violated.
func StateOf(i api.Instance) string {
	s := string(i.State)
	if i.Leaving {
		s += ",leaving"
	}
	if i.Stale {
		s += ",unheard"
	}
	if i.Violated != "" {
		s += ",violated"
	}
	return s
}

var Clusters = Table[api.Cluster]{
	Kind: "clusters",
	Name: func(c api.Cluster) string { return string(c.ID) },
	Columns: []Column[api.Cluster]{
		{Header: "NAME", Cell: func(_ Printer, c api.Cluster) string { return string(c.ID) }},
		{Header: "STATUS", Cell: func(_ Printer, c api.Cluster) string { return string(c.Status) }, Style: func(c api.Cluster) Style {
			return map[api.ClusterStatus]Style{api.ClusterReady: Good, api.ClusterSilent: Bad, api.ClusterJoining: Busy}[c.Status]
		}},
		{Header: "NODES", Cell: func(_ Printer, c api.Cluster) string { return strconv.Itoa(c.Aggregate.Nodes) }},
		{Header: "INSTANCES", Cell: func(_ Printer, c api.Cluster) string { return strconv.Itoa(c.Instances) }},
		{Header: "FREE", Cell: func(_ Printer, c api.Cluster) string { return c.Aggregate.Free.String() }},
		{Header: "HEARD", Cell: func(p Printer, c api.Cluster) string { return ago(p.Age(c.Heard)) }},
		{Header: "CAPACITY", Wide: true, Cell: func(_ Printer, c api.Cluster) string { return c.Aggregate.Capacity.String() }},
		{Header: "LARGEST", Wide: true, Cell: func(_ Printer, c api.Cluster) string { return c.Aggregate.Largest.String() }},
		{Header: "LOCATION", Wide: true, Cell: func(_ Printer, c api.Cluster) string { return c.Location }},
		{Header: "TENANT", Wide: true, Cell: func(_ Printer, c api.Cluster) string { return string(c.Tenant) }},
		{Header: "VERSION", Wide: true, Cell: func(_ Printer, c api.Cluster) string { return c.Version }},
	},
}

func ago(age string) string {
	if age == "-" {
		return "never"
	}
	return age + " ago"
}

var Nodes = Table[api.Node]{
	Kind: "nodes",
	Name: func(n api.Node) string { return string(n.Cluster) + "/" + string(n.ID) },
	Columns: []Column[api.Node]{
		{Header: "NAME", Cell: func(_ Printer, n api.Node) string { return string(n.ID) }},
		{Header: "CLUSTER", Cell: func(_ Printer, n api.Node) string { return string(n.Cluster) }},
		{Header: "STATUS", Cell: func(_ Printer, n api.Node) string { return string(n.Status) }, Style: func(n api.Node) Style {
			return map[api.NodeStatus]Style{api.NodeReady: Good, api.NodeSilent: Bad}[n.Status]
		}},
		{Header: "INSTANCES", Cell: func(_ Printer, n api.Node) string { return strconv.Itoa(n.Instances) }},
		{Header: "VCPUS", Cell: func(_ Printer, n api.Node) string {
			return fmt.Sprintf("%g/%g", float64(n.Allocated.MilliCPU)/1000, float64(n.Capacity.MilliCPU)/1000)
		}},
		{Header: "MEMORY", Cell: func(_ Printer, n api.Node) string {
			return api.MiB(n.Allocated.MemoryMB) + "/" + api.MiB(n.Capacity.MemoryMB)
		}},
		{Header: "RUNTIMES", Cell: func(_ Printer, n api.Node) string { return strings.Join(n.Runtimes, ",") }},
		{Header: "HEARD", Cell: func(p Printer, n api.Node) string { return ago(p.Age(n.Heard)) }},
		{Header: "USED", Wide: true, Cell: func(_ Printer, n api.Node) string {
			return fmt.Sprintf("%d%% cpu, %d%% memory", n.CPUUsed, n.MemUsed)
		}},
		{Header: "BANDWIDTH", Wide: true, Cell: func(_ Printer, n api.Node) string {
			if n.BandwidthUnknown {
				return "unknown"
			}
			return fmt.Sprintf("%d/%d in, %d/%d out Mbit/s", n.Allocated.InMbit, n.Capacity.InMbit, n.Allocated.OutMbit, n.Capacity.OutMbit)
		}},
		{Header: "ARCH", Wide: true, Cell: func(_ Printer, n api.Node) string { return n.Arch }},
		{Header: "HOST", Wide: true, Cell: func(_ Printer, n api.Node) string { return n.Hostname }},
		{Header: "ADDRESS", Wide: true, Cell: func(_ Printer, n api.Node) string { return n.Address }},
		{Header: "VERSION", Wide: true, Cell: func(_ Printer, n api.Node) string { return n.Version }},
		{Header: "LABELS", Wide: true, Cell: func(_ Printer, n api.Node) string {
			return Labels(n.Labels)
		}},
		{Header: "CAPPED", Wide: true, Cell: func(_ Printer, n api.Node) string {
			var parts []string
			for _, k := range n.Capped {
				parts = append(parts, fmt.Sprintf("%s claims %s", k.What, k.Claims))
			}
			return strings.Join(parts, ", ")
		}},
		{Header: "TROUBLE", Wide: true, Cell: func(_ Printer, n api.Node) string { return n.RuntimeError }},
	},
}

// Volumes is the table of volumes that outlive their instances.
var Volumes = Table[api.VolumeStatus]{
	Kind: "volumes",
	Name: func(v api.VolumeStatus) string { return string(v.ID) },
	Columns: []Column[api.VolumeStatus]{
		{Header: "NAME", Cell: func(p Printer, v api.VolumeStatus) string { return p.Short(string(v.ID)) }},
		{Header: "TYPE", Cell: func(_ Printer, v api.VolumeStatus) string { return cmp.Or(v.Driver, api.VolumeLocal) }},
		{Header: "SIZE", Cell: func(_ Printer, v api.VolumeStatus) string { return fmt.Sprintf("%d MiB", v.SizeMB) }},
		{Header: "ACCESS", Wide: true, Cell: func(_ Printer, v api.VolumeStatus) string { return cmp.Or(v.Access, api.AccessOneWriter) }},
		{Header: "IN USE", Cell: func(_ Printer, v api.VolumeStatus) string { return map[bool]string{true: "yes", false: "no"}[v.InUse] }},
		{Header: "CLUSTER", Cell: func(_ Printer, v api.VolumeStatus) string { return string(v.Cluster) }},
		{Header: "AGE", Cell: func(p Printer, v api.VolumeStatus) string { return p.Age(v.Created) }},
	},
}

// Snapshots is the table of snapshots of CSI volumes.
var Snapshots = Table[api.VolumeSnapshot]{
	Kind: "snapshots",
	Name: func(s api.VolumeSnapshot) string { return string(s.ID) },
	Columns: []Column[api.VolumeSnapshot]{
		{Header: "NAME", Cell: func(p Printer, s api.VolumeSnapshot) string { return p.Short(string(s.ID)) }},
		{Header: "DRIVER", Cell: func(_ Printer, s api.VolumeSnapshot) string { return s.Driver }},
		{Header: "SIZE", Cell: func(_ Printer, s api.VolumeSnapshot) string { return fmt.Sprintf("%d MiB", s.SizeMB) }},
		{Header: "READY", Cell: func(_ Printer, s api.VolumeSnapshot) string {
			return map[bool]string{true: "yes", false: "no"}[s.Ready]
		}},
		{Header: "CLUSTER", Cell: func(_ Printer, s api.VolumeSnapshot) string { return string(s.Cluster) }},
		{Header: "AGE", Cell: func(p Printer, s api.VolumeSnapshot) string { return p.Age(s.Created) }},
	},
}

// Replicas is the table of the replicas of a root or cluster.
var Replicas = Table[api.Replica]{
	Kind: "replicas",
	Name: func(r api.Replica) string { return r.Name },
	Columns: []Column[api.Replica]{
		{Header: "NAME", Cell: func(_ Printer, r api.Replica) string { return r.Name }},
		{Header: "ROLE", Cell: func(_ Printer, r api.Replica) string { return cmp.Or(string(r.Role), "-") }},
		{Header: "STATE", Cell: func(_ Printer, r api.Replica) string { return string(r.State) }},
		{Header: "SINCE", Cell: func(p Printer, r api.Replica) string { return p.Age(r.Since) }},
		{Header: "VERSION", Cell: func(_ Printer, r api.Replica) string { return cmp.Or(r.Version, "-") }},
		{Header: "URL", Wide: true, Cell: func(_ Printer, r api.Replica) string { return r.URL }},
	},
}

// CustomKinds is the table of custom kinds.
var CustomKinds = Table[api.CustomKind]{
	Kind: "kinds",
	Name: func(k api.CustomKind) string { return string(k.ID) },
	Columns: []Column[api.CustomKind]{
		{Header: "NAME", Cell: func(p Printer, k api.CustomKind) string { return p.Short(string(k.ID)) }},
		{Header: "RESOURCES", Cell: func(_ Printer, k api.CustomKind) string { return strconv.Itoa(k.Resources) }},
		{Header: "CHANGED", Cell: func(p Printer, k api.CustomKind) string { return p.Age(k.Changed) }},
		{Header: "DESCRIPTION", Cell: func(_ Printer, k api.CustomKind) string { return k.Description }},
		{Header: "BY", Wide: true, Cell: func(_ Printer, k api.CustomKind) string { return k.By }},
	},
}

// CustomResources is the table of custom resources.
var CustomResources = Table[api.CustomResource]{
	Kind: "resources",
	Name: func(r api.CustomResource) string { return string(r.ID) },
	Columns: []Column[api.CustomResource]{
		{Header: "NAME", Cell: func(p Printer, r api.CustomResource) string { return p.Short(string(r.ID)) }},
		{Header: "REVISION", Cell: func(_ Printer, r api.CustomResource) string { return strconv.FormatUint(uint64(r.Revision), 10) }},
		{Header: "CHANGED", Cell: func(p Printer, r api.CustomResource) string { return p.Age(r.Changed) }},
		{Header: "SPEC", Wide: true, Cell: func(_ Printer, r api.CustomResource) string { return clipped(string(r.Spec), 80) }},
		{Header: "BY", Wide: true, Cell: func(_ Printer, r api.CustomResource) string { return r.By }},
	},
}

func clipped(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}

// Webhooks is the table of webhooks.
var Webhooks = Table[api.Webhook]{
	Kind: "webhooks",
	Name: func(w api.Webhook) string { return w.ID },
	Columns: []Column[api.Webhook]{
		{Header: "ID", Cell: func(_ Printer, w api.Webhook) string { return w.ID }},
		{Header: "TENANT", Cell: func(_ Printer, w api.Webhook) string { return string(w.Tenant) }},
		{Header: "URL", Cell: func(_ Printer, w api.Webhook) string { return w.URL }},
		{Header: "DELIVERED", Cell: func(_ Printer, w api.Webhook) string { return strconv.Itoa(w.Delivered) }},
		{Header: "DEAD", Cell: func(_ Printer, w api.Webhook) string { return strconv.Itoa(len(w.Dead) + w.Lost) }},
		{Header: "ERROR", Cell: func(_ Printer, w api.Webhook) string { return w.Error }},
		{Header: "BY", Wide: true, Cell: func(_ Printer, w api.Webhook) string { return w.By }},
		{Header: "AGE", Cell: func(p Printer, w api.Webhook) string { return p.Age(w.Created) }},
	},
}

// Addons is the table of installed addons.
var Addons = Table[api.Addon]{
	Kind: "addons",
	Name: func(a api.Addon) string { return string(a.ID) },
	Columns: []Column[api.Addon]{
		{Header: "ADDON", Cell: func(p Printer, a api.Addon) string { return p.Short(string(a.ID)) }},
		{Header: "VERSION", Cell: func(_ Printer, a api.Addon) string { return a.Version }},
		{Header: "APPLICATION", Cell: func(p Printer, a api.Addon) string { return p.Short(string(a.App)) }},
		{Header: "KINDS", Cell: func(_ Printer, a api.Addon) string { return strconv.Itoa(len(a.Kinds)) }},
		{Header: "DIGEST", Wide: true, Cell: func(_ Printer, a api.Addon) string { return a.Digest }},
		{Header: "SOURCE", Wide: true, Cell: func(_ Printer, a api.Addon) string { return a.Source }},
		{Header: "BY", Wide: true, Cell: func(_ Printer, a api.Addon) string { return a.By }},
		{Header: "AGE", Cell: func(p Printer, a api.Addon) string { return p.Age(a.Created) }},
	},
}

// Labels formats a node's labels in one line.
func Labels(labels map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, k+"="+labels[k])
	}
	return strings.Join(all, ",")
}

var Events = Table[api.Event]{
	Kind: "events",
	Columns: []Column[api.Event]{
		{Header: "TIME", Cell: func(_ Printer, e api.Event) string { return e.Time.Local().Format("2006-01-02 15:04:05") }},
		{Header: "TIER", Cell: func(_ Printer, e api.Event) string { return TierOf(e) }},
		{Header: "OBJECT", Cell: func(p Printer, e api.Event) string { return p.Short(ObjectOf(e)) }},
		{Header: "STATE", Cell: func(_ Printer, e api.Event) string { return string(e.State) }, Style: func(e api.Event) Style { return StateStyle(e.State) }},
		{Header: "REASON", Cell: func(_ Printer, e api.Event) string { return string(e.Reason) }},
		{Header: "BY", Wide: true, Cell: func(_ Printer, e api.Event) string { return e.By }},
		{Header: "SEQ", Wide: true, Cell: func(_ Printer, e api.Event) string { return strconv.FormatUint(uint64(e.Seq), 10) }},
		{Header: "EPOCH", Wide: true, Cell: func(_ Printer, e api.Event) string {
			if e.Epoch == 0 {
				return ""
			}
			return e.Epoch.String()
		}},
		{Header: "DETAIL", Cell: func(_ Printer, e api.Event) string { return e.Detail }},
	},
}

// ObjectOf returns the id of the object of an event.
func ObjectOf(e api.Event) string {
	if e.Tenant == "" {
		return e.Object
	}
	return string(e.Tenant) + "/" + e.Object
}

// TierOf returns the tier that caused an event. The root records the events of all tiers; states
// after the choice of a cluster are caused by the cluster.
func TierOf(e api.Event) string {
	if e.Tier != "root" && e.Tier != "" || e.Cluster == "" || e.Kind != "instance" {
		return e.Tier
	}
	switch e.State {
	case api.NodeScheduled, api.Created, api.Running, api.Failed, api.Completed, api.Dormant:
		return "cluster " + string(e.Cluster)
	}
	return "root"
}
