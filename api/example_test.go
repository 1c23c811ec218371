package api_test

import (
	"errors"
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// Ids contain the tenant, the application and the service.
func ExampleServiceID_Instance() {
	id := api.ServiceID("acme/shop.prod.web.v1").Instance(2)
	fmt.Println(id)
	again, err := api.ParseInstanceID(string(id))
	fmt.Println(again == id, err)
	// Output:
	// acme/shop.prod.web.v1#2
	// true <nil>
}

// ParseSLA reports all errors of a document, each with its JSON pointer.
func ExampleParseSLA() {
	_, err := api.ParseSLA([]byte(`{
		"sla_version": "v2.0",
		"applications": [{
			"application_name": "shop",
			"application_namespace": "prod",
			"microservices": [{
				"microservice_name": "web",
				"microservice_namespace": "v1",
				"virtualization": "container",
				"code": "registry.example.org/shop/web:1.2",
				"memory": -1,
				"cpus": 2
			}]
		}]
	}`))
	if faults, ok := errors.AsType[*api.Faults](err); ok {
		for _, f := range faults.Faults {
			fmt.Println(f.Pointer)
		}
	}
	// Output:
	// /applications/0/microservices/0/memory
	// /applications/0/microservices/0/cpus
}
