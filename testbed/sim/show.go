package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

func (c *Console) show(args []string) (string, error) {
	what := strings.Join(args, " ")
	var b strings.Builder
	switch word, name, _ := strings.Cut(what, " "); word {
	case "instances":
		c.showInstances(&b)
	case "workloads":
		for _, m := range c.w.clusters {
			for _, n := range m.nodes {
				for _, v := range n.runtime.all() {
					fmt.Fprintf(&b, "%s  %s  %s\n", n.name, key(v.Key), v.phase)
				}
			}
		}
	case "nodes":
		for _, m := range c.w.clusters {
			for _, n := range m.core.Nodes() {
				fmt.Fprintf(&b, "%s/%s  %s  %s of %s\n", m.name, n.ID, n.Status, n.Allocated, n.Capacity)
			}
		}
	case "clusters":
		for _, k := range c.w.root.core.Clusters() {
			fmt.Fprintf(&b, "%s  %s  %d instances  free %s on %d nodes\n", k.ID, k.Status, k.Instances, k.Aggregate.Free, k.Aggregate.Nodes)
		}
	case "calls":
		for _, k := range c.calls {
			fmt.Fprintf(&b, "%s  %s\n", k.service.ID, k.standing())
		}
	case "why":
		return c.showWhy(name)
	case "moves":
		service, number, _ := strings.Cut(name, "#")
		n, err := strconv.Atoi(number)
		if err != nil {
			return "", err
		}
		for _, m := range c.w.clusters {
			fmt.Fprintf(&b, "%s  %d in the last hour\n", m.name, c.w.moves.inHour(moved{serviceID(service).Instance(n), m.id}, c.w.now))
		}
	case "desired":
		n, err := c.w.machine(name)
		if err != nil {
			return "", err
		}
		for _, in := range n.core.Instances() {
			if !in.Leaving {
				fmt.Fprintf(&b, "%s@%s\n", string(in.ID), in.Epoch)
			}
		}
	default:
		return "", fmt.Errorf("show %q: want instances, workloads, nodes, clusters, calls, why, desired or moves: %w", what, api.ErrInvalid)
	}
	if b.Len() == 0 {
		return "none\n", nil
	}
	return b.String(), nil
}

func (c *Console) showInstances(b *strings.Builder) {
	for _, in := range c.w.root.core.Instances("") {
		at := string(in.Cluster)
		if m := c.w.cluster(in.Cluster); m != nil {
			if i, ok := m.core.Instance(in.ID); ok && i.Node != "" {
				at += "/" + string(i.Node)
			}
		}
		if at == "" {
			at = "–"
		}
		fmt.Fprintf(b, "%s  %s  %s  epoch %s", in.ID, in.State, at, in.Epoch)
		if in.Reason != "" {
			fmt.Fprintf(b, "  %s", in.Reason)
		}
		if in.Leaving {
			b.WriteString("  leaving")
		}
		if in.Violated != "" {
			b.WriteString("  breaks " + in.Violated)
		}
		if in.Stale {
			b.WriteString("  stale")
		}
		b.WriteByte('\n')
	}
}

func (c *Console) showWhy(name string) (string, error) {
	service, number, _ := strings.Cut(name, "#")
	n, err := strconv.Atoi(number)
	if err != nil {
		return "", err
	}
	id := serviceID(service).Instance(n)
	why, ok := c.w.root.core.Why(id, c.w.root.proc.clock.at(c.w.now))
	if !ok {
		return "", fmt.Errorf("instance %s: %w", id, api.ErrNotFound)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", why.Summary)
	explain := func(who string, ex api.Explanation) {
		fmt.Fprintf(&b, "%s: %d considered\n", who, ex.Considered)
		for _, k := range ex.Causes {
			fmt.Fprintf(&b, "  %d %s %s\n", k.Count, k.Constraint, k.Detail)
		}
	}
	explain("root", why.Root)
	for _, k := range why.Clusters {
		explain(string(k.Cluster), k.Answer)
	}
	return b.String(), nil
}

// trace returns the new lines since the last trace that contain one of the words.
func (c *Console) trace(words []string) string {
	var b strings.Builder
	lines := c.w.story.lines[c.seen:]
	c.seen = len(c.w.story.lines)
	for _, l := range lines {
		s := l.String()
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) }) {
			b.WriteString(strings.TrimSpace(s) + "\n")
		}
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}
