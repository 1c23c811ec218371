package output

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// fits is the constraint under which an explanation counts the candidates that fit.
const fits = "fits"

// fresh is the age up to which an answer counts as current.
const fresh = 2 * time.Second

// shownNodes limits the nodes per cluster without -o wide.
const shownNodes = 10

// shownPlacements limits the placements without -o wide.
const shownPlacements = 5

// Why prints an explanation: the root's decision about each cluster, and the decisions of clusters
// about their nodes. The counts in a line add up to its first number.
func Why(p Printer, w api.Why) error {
	var b strings.Builder
	i := w.Instance
	// An instance that was handed back still has a cluster, which may yet place it.
	placed := i.Cluster != "" && i.State != api.Requested
	state := StateOf(i)
	if i.State == api.Running && i.Reason != api.ReasonNone {
		state += "," + string(i.Reason) // otherwise it would look as if it served
	}
	fmt.Fprintf(&b, "%s  %s %s", p.Short(string(i.ID)), p.Paint(StateStyle(i.State), strings.ToUpper(state)), p.Age(i.Since))
	switch {
	case placed:
		fmt.Fprintf(&b, "   on cluster %s", i.Cluster)
		if i.Node != "" {
			fmt.Fprintf(&b, ", node %s", i.Node)
		}
	case w.Root.Considered == 0:
		b.WriteString("   no cluster has joined")
	default:
		n := w.Root.Considered - len(w.Root.Candidates)
		fmt.Fprintf(&b, "   %s (%d of %d)", verdict(n), n, w.Root.Considered)
	}
	b.WriteByte('\n')
	if i.Violated != "" {
		fmt.Fprintf(&b, "  %s\n", p.Paint(Bad, "violates its SLA there: "+Clean(i.Violated)))
	}
	for _, c := range w.Clusters {
		if s := c.Answer.Scale; s != nil && c.Cluster == i.Cluster {
			for _, line := range ScaleLines(*s) {
				fmt.Fprintf(&b, "  scale: %s\n", Clean(line))
			}
		}
	}
	if len(i.Devices) > 0 {
		fmt.Fprintf(&b, "  devices: %s\n", Clean(strings.Join(i.Devices, ", ")))
	}
	if i.Detail != "" && placed {
		fmt.Fprintf(&b, "  %s\n", Clean(i.Detail))
	}
	if until := w.SearchingUntil; !until.IsZero() {
		fmt.Fprintf(&b, "  searching until %s (in %s) for a place that meets its links to other services; then it is placed where they are violated least\n",
			until.UTC().Format("15:04:05 UTC"), Duration(max(0, until.Sub(p.Now()))))
	}
	nowhere := !placed || i.State == api.ClusterScheduled
	if nowhere || p.Format == Wide {
		candidates(&b, p, w)
	}
	if !nowhere && p.Format != Wide {
		now(&b, p, w)
	}
	if len(w.Placements) > 0 {
		placements(&b, p, w)
	}
	for k, h := range w.WouldHelp {
		lead := "  what would help: "
		if k > 0 {
			lead = "                   "
		}
		b.WriteString(lead + Clean(h) + "\n")
	}
	if !w.NextTry.IsZero() && nowhere {
		fmt.Fprintf(&b, "  next try: in %s, or as soon as there is more capacity\n", Duration(w.NextTry.Sub(p.Now())))
	}
	_, err := io.WriteString(p.Out, b.String())
	return err
}

func verdict(n int) string {
	switch n {
	case 0:
		return "no cluster can host it"
	case 1:
		return "one cluster could host it"
	}
	return "clusters that could host it"
}

// candidates prints a summary and a line for each cluster.
func candidates(b *strings.Builder, p Printer, w api.Why) {
	if w.Root.Considered > 0 {
		fmt.Fprintf(b, "  %s: %s\n", Plural(w.Root.Considered, "cluster"), causes(w.Root.Causes))
	}
	width := widest(w.Clusters, func(c api.ClusterWhy) string { return string(c.Cluster) })
	width = min(40, max(width, widest(w.Root.Candidates, func(r api.Rejection) string { return r.Candidate })))
	asked := map[string]bool{}
	for _, c := range w.Clusters {
		asked[string(c.Cluster)] = true
		clusterLine(b, p, c, width)
	}
	for _, r := range w.Root.Candidates {
		switch {
		case asked[r.Candidate]: // the cluster's own answer is more precise
		case r.Constraint == "out":
			fmt.Fprintf(b, "    %-*s  not asked: %s\n", width, Clean(r.Candidate), Clean(r.Have))
		default:
			fmt.Fprintf(b, "    %-*s  rejected at root: %s\n", width, Clean(r.Candidate), rejection(r))
		}
	}
	if len(w.Ranked) > 0 {
		fmt.Fprintf(b, "  scores now: %s\n", scores(w))
	}
	if name, r := nearest(w); r != nil {
		fmt.Fprintf(b, "  nearest miss: %s, %s\n", name, miss(*r))
	}
}

