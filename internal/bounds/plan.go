package bounds

import (
	"reflect"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// messages are the types that Apply accepts.
var messages = []reflect.Type{
	reflect.TypeFor[wire.NodeReport](), reflect.TypeFor[api.NodeInfo](), reflect.TypeFor[wire.Alive](),
	reflect.TypeFor[wire.NetUp](), reflect.TypeFor[wire.Probed](), reflect.TypeFor[wire.NodePurging](), reflect.TypeFor[wire.WantValue](), reflect.TypeFor[wire.WantVolume](), reflect.TypeFor[wire.NodeSample](),
	reflect.TypeFor[wire.Report](), reflect.TypeFor[wire.Hello](), reflect.TypeFor[api.ClusterInfo](), reflect.TypeFor[api.ClusterLatencies](),
}

// plans has the check of each type in messages and of the types within them. init fills it,
// because rules refer to plans.
var plans = map[reflect.Type]check{}

func init() {
	p := planner{plans: plans, used: map[string]bool{}} // TestEveryFieldHasABound fails if p.missing is not empty
	for _, t := range messages {
		p.plan(t)
	}
}

type planner struct {
	plans   map[reflect.Type]check
	used    map[string]bool // keys of table that belong to a field
	missing []string        // fields without a rule
}

type fieldCheck struct {
	index int
	name  string
	check check
}

// plan sets the check of a type: its rule or, for a struct without a rule, the rules of its
// fields.
func (p *planner) plan(t reflect.Type) {
	if p.plans[t] != nil {
		return
	}
	if rule := types[t]; rule != nil {
		p.plans[t] = rule
		return
	}
	var fields []fieldCheck
	p.plans[t] = func(c *checking, v reflect.Value) (reflect.Value, verdict) { return checkFields(c, v, fields) }
	for i := range t.NumField() {
		f := t.Field(i)
		if fc := p.field(t, f); fc != nil {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				name = strings.ToLower(f.Name)
			}
			fields = append(fields, fieldCheck{i, name, fc})
		}
	}
	if whole := wholes[t]; whole != nil {
		each := p.plans[t]
		p.plans[t] = func(c *checking, v reflect.Value) (reflect.Value, verdict) {
			out, verdict := each(c, v)
			if verdict == refused {
				return v, refused
			}
			if _, w := whole(c, out); w == refused {
				return v, refused
			}
			return out, verdict
		}
	}
}

// field returns the check of a field, or nil if it needs none. It also plans the structs within
// the field.
func (p *planner) field(t reflect.Type, f reflect.StructField) check {
	name := t.Name() + "." + f.Name
	rule := table[name]
	p.used[name] = p.used[name] || rule != nil
	of := f.Type
	pointer := of.Kind() == reflect.Pointer
	if pointer {
		of = of.Elem()
	}
	part := of
	if of.Kind() == reflect.Slice {
		part = of.Elem()
	}
	if types[part] != nil || part.Kind() == reflect.Struct && !opaque(part) {
		p.plan(part)
	}
	switch {
	case rule != nil:
	case p.plans[of] != nil:
		rule = p.plans[of]
	case of.Kind() == reflect.Bool:
		return nil
	default:
		p.missing = append(p.missing, name)
		rule = refuse
	}
	if pointer {
		return optional(rule, required[name])
	}
	return rule
}

// opaque reports whether a struct of a message is checked as one value.
func opaque(t reflect.Type) bool {
	ours := t.PkgPath() == reflect.TypeFor[wire.Report]().PkgPath() || t.PkgPath() == reflect.TypeFor[api.Node]().PkgPath()
	return !ours || t == reflect.TypeFor[api.Resources]()
}

// optional sets a pointer to nil if its value is refused. If required, it refuses the struct with
// the pointer instead.
func optional(of check, required bool) check {
	return func(c *checking, v reflect.Value) (reflect.Value, verdict) {
		if v.IsNil() {
			return v, kept
		}
		out, verdict := of(c, v.Elem())
		switch verdict {
		case refused:
			if required {
				return v, refused
			}
			return reflect.Zero(v.Type()), changed
		case changed:
			p := reflect.New(v.Type().Elem())
			p.Elem().Set(out)
			return p, changed
		}
		return v, kept
	}
}

func checkFields(c *checking, v reflect.Value, fields []fieldCheck) (reflect.Value, verdict) {
	var out reflect.Value
	for _, f := range fields {
		c.path = append(c.path, f.name)
		x, verdict := f.check(c, v.Field(f.index))
		c.path = c.path[:len(c.path)-1]
		switch verdict {
		case refused:
			return v, refused
		case changed:
			if !out.IsValid() {
				out = reflect.New(v.Type()).Elem()
				out.Set(v)
			}
			out.Field(f.index).Set(x)
		}
	}
	if out.IsValid() {
		return out, changed
	}
	return v, kept
}

// refuse is the rule of fields without a rule. It accepts the zero value only.
func refuse(c *checking, v reflect.Value) (reflect.Value, verdict) {
	if v.IsZero() {
		return v, kept
	}
	c.violation("set", "a bound in internal/bounds/table.go")
	return v, refused
}
