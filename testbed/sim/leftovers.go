package sim

import (
	"reflect"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// leftovers searches the stores and the memory of every core for references to instances
// after all applications were deleted. Their local volumes stay.
func (w *World) leftovers() {
	check := func(machine string, d *disk, core any, may ...string) {
		for _, doc := range d.sorted() {
			if strings.Contains(doc.Key, "#") && doc.Kind != "volume" || slices.Contains([]string{"app", "work", "instance"}, doc.Kind) {
				w.violate("leftover", machine, "the store still has %s %s", doc.Kind, doc.Key)
			}
		}
		for _, path := range mentions(core) {
			if !strings.Contains(strings.ToLower(path), "volumes") && !slices.ContainsFunc(may, func(m string) bool { return strings.HasPrefix(path, m) }) {
				w.violate("leftover", machine, "the core's %s", path)
			}
		}
	}
	check("root", w.root.proc.disk, w.root.core, "instances.network.effects.state.events", "instances.network.effects.state.clusters.clusters.desired.log") // both are bounded
	for _, c := range w.living() {
		var may []string
		if len(c.living()) < len(c.nodes) {
			may = []string{"place.nodes.observed", "place.nodes.claims", "place.nodes.leaving", "place.nodes.account.booked", "place.nodes.account.reported", "place.nodes.unknownClaims"} // instances that a silent node may still have
		}
		check(c.name, c.proc.disk, c.core, may...)
		for _, n := range c.living() {
			check(n.name, n.proc.disk, n.core)
			if n.net != nil {
				check(n.net.name, n.net.proc.disk, n.net.core)
			}
			if left := n.runtime.all(); len(left) > 0 {
				w.violate("leftover", n.name, "the runtime still has %s", left[0].Key)
			}
		}
	}
}

// mentions lists the paths within a core's state at which a string names an instance
// ("…#3"), but no volume. It reads unexported fields and changes nothing.
func mentions(core any) []string {
	var found []string
	seen := map[uintptr]bool{}
	var walk func(at *fieldOf, v reflect.Value)
	walk = func(at *fieldOf, v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			s := v.String()
			if _, err := api.ParseVolumeID(s); err != nil && strings.Contains(s, "#") {
				found = append(found, at.String()+" mentions "+s)
			}
		case reflect.Pointer:
			if !v.IsNil() && !seen[v.Pointer()] {
				seen[v.Pointer()] = true
				walk(at, v.Elem())
			}
		case reflect.Interface:
			if !v.IsNil() {
				walk(at, v.Elem())
			}
		case reflect.Struct:
			for i := range v.NumField() {
				walk(&fieldOf{at, v.Type(), i}, v.Field(i))
			}
		case reflect.Slice, reflect.Array:
			if plain(v.Type().Elem()) {
				return
			}
			for i := range v.Len() {
				walk(at, v.Index(i))
			}
		case reflect.Map:
			for it := v.MapRange(); it.Next(); {
				walk(at, it.Key())
				walk(at, it.Value())
			}
		}
	}
	walk(nil, reflect.ValueOf(core))
	slices.Sort(found)
	return slices.Compact(found)
}

// plain reports whether no value of the type can contain a string.
func plain(t reflect.Type) bool { return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Complex128 }

// fieldOf is a field and the field that contains it. The path is built only for results.
type fieldOf struct {
	outer *fieldOf
	of    reflect.Type
	field int
}

func (f *fieldOf) String() string {
	if f == nil {
		return ""
	}
	return strings.TrimPrefix(f.outer.String()+"."+f.of.Field(f.field).Name, ".")
}
