package output

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// shownPlans limits the instances per application without -o wide.
const shownPlans = 20

// stay is the action of an instance that does not change.
const stay = "stay"

// Plan prints a plan: per application the changes, where each instance would be placed and what
// would be left there, why instances would wait, and the age of the clusters' answers.
func Plan(p Printer, plan api.Plan) error {
	var b strings.Builder
	for i, a := range plan.Apps {
		if i > 0 {
			b.WriteByte('\n')
		}
		appPlan(&b, p, a)
	}
	if len(plan.Clusters) > 0 {
		b.WriteString("\nanswers of clusters, which reserve nothing for the plan:\n")
		width := widest(plan.Clusters, func(c api.ClusterView) string { return string(c.Cluster) })
		for _, c := range plan.Clusters {
			fmt.Fprintf(&b, "  %-*s  %s\n", width, Clean(string(c.Cluster)), view(c))
		}
	}
	_, err := io.WriteString(p.Out, b.String())
	return err
}

// Changes reports whether a plan has changes.
func Changes(plan api.Plan) bool {
	return slices.ContainsFunc(plan.Apps, func(a api.AppPlan) bool { return a.Action != "none" })
}

// verbs are the texts for the actions of applications.
var verbs = map[string]string{"create": "would be created", "update": "would be changed", "none": "would not change"}

func appPlan(b *strings.Builder, p Printer, a api.AppPlan) {
	fmt.Fprintf(b, "%s  %s", p.Short(string(a.ID)), cmp.Or(verbs[a.Action], Clean(a.Action)))
	if a.Revision > 0 {
		fmt.Fprintf(b, " (revision %d)", a.Revision)
	}
	b.WriteByte('\n')
	width := min(widest(a.Changes, func(c api.FieldChange) string { return c.Path }), 60)
	for _, c := range a.Changes {
		change(b, p, c, width)
	}
	for _, s := range a.Schedules {
		fmt.Fprintf(b, "  %s runs at %s\n", p.Short(Clean(string(s.Service))), Clean(NextRuns(s.Cron, s.Times)))
	}
	for _, s := range a.Scaling {
		scalingNow(b, p, s)
	}
	var moving, waiting []api.InstancePlan
	stays := 0
	for _, i := range a.Instances {
		if i.Action == stay {
			stays++
			continue
		}
		if moving = append(moving, i); i.Why != nil {
			waiting = append(waiting, i)
		}
	}
	if stays > 0 && len(moving) == 0 && len(a.Changes) == 0 {
		fmt.Fprintf(b, "  %s unchanged\n", Plural(stays, "instance"))
		return
	}
	if len(moving) > 0 {
		b.WriteByte('\n')
		shown, more := shorten(p, moving, shownPlans)
		table := p
		table.Out = b
		_ = NewRows(table, Plans).Add(shown...)
		if more > 0 {
			fmt.Fprintf(b, "and %d more; -o wide shows them\n", more)
		}
		for _, i := range shown {
			preempted(b, p, i)
		}
		for _, i := range shown {
			if i.After > 0 {
				fmt.Fprintf(b, "  no place meets the links of %s now: it would be placed after at most %s, where they are violated least\n", p.Short(string(i.ID)), seconds(i.After))
			}
		}
	}
	if stays > 0 {
		fmt.Fprintf(b, "and %s unchanged\n", Plural(stays, "instance"))
	}
	for _, r := range a.RollOuts {
		fmt.Fprintf(b, "  roll-out of %s: %s\n", p.Short(Clean(string(r.Service))), Clean(r.Policy))
	}
	obstacles(b, p, waiting)
}

// scalingNow prints what scaling does with a service before the change.
func scalingNow(b *strings.Builder, p Printer, s api.ScalingNow) {
	lines := []string{"not known, the cluster does not say"}
	if s.Now != nil {
		lines = ScaleLines(*s.Now)
	}
	fmt.Fprintf(b, "  scaling of %s in %s now: %s\n", p.Short(Clean(string(s.Service))), Clean(string(s.Cluster)), Clean(lines[0]))
	for _, line := range lines[1:] {
		fmt.Fprintf(b, "    %s\n", Clean(line))
	}
}

// NextRuns formats an expression of cron with its next times.
func NextRuns(expression string, times []time.Time) string {
	if len(times) == 0 {
		return expression + ", which is suspended"
	}
	var next []string
	for _, t := range times {
		next = append(next, t.UTC().Format("2006-01-02 15:04 UTC"))
	}
	return expression + ", next " + strings.Join(next, ", ")
}

// preempted prints the instances that would be evicted for an instance.
func preempted(b *strings.Builder, p Printer, i api.InstancePlan) {
	var who []string
	for _, id := range i.Preempted {
		who = append(who, p.Short(Clean(string(id))))
	}
	if i.Others > 0 {
		who = append(who, Plural(i.Others, "instance")+" of others")
	}
	if len(who) > 0 {
		fmt.Fprintf(b, "  would be preempted for %s: %s\n", p.Short(string(i.ID)), strings.Join(who, ", "))
	}
}

