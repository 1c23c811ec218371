package command

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/output"
)

func constraint(k api.Constraint) string {
	parts := []string{k.Type}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	for _, s := range []string{k.Cluster, k.Node, strings.Join(k.Allowed, ","), strings.Join(k.Needs, ","), strings.Join(k.Labels, ","), strings.Join(k.Services, ",")} {
		if s != "" {
			add("%s", s)
		}
	}
	switch k.Type {
	case api.ConstrainGeo:
		switch {
		case k.Area != "":
			add("in %s", k.Area)
		case k.Location != "":
			add("at most %g km from %s", k.Threshold, k.Location)
		default:
			add("within %s", strings.Join(k.Polygon, " "))
		}
	case api.ConstrainLatency:
		add("at most %g ms to %s", k.Threshold, k.Area+k.Service+k.Target) // only one of them is set
	case api.ConstrainSpread:
		add("at most %d", max(k.Limit, 1))
	}
	if k.Type == api.ConstrainSpread || k.Type == api.ConstrainAntiAffinity {
		add("per %s", cmp.Or(k.By, "node"))
	}
	return strings.Join(parts, " ") + patience(k.Rigidness, k.Share, k.ConvergenceTime)
}

func link(l api.Connectivity) string {
	formats := map[string]string{api.LinkLatency: "at most %g ms", api.LinkGeo: "at most %g km", api.LinkBandwidth: "%g Mbit/s"}
	var needs []string
	for _, k := range l.Constraints {
		needs = append(needs, fmt.Sprintf(formats[k.Type], k.Threshold)+patience(k.Rigidness, k.Share, k.ConvergenceTime))
	}
	return "to " + l.Target + ": " + strings.Join(needs, ", ")
}

// patience formats the tolerance and the convergence time; empty: defaults.
func patience(rigidness, share, convergence float64) string {
	s := ""
	switch {
	case share > 0:
		s += fmt.Sprintf(", met in %g %% of checks", share*100)
	case rigidness > 0:
		s += fmt.Sprintf(", violated for at most %g s", rigidness)
	}
	if convergence > 0 {
		s += fmt.Sprintf(", placed within %g s", convergence)
	}
	return s
}

// features formats features of SLAs.
func features(all []string) string {
	texts := make([]string, len(all))
	for i, f := range all {
		texts[i] = api.FeatureText(f)
	}
	return strings.Join(texts, ", ")
}

// healthLines describes the health checks of a service.
func healthLines(h *api.Health) (out []string) {
	if h == nil {
		return nil
	}
	if h.None {
		return []string{"no checks, not even that of the image"}
	}
	for _, k := range []struct {
		kind  api.CheckKind
		check *api.Check
	}{{api.CheckStartup, h.Startup}, {api.CheckReadiness, h.Readiness}, {api.CheckLiveness, h.Liveness}} {
		if k.check == nil {
			continue
		}
		c := k.check.WithDefaults(k.kind)
		s := fmt.Sprintf("%s by %s every %d s, within %d s; %d in a row fail it", k.kind, c, c.Interval, c.Timeout, c.Failures)
		if c.InitialDelay > 0 {
			s += fmt.Sprintf(", after %d s", c.InitialDelay)
		}
		if c.Successes > 1 {
			s += fmt.Sprintf(", %d in a row pass it", c.Successes)
		}
		out = append(out, s)
	}
	return out
}

// slot formats the capacity of one kind of node of a cluster.
func slot(s api.Slot) string {
	out := fmt.Sprintf("%s on %s, %d nodes, free %s, most on one %s", s.Runtime, s.Arch, s.Nodes, s.Free, s.Largest)
	for _, d := range s.Devices {
		out += fmt.Sprintf("; %d %s free, %d on one", d.Free, d.Name, d.Largest)
	}
	if len(s.Areas) > 0 {
		out += "; in " + strings.Join(s.Areas, ", ")
	}
	if len(s.Addons) > 0 {
		out += "; with " + strings.Join(s.Addons, ", ")
	}
	if len(s.Features) > 0 {
		out += "; supports " + features(s.Features)
	}
	return out
}

// region formats the area of a cluster's nodes; empty: the cluster does not report it.
func region(a api.Aggregate) string {
	if len(a.Hull) == 0 {
		return ""
	}
	corners := make([]string, len(a.Hull))
	for i, g := range a.Hull {
		corners[i] = g.String()
	}
	s := "within " + strings.Join(corners, " ")
	if a.Unplaced > 0 {
		s += fmt.Sprintf(", and %s without a location", output.Plural(a.Unplaced, "node"))
	}
	return s
}

func spread(s *api.CoordSpread) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%d nodes within %.1f ms of %s", s.Nodes, s.Radius.Seconds()*1e3, coordinate(&s.Center))
}

func device(d api.NodeDevice) string {
	s := d.ID + " (" + strings.Join(d.Kinds, ", ") + ")"
	if d.Model != "" {
		s += " " + d.Model
	}
	return s
}

// coordinate formats a coordinate of the latency space, in milliseconds.
func coordinate(c *api.Coordinate) string {
	if c == nil {
		return ""
	}
	parts := make([]string, len(c.Vec))
	for i, v := range c.Vec {
		parts[i] = fmt.Sprintf("%.1f", v*1e3)
	}
	return fmt.Sprintf("(%s) ms, height %.2f ms, error %.0f %%", strings.Join(parts, " "), c.Height*1e3, c.Error*100)
}