// now prints where else a placed instance could run: other clusters, and the nodes of its own
// cluster. On its own node, its resources count as used.
func now(b *strings.Builder, p Printer, w api.Why) {
	if w.Root.Considered > 0 {
		fmt.Fprintf(b, "  %s: %s\n", Plural(w.Root.Considered, "cluster"), causes(w.Root.Causes))
	}
	if len(w.Ranked) > 0 {
		fmt.Fprintf(b, "  scores now: %s\n", scores(w))
	}
	for _, c := range w.Clusters {
		if c.Cluster == w.Instance.Cluster && c.Answer.Considered > 0 {
			b.WriteString("  capacity for one more instance:\n")
			clusterLine(b, p, c, len(c.Cluster))
		}
	}
}

// shownScores limits the ranked clusters.
const shownScores = 5

// scores formats the clusters that fit, best first, and the instance's own.
func scores(w api.Why) string {
	var parts []string
	for i, r := range w.Ranked {
		here := r.Cluster == w.Instance.Cluster
		if i >= shownScores && !here {
			continue
		}
		s := fmt.Sprintf("%s %.3g", Clean(string(r.Cluster)), r.Score)
		if here {
			s += " (here)"
		}
		parts = append(parts, s)
	}
	if more := len(w.Ranked) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, " · ")
}

func clusterLine(b *strings.Builder, p Printer, c api.ClusterWhy, width int) {
	a := c.Answer
	fmt.Fprintf(b, "    %-*s  %s: %s", width, c.Cluster, Plural(a.Considered, "node"), causes(a.Causes))
	if !c.At.IsZero() && p.Now().Sub(c.At) >= fresh {
		fmt.Fprintf(b, " %s", p.Paint(Faint, "(answered "+p.Age(c.At)+" ago)"))
	}
	b.WriteByte('\n')
	rejected(b, p, 4+width+4, a.Candidates)
}

// rejected prints candidates with the constraint that excluded each; without -o wide the first
// shownNodes.
func rejected(b *strings.Builder, p Printer, indent int, all []api.Rejection) {
	shown, more := shorten(p, all, shownNodes)
	width := widest(shown, func(r api.Rejection) string { return r.Candidate })
	for _, r := range shown {
		fmt.Fprintf(b, "%*s%-*s  %s\n", indent, "", width, Clean(r.Candidate), rejection(r))
	}
	if more > 0 {
		fmt.Fprintf(b, "%*sand %d more; -o wide shows them\n", indent, "", more)
	}
}

// causes formats counts per constraint: "7 memory (need 512 MiB, best free 310 MiB) · 3 arch".
func causes(all []api.Cause) string {
	var parts []string
	for _, c := range all {
		s := fmt.Sprintf("%d %s", c.Count, Word(c.Constraint))
		if c.Detail != "" {
			s += " (" + amount(c.Constraint, c.Detail) + ")"
		}
		parts = append(parts, s)
	}
	if len(parts) == 0 {
		return "none could be asked"
	}
	return strings.Join(parts, " · ")
}

// words has the texts of constraints; other constraints are printed unchanged.
var words = map[string]string{"out": "not taking work", "avoid": "handed it back", fits: "could take it"}

// device is the prefix of constraints on devices.
const device = "device:"

// Word returns the text for a constraint; for "device:gpu" it is "gpu".
func Word(constraint string) string {
	if w := words[constraint]; w != "" {
		return w
	}
	return Clean(strings.TrimPrefix(constraint, device))
}

// amount formats an amount without the kind of device, which the name of the constraint contains.
func amount(constraint, text string) string {
	if kind, ok := strings.CutPrefix(constraint, device); ok {
		text = strings.ReplaceAll(text, " "+kind, "")
	}
	return Clean(text)
}

func rejection(r api.Rejection) string {
	var parts []string
	for _, kv := range [][2]string{{"need ", r.Need}, {"have ", r.Have}, {"short of ", r.Short}} {
		if kv[1] != "" {
			parts = append(parts, kv[0]+amount(r.Constraint, kv[1]))
		}
	}
	if r.Constraint == "out" || r.Constraint == "avoid" {
		return Word(r.Constraint) + ": " + Clean(r.Have)
	}
	if len(parts) == 0 {
		return Word(r.Constraint)
	}
	return Word(r.Constraint) + " (" + strings.Join(parts, ", ") + ")"
}

