package lab

import (
	"encoding/json"
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// Namespace is that of all applications and services of a lab.
const Namespace = "lab"

// App is an SLA with one application.
func App(name string, services ...api.Microservice) api.SLA {
	return api.SLA{Version: "v2.0", Applications: []api.Application{{
		Name: name, Namespace: Namespace, Services: services,
	}}}
}

// Process is a service of plain processes that wait to be ended.
func (l *Lab) Process(name string, replicas int) api.Microservice {
	return api.Microservice{
		Name: name, Namespace: Namespace, Virtualization: "process", Code: l.Program,
		Cmd: []string{"sleep"}, Replicas: &replicas, StopGrace: 1,
	}
}

// Container is the same as a container, of the image that the lab's nodes have. It
// runs on nodes without a netmanager, too; see Overlay.Container.
func (l *Lab) Container(name string, replicas int) api.Microservice {
	m := l.Process(name, replicas)
	m.Virtualization, m.Code, m.Cmd, m.Network = "container", Image, []string{"/app", "sleep"}, api.NetworkAny
	return m
}

// On keeps a service on the nodes of a cluster; nodes may be none for all of it.
func On(m api.Microservice, cluster, node string) api.Microservice {
	m.Constraints = append(m.Constraints, api.Constraint{Type: "direct", Cluster: cluster, Node: node})
	return m
}

// Needing gives a service needs.
func Needing(m api.Microservice, vcpus float64, memory int64) api.Microservice {
	m.VCPUs, m.Memory = vcpus, memory
	return m
}

// Exclusive marks a service.
func Exclusive(m api.Microservice) api.Microservice {
	m.Exclusive = true
	return m
}

// ServiceID is the id of a service of the lab's tenant.
func (l *Lab) ServiceID(app, service string) api.ServiceID {
	return l.Tenant.App(app, Namespace).Service(service, Namespace)
}

// ID is the id of an instance of the lab's tenant.
func (l *Lab) ID(app, service string, n int) api.InstanceID {
	return l.ServiceID(app, service).Instance(n)
}

// Encode is the SLA as JSON.
func Encode(sla api.SLA) []byte {
	b, err := json.Marshal(sla)
	if err != nil {
		panic(fmt.Sprintf("an SLA that is no JSON: %v", err)) // its types allow none
	}
	return b
}
