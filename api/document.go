package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Document returns the SLA, as JSON, that ParseSLA parses to the application: units are explicit, because
// those of the Go types are not those of documents. It is for editing an application that exists.
func (a Application) Document() ([]byte, error) {
	text, err := json.Marshal(SLA{Version: "v2.0", Applications: []Application{a}})
	if err != nil {
		return nil, fmt.Errorf("encode an application: %w", err)
	}
	root, err := readTree(text)
	if err != nil {
		return nil, err
	}
	services := root.get("applications").items[0].get("microservices")
	for i := range services.items {
		express(&services.items[i])
	}
	if text, err = json.Marshal(root.plain()); err != nil {
		return nil, fmt.Errorf("encode an SLA: %w", err)
	}
	return text, nil
}

// express reverses convertService, and leaves out what complete derives from completions.
func express(s *value) {
	if s.get("completions").text != "" {
		s.drop("replicas")
	}
	for _, name := range []string{"bandwidth_in", "bandwidth_out"} {
		expressMbit(s.get(name))
	}
	constraints := s.get("constraints")
	for i := range constraints.items {
		k := &constraints.items[i]
		expressPatience(k)
		expressLocation(k.get("location"))
		corners := k.get("polygon")
		for n := range corners.items {
			expressLocation(&corners.items[n])
		}
	}
	links := s.get("connectivity")
	for i := range links.items {
		bounds := links.items[i].get("con_constraints")
		for n := range bounds.items {
			expressPatience(&bounds.items[n])
			if bounds.items[n].get("type").text == LinkBandwidth {
				expressMbit(bounds.items[n].get("threshold"))
			}
		}
	}
}

func expressMbit(v *value) {
	if v.kind == NumberField && v.text != "0" {
		*v = value{kind: StringField, text: v.text + "Mbit"}
	}
}

func expressLocation(v *value) {
	g, err := ParseGeo(v.text)
	if v.kind != StringField || err != nil {
		return
	}
	axis := func(x float64, positive, negative string) string {
		if x < 0 {
			return strconv.FormatFloat(-x, 'f', -1, 64) + negative
		}
		return strconv.FormatFloat(x, 'f', -1, 64) + positive
	}
	v.text = axis(g.Lat, "N", "S") + "," + axis(g.Lon, "E", "W")
}

func expressPatience(k *value) {
	seconds, share := k.get("rigidness").text, k.get("share").text
	if seconds == "" {
		return
	}
	k.drop("rigidness")
	k.drop("share")
	if share != "" {
		k.members = append(k.members, member{"rigidness", value{kind: NumberField, text: share}})
		return
	}
	n, _ := strconv.ParseFloat(seconds, 64) // of a Go number
	text := strconv.FormatInt(int64(n*1000+0.5), 10) + "ms"
	if n == float64(int64(n)) {
		text = strconv.FormatInt(int64(n), 10) + "s"
	}
	k.members = append(k.members, member{"tolerate", value{kind: StringField, text: text}})
}

func (v *value) drop(key string) {
	v.members = slices.DeleteFunc(v.members, func(m member) bool { return m.key == key })
}