func miss(r api.Rejection) string {
	if r.Short != "" && strings.HasPrefix(strings.ToLower(Word(r.Constraint)), "vcpu") {
		return "short of " + Clean(r.Short) // the amount has the unit vCPU
	}
	if r.Short != "" {
		return "short of " + amount(r.Constraint, r.Short) + " " + Word(r.Constraint)
	}
	return rejection(r)
}

// nearest returns the candidate with the smallest shortfall: a node of a cluster that answered, or
// else a cluster. Clusters have more precise data about nodes than the root.
func nearest(w api.Why) (string, *api.Rejection) {
	var best *api.Rejection
	name := ""
	for _, c := range w.Clusters {
		if n := c.Answer.Nearest; n != nil && (best == nil || n.Shortfall < best.Shortfall) {
			best, name = n, string(c.Cluster)
			if n.Candidate != "" {
				name += "/" + Clean(n.Candidate)
			}
		}
	}
	if best == nil && w.Root.Nearest != nil {
		best, name = w.Root.Nearest, Clean(w.Root.Nearest.Candidate)
	}
	return name, best
}

func placements(b *strings.Builder, p Printer, w api.Why) {
	b.WriteString("  placements:\n")
	all := slices.Clone(w.Placements)
	slices.Reverse(all) // newest first
	shown, more := shorten(p, all, shownPlacements)
	for _, pl := range shown {
		fmt.Fprintf(b, "    %-8s %-12s %s ago", pl.Epoch, pl.Cluster, p.Age(pl.At))
		if pl.Score != 0 {
			fmt.Fprintf(b, ", score %.3g", pl.Score)
		}
		if pl.Reason != "" {
			fmt.Fprintf(b, ", left: %s", Clean(string(pl.Reason)))
		}
		b.WriteByte('\n')
	}
	if more > 0 {
		fmt.Fprintf(b, "    and %d before; -o wide shows them\n", more)
	}
}

// Plural formats a number of things: "1 node", "2 nodes".
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ScaleLines describes what scaling does with a service in one cluster.
func ScaleLines(s api.ScaleStanding) []string {
	first := fmt.Sprintf("%d of the cluster's %d instances run", s.Running, s.Assigned)
	if n := s.Awake - s.Running; n > 0 {
		first += fmt.Sprintf(", %d more are starting", n)
	}
	switch {
	case s.Awake == 0:
		first += "; the first packet, or a value that asks for one, wakes one"
	case s.Idle != nil && *s.Idle >= 1:
		first += fmt.Sprintf("; idle for %s", Duration(time.Duration(*s.Idle*float64(time.Second))))
	}
	lines := []string{first}
	for _, m := range s.Metrics {
		value, wants := "not known, which changes nothing", ""
		if m.Value != nil {
			value, wants = fmt.Sprintf("%.4g%s", *m.Value, m.Unit), fmt.Sprintf(", asks for %d", m.Wants)
		}
		lines = append(lines, fmt.Sprintf("%s is %s, the target is %.4g%s%s", m.Name, value, m.Target, m.Unit, wants))
	}
	if s.Waits != "" {
		lines = append(lines, s.Waits)
	}
	if s.Fault != "" {
		lines = append(lines, s.Fault)
	}
	if s.Why != "" {
		lines = append(lines, "last change: "+s.Why)
	}
	return lines
}

// Scale describes the scaling that an SLA asks for.
func Scale(s *api.Scale) string {
	out := fmt.Sprintf("%d to %d instances", s.Least(), s.Max)
	add := func(name string, on bool, format string, args ...any) {
		if on {
			out += ", " + name + " " + fmt.Sprintf(format, args...)
		}
	}
	add("cpu", s.CPU > 0, "%d %%", s.CPU)
	add("memory", s.Memory > 0, "%d %%", s.Memory)
	add("connections", s.Connections > 0, "%d", s.Connections)
	if g := s.Requests; g != nil {
		add("requests", true, "%d/s of %s at port %d%s", g.Target, g.Counter, g.Port, g.At())
	}
	if q := s.Prometheus; q != nil {
		add("prometheus", true, "%s / %d", q.Query, q.Target)
	}
	if s.ToZero() {
		out += fmt.Sprintf("; none after %s without a packet, the first packet wakes one", Duration(s.Idle()))
	}
	return out
}
