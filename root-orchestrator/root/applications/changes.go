package applications

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Changes returns the differences between two versions of an application, in the order of is.
// Services that only was has come last.
func Changes(was, is api.Application) (out []api.FieldChange) {
	if was.Description != is.Description {
		out = append(out, api.FieldChange{Path: "application_desc", Old: was.Description, New: is.Description})
	}
	if x, y := shown(reflect.ValueOf(was.Labels)), shown(reflect.ValueOf(is.Labels)); x != y {
		out = append(out, api.FieldChange{Path: "labels", Old: x, New: y})
	}
	old := map[string]*api.Microservice{}
	for i := range was.Services {
		m := &was.Services[i]
		old[m.Name+"."+m.Namespace] = m
	}
	for i := range is.Services {
		m := &is.Services[i]
		name := m.Name + "." + m.Namespace
		if before := old[name]; before != nil {
			out = append(out, FieldChanges(name, before, m)...)
		} else {
			out = append(out, api.FieldChange{Path: name, New: counted(m)})
		}
		delete(old, name)
	}
	for _, name := range step.Keys(old) {
		out = append(out, api.FieldChange{Path: name, Old: counted(old[name])})
	}
	return out
}

func counted(m *api.Microservice) string {
	if *m.Replicas == 1 {
		return "1 instance"
	}
	return strconv.Itoa(*m.Replicas) + " instances"
}

// FieldChanges returns the differences between two versions of a service.
func FieldChanges(service string, was, is *api.Microservice) (out []api.FieldChange) {
	a, b := reflect.ValueOf(*was), reflect.ValueOf(*is)
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
		if name == "microserviceID" {
			continue
		}
		if x, y := shown(a.Field(i)), shown(b.Field(i)); x != y {
			out = append(out, api.FieldChange{Path: service + "/" + name, Old: x, New: y})
		}
	}
	return out
}

// VersionChanges is FieldChanges of what instances depend on.
func VersionChanges(service string, was, is *api.Microservice) []api.FieldChange {
	x, y := forInstances(was), forInstances(is)
	return FieldChanges(service, &x, &y)
}

// shown returns a field's value as text, "" if it is not set.
func shown(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return shown(v.Elem())
	case v.Kind() == reflect.String:
		return v.String()
	case v.Kind() == reflect.Int: // 0 is a value
	case v.IsZero():
		return ""
	}
	b, err := json.Marshal(v.Interface())
	if err != nil {
		panic("encode a field of an SLA: " + err.Error()) // plain fields cannot fail
	}
	return string(b)
}
