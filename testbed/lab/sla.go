package lab

import (
	"encoding/json"
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// Namespace is the namespace of all applications and services of a lab.
const Namespace = "lab"

// App returns an SLA with one application.
func App(name string, services ...api.Microservice) api.SLA {
	return api.SLA{Version: "v2.0", Applications: []api.Application{{
		Name: name, Namespace: Namespace, Services: services,
	}}}
}

// Process returns a service of plain processes that run until they are stopped.
func (l *Lab) Process(name string, replicas int) api.Microservice {
	return api.Microservice{
		Name: name, Namespace: Namespace, Virtualization: "process", Code: l.Program,
		Cmd: []string{"sleep"}, Replicas: &replicas, StopGrace: 1,
	}
}

// Container is Process as a container, of the image that the lab's nodes have. It also runs on
// nodes without a netmanager; see Overlay.Container.
func (l *Lab) Container(name string, replicas int) api.Microservice {
	m := l.Process(name, replicas)
	m.Virtualization, m.Code, m.Cmd, m.Network = "container", Image, []string{"/app", "sleep"}, api.NetworkAny
	return m
}

// On restricts a service to nodes of a cluster, or to all its nodes if none is given.
func On(m api.Microservice, cluster, node string) api.Microservice {
	m.Constraints = append(m.Constraints, api.Constraint{Type: "direct", Cluster: cluster, Node: node})
	return m
}

// Needing sets the resources of a service.
func Needing(m api.Microservice, vcpus float64, memory int64) api.Microservice {
	m.VCPUs, m.Memory = vcpus, memory
	return m
}

// Exclusive marks a service as exclusive.
func Exclusive(m api.Microservice) api.Microservice {
	m.Exclusive = true
	return m
}

// ServiceID returns the id of a service of the lab's tenant.
func (l *Lab) ServiceID(app, service string) api.ServiceID {
	return l.Tenant.App(app, Namespace).Service(service, Namespace)
}

// ID returns the id of an instance of the lab's tenant.
func (l *Lab) ID(app, service string, n int) api.InstanceID {
	return l.ServiceID(app, service).Instance(n)
}

// Encode returns the SLA as JSON.
func Encode(sla api.SLA) []byte {
	b, err := json.Marshal(sla)
	if err != nil {
		panic(fmt.Sprintf("encode SLA: %v", err)) // its types can always be encoded
	}
	return b
}
