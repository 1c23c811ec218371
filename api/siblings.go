package api

import (
	"fmt"
	"slices"
	"strings"
)

// siblings are the services of one application: by name, their namespaces.
type siblings map[string][]string

func (s siblings) add(name, namespace string) { s[name] = append(s[name], namespace) }

// full returns "name.namespace" for a unique name of a service. It returns other text unchanged.
func (s siblings) full(ref string) string {
	if in := s[ref]; len(in) == 1 {
		return ref + "." + in[0]
	}
	return ref
}

func (s siblings) has(full string) bool {
	name, namespace, _ := strings.Cut(full, ".")
	return slices.Contains(s[name], namespace)
}

// fault returns why a reference does not identify a service, and a fix.
func (s siblings) fault(ref string) (wrong, fix string) {
	if in := s[ref]; len(in) > 1 {
		return fmt.Sprintf("several services of the application are named %q", ref), "write " + ref + "." + in[0]
	}
	wrong, fix = fmt.Sprintf("the application has no service %q", ref), "name a service of the same application"
	if near := didYouMean(ref, s.names(strings.Contains(ref, "."))); near != "" {
		fix = "did you mean " + near + "?"
	}
	return wrong, fix
}

func (s siblings) names(whole bool) []string {
	var out []string
	for name, in := range s {
		if !whole {
			out = append(out, name)
			continue
		}
		for _, namespace := range in {
			out = append(out, name+"."+namespace)
		}
	}
	slices.Sort(out)
	return out
}

// siblingsRule refuses references to services that do not exist, and of services to themselves.
func siblingsRule(c checker, at string, v *value) {
	services, known := v.get("microservices"), siblings{}
	if len(services.items) > MaxServices {
		return // already refused; the work below grows with services times references
	}
	for i := range services.items {
		s := &services.items[i]
		known.add(s.get("microservice_name").text, s.get("microservice_namespace").text)
	}
	for i := range services.items {
		s := &services.items[i]
		check := sibling{c, known, s.get("microservice_name").text + "." + s.get("microservice_namespace").text}
		here := at + "/microservices/" + itoa(i)
		for k, constraint := range s.get("constraints").items {
			place := here + "/constraints/" + itoa(k)
			check.other(place+"/service", constraint.get("service"), "use a constraint of type spread, or name another service")
			for n := range constraint.get("services").items {
				check.other(place+"/services/"+itoa(n), &constraint.get("services").items[n], "use a constraint of type spread")
			}
			check.once(place+"/services", "", "keep one of them", constraint.get("services").items, func(v *value) string { return known.full(v.text) })
		}
		for k, link := range s.get("connectivity").items {
			check.other(here+"/connectivity/"+itoa(k)+"/target_microservice_id", link.get("target_microservice_id"), "name another service")
		}
	}
}

type sibling struct {
	checker
	known siblings
	self  string
}

// other refuses a reference that does not identify another service of the application.
func (c sibling) other(at string, ref *value, fixSelf string) {
	if ref.text == "" || !patterns[siblingPattern].MatchString(ref.text) {
		return // has a fault already
	}
	switch full := c.known.full(ref.text); {
	case !c.known.has(full) && c.full():
		c.More++ // do not search for a suggestion
	case !c.known.has(full):
		wrong, fix := c.known.fault(ref.text)
		c.fault(at, fix, "%s", wrong)
	case full == c.self:
		c.fault(at, fixSelf, "%s is the service itself", ref.text)
	}
}