// seconds formats a number of seconds.
func seconds(s float64) string { return strconv.FormatFloat(s, 'g', 4, 64) + " s" }

func change(b *strings.Builder, p Printer, c api.FieldChange, width int) {
	path, before, after := Clean(c.Path), Clean(c.Old), Clean(c.New)
	service := strings.Contains(path, ".") && !strings.Contains(path, "/")
	switch {
	case service && after == "":
		fmt.Fprintf(b, "  %s\n", p.Paint(Bad, "- "+path))
	case service:
		fmt.Fprintf(b, "  %s\n", p.Paint(Good, "+ "+path))
	case before == "":
		fmt.Fprintf(b, "  %s  %s\n", p.Paint(Good, fmt.Sprintf("+ %-*s", width, path)), after)
	case after == "":
		fmt.Fprintf(b, "  %s  %s\n", p.Paint(Bad, fmt.Sprintf("- %-*s", width, path)), before)
	default:
		fmt.Fprintf(b, "  %s  %s → %s\n", p.Paint(Busy, fmt.Sprintf("~ %-*s", width, path)), before, after)
	}
}

var Plans = Table[api.InstancePlan]{
	Kind: "instances",
	Name: func(i api.InstancePlan) string { return string(i.ID) },
	Columns: []Column[api.InstancePlan]{
		{Header: "INSTANCE", Cell: func(p Printer, i api.InstancePlan) string { return p.Short(string(i.ID)) }},
		{Header: "WOULD", Cell: func(_ Printer, i api.InstancePlan) string { return would(i) }, Style: func(i api.InstancePlan) Style {
			return map[string]Style{"place": Good, "replace": Busy, "stop": Faint, "wait": Bad}[i.Action]
		}},
		{Header: "PLACE", Cell: func(_ Printer, i api.InstancePlan) string {
			switch {
			case i.Action == "wait":
				return "" // same cluster as the row above
			case i.Node != "":
				return string(i.Cluster) + "/" + string(i.Node)
			}
			return string(i.Cluster)
		}},
		{Header: "SCORE", Wide: true, Cell: func(_ Printer, i api.InstancePlan) string {
			if i.Score == 0 {
				return ""
			}
			return fmt.Sprintf("%.3g", i.Score)
		}},
		{Header: "LEFT THERE", Cell: func(_ Printer, i api.InstancePlan) string { return strings.Join(i.Headroom, " · ") }},
	},
}

func would(i api.InstancePlan) string {
	what := map[string]string{"place": "be placed", "replace": "be replaced"}[i.Action]
	switch {
	case i.Preempts:
		return "preempt others"
	case what != "" && i.After > 0:
		return what + " after at most " + seconds(i.After)
	}
	return cmp.Or(what, i.Action)
}

// obstacles prints why instances would wait, once for all instances with the same explanation.
func obstacles(b *strings.Builder, p Printer, waiting []api.InstancePlan) {
	var order []string
	first, count := map[string]string{}, map[string]int{}
	for _, i := range waiting {
		text := obstacle(p, i)
		if count[text]++; count[text] == 1 {
			first[text] = p.Short(string(i.ID))
			order = append(order, text)
		}
	}
	for _, text := range order {
		fmt.Fprintf(b, "\n%s would wait", first[text])
		if more := count[text] - 1; more > 0 {
			fmt.Fprintf(b, ", and %d more for the same reason", more)
		}
		b.WriteString("\n" + text)
	}
}

// obstacle summarizes an explanation, which is about clusters, or about the nodes of the cluster
// that was asked last.
func obstacle(p Printer, i api.InstancePlan) string {
	what, within, none := "cluster", "", "no cluster has joined"
	if i.Cluster != "" {
		cluster := Clean(string(i.Cluster))
		what, within, none = "node", " of "+cluster, cluster+" has no nodes"
	}
	var b strings.Builder
	if i.Why.Considered == 0 {
		return "  " + none + "\n"
	}
	fmt.Fprintf(&b, "  %s%s: %s\n", Plural(i.Why.Considered, what), within, causes(i.Why.Causes))
	rejected(&b, p, 4, i.Why.Candidates)
	if n := i.Why.Nearest; n != nil {
		fmt.Fprintf(&b, "  nearest miss: %s\n", strings.TrimPrefix(Clean(n.Candidate)+", "+miss(*n), ", "))
	}
	return b.String()
}

// view formats the age of a cluster's answer.
func view(c api.ClusterView) string {
	known := "the root's aggregate is " + Duration(time.Duration(c.Age*float64(time.Second))) + " old"
	switch {
	case c.Asked:
		return "answered now; " + known
	case c.Error != "":
		return "did not answer: " + Clean(c.Error) + "; " + known
	}
	return "not asked; " + known
}
