package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// AddServices returns the SLA of the application with the services of a JSON document that names no application,
// {"microservices": […]}: what Oakestra's dashboard takes on the page of an application. A service of the document
// replaces that of the same name and namespace; the others follow the application's own, which keep their present
// number of instances. A new application has a name and a namespace only.
//
// pointer translates a JSON pointer into the SLA to one into the document. It returns "" for a value that is not from
// the document.
func (a Application) AddServices(doc []byte) (sla []byte, pointer func(string) string, err error) {
	root, err := readTree(doc)
	if err != nil {
		return nil, nil, err
	}
	if root.kind != ObjectField {
		return nil, nil, malformed(fmt.Sprintf("the document must be an object, not %s", root.describe()))
	}
	if root.get("applications").kind != "" {
		return nil, nil, &Faults{Faults: []Fault{{
			Pointer: "/applications", Field: "applications", Message: "the document names its applications itself",
			Fix: "apply it without the name of an application, or give its microservices only",
		}}}
	}
	text, err := a.Document()
	if err != nil {
		return nil, nil, err
	}
	whole, err := readTree(text)
	if err != nil {
		return nil, nil, err
	}
	places := whole.get("applications").items[0].get("microservices").add(root.get("microservices"))
	if root.get("sla_version").kind != "" {
		whole.drop("sla_version")
	}
	root.drop("microservices")
	whole.members = append(root.members, whole.members...)
	if sla, err = json.Marshal(whole.plain()); err != nil {
		return nil, nil, fmt.Errorf("encode an SLA: %w", err)
	}
	return sla, func(p string) string { return outsideApplication(p, places) }, nil
}

// add adds the services of a document to those of an application. It returns the index in the document for each
// service, or -1. If given is not an array, it replaces them, and the check of the SLA reports it.
func (v *value) add(given *value) (places []int) {
	if given.kind != ArrayField {
		*v = *given
		return nil
	}
	v.kind = ArrayField // it is null in a new application
	full := func(s *value) string {
		return s.get("microservice_name").text + "." + s.get("microservice_namespace").text
	}
	own := map[string]int{}
	for i := range v.items {
		v.items[i].drop("replicas")
		own[full(&v.items[i])] = i
		places = append(places, -1)
	}
	for n := range given.items {
		s := given.items[n]
		i, replaces := own[full(&s)]
		if !replaces {
			v.items, places = append(v.items, s), append(places, n)
			continue
		}
		v.items[i], places[i] = s, n
		delete(own, full(&s)) // if the document has it twice, the check of the SLA reports it
	}
	return places
}

// outsideApplication translates a pointer into an SLA with one application to a document of services alone.
func outsideApplication(pointer string, places []int) string {
	rest, inside := strings.CutPrefix(pointer, "/applications/0/microservices")
	if !inside {
		if strings.HasPrefix(pointer, "/applications") {
			return ""
		}
		return pointer
	}
	index, rest, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if index == "" {
		return "/microservices"
	}
	i, err := strconv.Atoi(index)
	if err != nil || i < 0 || i >= len(places) || places[i] < 0 {
		return ""
	}
	return strings.TrimSuffix("/microservices/"+strconv.Itoa(places[i])+"/"+rest, "/")
}
