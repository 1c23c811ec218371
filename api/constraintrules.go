package api

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The limits of constraints' values. Integers have their limits in Fields.
const (
	maxRigidness  = 86_400 // s
	maxRoundTrip  = 60_000 // ms
	maxKilometres = 20_015 // half the circumference of the earth
	maxMbit       = 1_000_000
)

// MaxConvergence is the maximum of convergence_time, in seconds.
const MaxConvergence = 3_600

func constraintRule(c checker, at string, v *value) {
	patienceRule(c, at, v)
	kind := documented(v.get("type").text)
	known := slices.IndexFunc(constraintKinds, func(k constraintKind) bool { return k.name == kind })
	if known < 0 {
		return // the type already has a fault; the keys depend on it
	}
	keys := constraintKinds[known]
	all := slices.Concat([]string{"type"}, keys.oneOf, keys.needs, keys.may)
	for i := range v.members {
		m := &v.members[i]
		if _, field := lookup[constraintPath+"/"+m.key]; field && !slices.Contains(all, m.key) && !neutral(&m.value) {
			c.fault(at+"/"+m.key, "use a constraint of type "+strings.Join(typesWith(m.key), " or "),
				"%s does not belong to a constraint of type %s", m.key, kind)
		}
	}
	given := slices.DeleteFunc(slices.Clone(keys.oneOf), func(key string) bool { return neutral(v.get(key)) })
	switch choice := strings.Join(keys.oneOf, ", "); {
	case len(keys.oneOf) > 0 && len(given) == 0:
		c.fault(at, "give one of them", "a %s constraint needs one of %s", kind, choice)
	case len(given) > 1:
		c.fault(at+"/"+given[1], "write a constraint for each", "a %s constraint takes one of %s; it has %s, too", kind, choice, given[0])
	}
	for _, key := range keys.needs {
		if neutral(v.get(key)) && key != "threshold" {
			c.fault(at+"/"+key, "list at least one", "a %s constraint needs %s", kind, key)
		}
	}
	switch kind {
	case ConstrainDirect:
		directRule(c, at, v)
	case ConstrainGeo:
		switch {
		case !neutral(v.get("location")):
			c.threshold(at, v, kind, "km", maxKilometres)
		case len(given) == 1 && !neutral(v.get("threshold")):
			c.fault(at+"/threshold", "leave out threshold, or give a location instead", "threshold is a distance from a location and cannot be combined with %s", given[0])
		}
	case ConstrainLatency:
		c.threshold(at, v, kind, "ms", maxRoundTrip)
	}
}

// threshold refuses a threshold that is missing, 0, or above its unit's limit.
func (c checker) threshold(at string, v *value, kind, unit string, limit float64) {
	t := v.get("threshold")
	n, err := strconv.ParseFloat(cmp.Or(t.text, "0"), 64)
	switch {
	case t.kind != "" && t.kind != NumberField || err != nil || n < 0:
		return // already has a fault
	case n == 0:
		c.fault(at+"/threshold", "give a number of "+unit, "a %s constraint needs a threshold above 0", kind)
	case n > limit:
		c.fault(at+"/threshold", "at most "+strconv.FormatFloat(limit, 'f', -1, 64)+" "+unit, "threshold is %s, out of range for %s", shorten(t.text), kind)
	}
}

func directRule(c checker, at string, v *value) {
	cluster, node := v.get("cluster"), v.get("node")
	if cluster.text == "" && node.text == "" {
		c.fault(at, "give cluster, node or both", "a direct constraint needs a cluster or a node")
	}
	c.machines(at, "cluster", cluster.text)
	c.machines(at, "node", node.text)
}

func (c checker) machines(at, key, list string) {
	if strings.TrimSpace(list) == "" {
		return
	}
	for name := range strings.SplitSeq(list, ";") {
		if name = strings.TrimSpace(name); !ValidMachineName(strings.ToLower(name)) {
			c.fault(at+"/"+key, "at most 63 letters, digits and inner hyphens", "%s cannot be %q", key, shorten(name))
		}
	}
}

const fixLocation = "degrees with their direction: 48.14N,11.58E; or as in Oakestra longitude before latitude: 11.58,48.14"

func locationRule(c checker, at string, v *value) {
	if _, err := ParseLocation(v.text); err != nil && v.text != "" {
		c.fault(at, fixLocation, "%s", unkinded(err))
	}
}

