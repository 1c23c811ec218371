package api

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Documents have Oakestra's units: bandwidth in kbit/s, rigidness as a share, longitude before
// latitude. Strings with units are Treeline's addition. Stores and messages have Mbit/s, seconds,
// and latitude before longitude. convert translates a document when it is parsed.

// shareWindow is the time over which Share is measured.
const shareWindow = 5 * time.Minute

const (
	bandwidthText = `^[0-9]{1,9}(?:\.[0-9]{1,3})?[kMG]bit$`
	durationPart  = `[0-9]{1,8}(?:ms|s|m|h)`
	digitsText    = `^[0-9]{1,5}$`
)

// mbit returns the bandwidth in a document, a number of kbit/s or a string with its unit, in
// Mbit/s, rounded up.
func mbit(v *value) (n int64, ok bool) {
	text, unit := v.text, 1e3
	if v.kind == StringField {
		i := len(text) - len("kbit")
		if i < 1 {
			return 0, false
		}
		unit = map[string]float64{"kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}[text[i:]]
		text = text[:i]
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || unit == 0 || x < 0 {
		return 0, false
	}
	up := math.Ceil(x*unit/1e6 - 1e-9)
	return int64(up), up <= maxMbit
}

// ParseLocation parses a location of an SLA: "48.14N,11.58E" in either order, or, as in Oakestra,
// "11.58,48.14" with the longitude first. Anything else is ErrInvalid. ParseGeo parses locations in
// configurations and messages.
func ParseLocation(text string) (Geo, error) {
	a, b, two := strings.Cut(strings.ReplaceAll(text, ";", ","), ",")
	if !two {
		return Geo{}, fmt.Errorf("%q is not a location: %w", shorten(text), ErrInvalid)
	}
	x, xAxis := degrees(a)
	y, yAxis := degrees(b)
	var g Geo
	switch {
	case xAxis == "lat" && yAxis == "lon":
		g = Geo{Lat: x, Lon: y}
	case xAxis == "lon" && yAxis == "lat", xAxis == "" && yAxis == "":
		g = Geo{Lat: y, Lon: x}
	default:
		return Geo{}, fmt.Errorf("%q is not a location: %w", shorten(text), ErrInvalid)
	}
	if !g.Valid() {
		return Geo{}, fmt.Errorf("%q: latitude %g, longitude %g: want -90 to 90 and -180 to 180: %w", shorten(text), g.Lat, g.Lon, ErrInvalid)
	}
	return g, nil
}

// degrees parses "48.14N" or "48.14". It returns NaN for anything else.
func degrees(text string) (n float64, axis string) {
	text = strings.TrimSpace(text)
	sign := 1.0
	if text != "" {
		last := text[len(text)-1]
		switch last {
		case 'N', 'S':
			axis = "lat"
		case 'E', 'W':
			axis = "lon"
		}
		if last == 'S' || last == 'W' {
			sign = -1
		}
		if axis != "" {
			text = strings.TrimSpace(text[:len(text)-1])
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || axis != "" && n < 0 {
		return math.NaN(), axis
	}
	return sign * n, axis
}

// explicit reports whether a location contains the letters of its axes.
func explicit(text string) bool { return strings.ContainsAny(text, "NSEW") }

// convert changes the units of a valid document to those of the Go types, and reports whether it
// changed any value.
func convert(root *value) (changed bool) {
	apps := root.get("applications")
	for i := range apps.items {
		services := apps.items[i].get("microservices")
		for k := range services.items {
			changed = convertService(&services.items[k]) || changed
		}
	}
	return changed
}

func convertService(s *value) (changed bool) {
	for _, name := range []string{"bandwidth_in", "bandwidth_out"} {
		changed = convertMbit(s.get(name)) || changed
	}
	if alias := *s.get("vcpu"); alias.kind != "" {
		s.drop("vcpu")
		s.drop("vcpus") // null
		s.members, changed = append(s.members, member{key: "vcpus", value: alias}), true
	}
	volumes := s.get("volumes")
	for i := range volumes.items {
		if v := &volumes.items[i]; v.ofCSI() && v.get("size").kind == "" {
			v.members, changed = append(v.members, member{key: "size", value: value{kind: NumberField, text: defaultCSIVolumeMB}}), true
		}
	}
	if added := s.get("added_files"); len(added.items) > 0 && idle(added) {
		added.items, changed = nil, true
	}
	constraints := s.get("constraints")
	for i := range constraints.items {
		k := &constraints.items[i]
		changed = convertPatience(k) || changed
		changed = convertLocation(k.get("location")) || changed
		corners := k.get("polygon")
		for n := range corners.items {
			changed = convertLocation(&corners.items[n]) || changed
		}
	}
	links := s.get("connectivity")
	for i := range links.items {
		bounds := links.items[i].get("con_constraints")
		for n := range bounds.items {
			b := &bounds.items[n]
			changed = convertPatience(b) || changed
			if b.get("type").text == LinkBandwidth {
				changed = convertMbit(b.get("threshold")) || changed
			}
		}
	}
	ranges := s.get("addresses").get("instances")
	for i := range ranges.items {
		for _, name := range []string{"from", "to"} {
			if v := ranges.items[i].get(name); v.kind == StringField {
				n, _ := strconv.Atoi(v.text) // the text was checked
				*v, changed = value{kind: NumberField, text: itoa(n)}, true
			}
		}
	}
	return changed
}

func convertMbit(v *value) bool {
	n, ok := mbit(v)
	if v.kind == "" || !ok || n == 0 && v.kind == NumberField {
		return false
	}
	*v = value{kind: NumberField, text: strconv.FormatInt(n, 10)}
	return true
}

func convertLocation(v *value) bool {
	g, err := ParseLocation(v.text)
	if v.kind != StringField || err != nil {
		return false
	}
	v.text = g.String()
	return true
}

// convertPatience replaces rigidness (a share) or tolerate (a duration) by rigidness in seconds. It
// keeps the share in the member share.
func convertPatience(k *value) bool {
	var seconds float64
	share := k.get("rigidness").text
	switch r, _ := strconv.ParseFloat(share, 64); {
	case k.get("tolerate").text != "":
		d, _ := time.ParseDuration(k.get("tolerate").text) // checked
		seconds, share = d.Seconds(), ""
	case r > 0:
		// At least 1 ms, because 0 means the default.
		seconds = max(math.Round((1-r)*shareWindow.Seconds()*1000)/1000, 0.001)
	default:
		return false
	}
	kept := k.members[:0]
	for _, m := range k.members {
		if m.key != "rigidness" && m.key != "tolerate" {
			kept = append(kept, m)
		}
	}
	k.members = append(kept, member{"rigidness", value{kind: NumberField, text: strconv.FormatFloat(seconds, 'f', -1, 64)}})
	if share != "" {
		k.members = append(k.members, member{"share", value{kind: NumberField, text: share}})
	}
	return true
}

// plain returns the value for encoding with package json.
func (v *value) plain() any {
	switch v.kind {
	case StringField:
		return v.text
	case NumberField:
		return json.Number(v.text)
	case BooleanField:
		return v.truth
	case ArrayField:
		items := make([]any, len(v.items))
		for i := range v.items {
			items[i] = v.items[i].plain()
		}
		return items
	case ObjectField:
		members := make(map[string]any, len(v.members))
		for i := range v.members {
			members[v.members[i].key] = v.members[i].plain()
		}
		return members
	}
	return nil
}

func patienceRule(c checker, at string, v *value) {
	if t := v.get("tolerate"); t.text != "" {
		if !neutral(v.get("rigidness")) {
			c.fault(at+"/tolerate", "leave one of them out", "tolerate and rigidness cannot be combined")
		}
		d, err := time.ParseDuration(t.text)
		if err == nil && (d < time.Millisecond || d > maxRigidness*time.Second) {
			c.fault(at+"/tolerate", "1ms to 24h", "tolerate is %s, out of range", shorten(t.text))
		}
	}
}

func mbitRule(c checker, at string, v *value) {
	if _, ok := mbit(v); !ok && v.kind == StringField && patterns[bandwidthText].MatchString(v.text) {
		c.fault(at, "at most 1000Gbit", "%s is out of range", shorten(v.text))
	}
}
