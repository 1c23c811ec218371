package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func webService(name, more string) string {
	return `{"microservice_name":"` + name + `","microservice_namespace":"v1","virtualization":"container","code":"x:1"` + more + `}`
}

func TestServicesAreAddedToAnApplication(t *testing.T) {
	sla, err := api.ParseSLA([]byte(`{"sla_version":"v2.0","applications":[{"application_name":"shop","application_namespace":"prod","application_desc":"d","labels":{"team":"web"},"microservices":[` +
		webService("a", `,"replicas":3,"bandwidth_in":1500`) + `,` + webService("b", `,"replicas":2,"connectivity":[{"target_microservice_id":"a","con_constraints":[{"type":"latency","threshold":5,"rigidness":0.9}]}]`) + `]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	shop := sla.Applications[0]
	add := func(to api.Application, doc string) (api.Application, func(string) string, error) {
		text, pointer, err := to.AddServices([]byte(doc))
		if err != nil {
			return api.Application{}, nil, err
		}
		got, err := api.ParseSLA(text)
		if err != nil {
			return api.Application{}, pointer, err
		}
		return got.Applications[0], pointer, nil
	}
	got, _, err := add(shop, `{"microservices":[`+webService("c", `,"replicas":1,"connectivity":[{"target_microservice_id":"a","con_constraints":[{"type":"latency","threshold":9}]}]`)+`,`+webService("a", `,"memory":64`)+`]}`)
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, m := range got.Services {
		names += m.Name
	}
	if names != "abc" || got.Description != "d" || got.Labels["team"] != "web" {
		t.Errorf("services %s of %+v, want a replaced, b kept and c added", names, got)
	}
	if a, b := got.Services[0], got.Services[1]; a.Memory != 64 || a.BandwidthIn != 0 || a.Replicas != nil || b.Replicas != nil || b.Connectivity[0].Constraints[0].Share != 0.9 {
		t.Errorf("a is %+v and b is %+v, want a as in the document, b as before, and both with their present number of instances", a, b)
	}
	if got.Services[2].Connectivity[0].Target != "a.v1" {
		t.Errorf("the new service's link is %+v, want one to a service of the application", got.Services[2].Connectivity)
	}
	created, _, err := add(api.Application{Name: "new", Namespace: "prod"}, `{"sla_version":"v2.0","customerID":"x","args":[""],"microservices":[`+webService("a", "")+`]}`)
	if err != nil || created.Name != "new" || len(created.Services) != 1 {
		t.Errorf("a new application is %+v, %v", created, err)
	}

	// Faults are at the values of the document.
	_, pointer, err := add(shop, `{"colour":1,"microservices":[`+webService("a", `,"memory":-1`)+`,`+webService("c", `,"memory":-2`)+`,`+webService("c", "")+`]}`)
	var faults *api.Faults
	if !errors.As(err, &faults) {
		t.Fatalf("invalid services: %v", err)
	}
	var at []string
	for _, f := range faults.Faults {
		at = append(at, pointer(f.Pointer))
	}
	if got := strings.Join(at, " "); got != "/microservices/0/memory /microservices/1/memory /microservices/2/microservice_name /colour" {
		t.Errorf("the faults are at %s\n%v", got, err)
	}
	for p, want := range map[string]string{
		"/applications/0/microservices": "/microservices", "/applications/0/microservices/1/code": "", "/applications/0/application_name": "",
		"/applications/0/microservices/-1": "", "/applications/0/microservices/99": "", "/applications/0/microservices/x": "", "/sla_version": "/sla_version", "": "",
	} {
		if got := pointer(p); got != want {
			t.Errorf("%q is at %q, want %q", p, got, want)
		}
	}
}

// A document cannot remove, rename or replace an application by what it has besides services.
func TestAddedServicesDoNotReachTheApplication(t *testing.T) {
	shop := api.Application{Name: "shop", Namespace: "prod", Services: []api.Microservice{{Name: "a", Namespace: "v1", Virtualization: "container", Code: "x:1"}}}
	for doc, want := range map[string]string{
		`{"applications":[],"microservices":[]}`:         "names its applications itself",
		`{"microservices":[],"application_name":"evil"}`: `no field "application_name"`,
		`{"microservices":null}`:                         "must be an array",
		`{}`:                                             "must be an array",
		`{"microservices":{"a":1}}`:                      "must be an array",
		`{"microservices":["a"]}`:                        "must be an object",
		`{"microservices":[null]}`:                       "must be an object",
		`[]`:                                             "must be an object",
		`null`:                                           "must be an object",
		``:                                               "not JSON",
		`{"sla_version":"v1.0","microservices":[]}`:                        "deprecated",
		`{"microservices":[],"microservices":[]}`:                          "given twice",
		`{"microservices":[` + strings.Repeat("{},", 300) + `{}]}`:         "at most 256",
		`{"microservices":[` + strings.Repeat("1,", 100_000) + `1]}`:       "too large",
		`{"microservices":[` + strings.Repeat(" ", api.MaxSLABytes) + `]}`: "too large",
	} {
		text, _, err := shop.AddServices([]byte(doc))
		if err == nil {
			_, err = api.ParseSLA(text)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", doc, err, want)
		}
	}
	if shop.Services[0].Code != "x:1" || len(shop.Services) != 1 {
		t.Errorf("the application has changed: %+v", shop)
	}
	_, err := api.ParseSLA([]byte(`{"microservices":[` + webService("a", "") + `]}`))
	if err == nil || !strings.Contains(err.Error(), "--application NAME.NAMESPACE") {
		t.Errorf("services of no application: %v, want how to name it", err)
	}
}