// polygonRule refuses a polygon without an area, or whose inside is ambiguous.
func polygonRule(c checker, at string, v *value) {
	if len(v.items) == 0 || len(v.items) > lookup[constraintPath+"/polygon"].Max {
		return
	}
	if len(v.items) < 3 {
		c.fault(at, "give at least 3; the last is joined to the first", "polygon has %d corners", len(v.items))
		return
	}
	var corners []Geo
	for i := range v.items {
		text := v.items[i].text
		if v.items[i].kind != StringField {
			continue // already has a fault
		}
		g, err := ParseLocation(text)
		if err == nil && !explicit(text) {
			c.fault(at+"/"+itoa(i), "write it with its directions: 48.14N,11.58E", "%q does not say which number is the latitude", shorten(text))
			continue
		}
		if err != nil {
			c.fault(at+"/"+itoa(i), "degrees with their direction: 48.14N,11.58E", "%s", unkinded(err))
			continue
		}
		corners = append(corners, g)
	}
	if len(corners) < len(v.items) {
		return
	}
	// Each side goes the shorter way around the earth: sum up the differences of longitude.
	lon, west, east, area := corners[0].Lon, corners[0].Lon, corners[0].Lon, 0.0
	for i, g := range corners {
		next := corners[(i+1)%len(corners)]
		step := math.Remainder(next.Lon-g.Lon, 360)
		area += step * (next.Lat + g.Lat) / 2
		lon += step
		west, east = min(west, lon), max(east, lon)
	}
	switch {
	case east-west >= 180 || math.Abs(lon-corners[0].Lon) > 1:
		c.fault(at, "use several services, or an area", "polygon spans 180 degrees of longitude or more, or a pole, so that its inside is ambiguous")
	case math.Abs(area) < 1e-9:
		c.fault(at, "give corners that are not on one line", "polygon has no area")
	}
}

func targetRule(c checker, at string, v *value) {
	if _, _, err := ParseTarget(v.text); err != nil && v.text != "" {
		c.fault(at, "a host name or an address, with :port where it is to be connected to: example.org:443", "%q is not a target", shorten(v.text))
	}
}

// narrowingRule refuses constraints that together exclude every cluster, node or label, and
// two limits for the same spread.
func narrowingRule(c checker, at string, v *value) {
	var clusters, nodes map[string]bool // nil: all
	var labels []string
	spreads := map[string]int{} // by what they count
	for i := range v.items {
		k := &v.items[i]
		if k.get("type").text == ConstrainSpread {
			by := cmp.Or(k.get("by").text, "node")
			if first, twice := spreads[by]; twice {
				c.fault(at+"/"+itoa(i), "keep one of them", "it is spread per %s already, at %s/%d", shorten(by), at, first)
			} else {
				spreads[by] = i
			}
		}
		clusters = narrow(clusters, texts(k.get("allowed")))
		clusters = narrow(clusters, split(strings.ToLower(k.get("cluster").text)))
		nodes = narrow(nodes, split(strings.ToLower(k.get("node").text)))
		labels = append(labels, texts(k.get("labels"))...)
	}
	none := func(kind string, left map[string]bool) {
		if left != nil && len(left) == 0 {
			c.fault(at, "leave one of them out", "the constraints together allow no %s", kind)
		}
	}
	none("cluster", clusters)
	none("node", nodes)
	if a, b := contradiction(labels); a != "" {
		c.fault(at, "leave one of them out", "no node's labels are both %q and %q", shorten(a), shorten(b))
	}
}

// contradiction returns two selectors that no labels can both match, or "".
func contradiction(selectors []string) (string, string) {
	is, has, hasNot, not := map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}
	for _, s := range selectors {
		key, value, equal := strings.Cut(s, "=")
		switch {
		case equal && strings.HasSuffix(key, "!"):
			not[strings.TrimSuffix(key, "!")+"="+value] = s
		case equal:
			if other, ok := is[key]; ok && other != s {
				return other, s
			}
			is[key], has[key] = s, s
		case strings.HasPrefix(key, "!"):
			hasNot[key[1:]] = s
		default:
			has[key] = cmp.Or(has[key], s)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(has)) {
		if hasNot[key] != "" {
			return has[key], hasNot[key]
		}
		if s := is[key]; not[s] != "" {
			return s, not[s]
		}
	}
	return "", ""
}

func narrow(set map[string]bool, names []string) map[string]bool {
	if len(names) == 0 {
		return set
	}
	both := map[string]bool{}
	for _, n := range names {
		if set == nil || set[n] {
			both[n] = true
		}
	}
	return both
}

func split(list string) []string {
	var out []string
	for name := range strings.SplitSeq(list, ";") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}

func texts(v *value) []string {
	var out []string
	for i := range v.items {
		out = append(out, v.items[i].text)
	}
	return out
}
