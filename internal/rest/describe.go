package rest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Describe completes the description of an API after its operations are registered: descriptions of parameters that
// several operations share, examples, and the status of operations that switch to a WebSocket.
func Describe(doc *huma.OpenAPI) {
	for path, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op != nil {
				describe(path, op)
			}
		}
	}
	for schema, s := range doc.Components.Schemas.Map() {
		for name, p := range s.Properties {
			text, ok := ofSchemas[schema+"."+name]
			if !ok {
				text, ok = examples[name]
			}
			if ok && p.Type == "string" && len(p.Examples) == 0 && len(p.Enum) == 0 && p.Format == "" {
				p.Examples = []any{text}
			}
		}
	}
}

func describe(path string, op *huma.Operation) {
	for _, p := range op.Parameters {
		if p.Description == "" {
			p.Description = parameters[p.In+" "+p.Name]
		}
		if p.In == "path" && p.Example == nil {
			p.Example = exampleID(path, p.Name)
		}
	}
	if ok := op.Responses["200"]; ok != nil && len(ok.Content) == 0 && strings.Contains(op.Description, "WebSocket") {
		delete(op.Responses, "200")
		op.Responses["101"] = &huma.Response{Description: http.StatusText(http.StatusSwitchingProtocols) + ": the stream follows."}
	}
	if op.RequestBody != nil {
		if m := op.RequestBody.Content["application/json"]; m != nil && m.Schema != nil && strings.HasSuffix(m.Schema.Ref, "/SLA") && m.Example == nil {
			m.Example = json.RawMessage(slaExample)
		}
	}
}

// parameters describes those without a description of their own.
var parameters = map[string]string{
	"path id":             "The object's id, as the list shows it.",
	"header If-Match":     "The revision of the object as its ETag states it, or * for any.",
	"header Content-Type": "application/json or application/yaml.",
}

// exampleID returns an example for a parameter of a path, "" for parameters without one.
func exampleID(path, name string) any {
	segments := strings.Split(path, "/")
	i := slices.Index(segments, "{"+name+"}")
	if i < 1 {
		return nil
	}
	if id, ok := ids[segments[i-1]]; ok {
		return id
	}
	return nil
}

// ids are examples of ids in paths, by the segment before them.
var ids = map[string]string{
	"apps": "acme~shop.prod", "services": "acme~shop.prod.cart.v1", "instances": "acme~shop.prod.cart.v1~0", "clusters": "munich", "nodes": "edge-7",
	"volumes": "acme~shop.prod.db.v1~0:data", "tenants": "acme", "users": "acme~alice", "configs": "acme~shop", "secrets": "acme~db-password",
	"kinds": "acme~sensor", "addons": "acme~mqtt", "resources": "acme~sensor:roof", "snapshots": "acme~shop.prod.db.v1~0:data@monday", "webhooks": "QK2T7WJ4N5XB", "tokens": "T4R8W2ZK6M3P", "streams": "9f1c03d7a2b84e5d", "operators": "night",
}

// examples are values of properties, by name.
var examples = map[string]string{
	"tenant": "acme", "cluster": "munich", "node": "edge-7", "user": "acme/alice", "service": "acme/shop.prod.cart.v1", "instance": "acme/shop.prod.cart.v1#0",
	"email": "alice@example.org", "hostname": "edge-7", "arch": "amd64", "os": "linux", "location": "48.14N,11.58E", "subnet": "10.16.0.64/26",
	"microservice_name": "cart", "microservice_namespace": "v1", "application_name": "shop", "application_namespace": "prod",
	"sla_version": "v2.0", "virtualization": "container", "rr_ip": "10.30.30.30", "rr_ip_v6": "fd74:6c6e:2::a1e:1e1e", "cron": "*/15 * * * *", "time_zone": "Europe/Berlin",
	"mount_path": "/var/lib/db", "url": "https://hooks.example.org/treeline", "registry": "registry.example.org", "password": "correct horse battery", "port": "8080:80/tcp",
	"priority": "normal", "platform": "linux/amd64", "address": "192.0.2.7", "addr": "192.0.2.7:4433", "version": "0.5.0",
}

// ofSchemas are values of properties of single schemas.
var ofSchemas = map[string]string{
	"App.id": "acme/shop.prod", "AppPlan.id": "acme/shop.prod", "Service.id": "acme/shop.prod.cart.v1", "Instance.id": "acme/shop.prod.cart.v1#0",
	"InstancePlan.id": "acme/shop.prod.cart.v1#0", "Cluster.id": "munich", "Status.id": "munich", "Node.id": "edge-7", "User.id": "acme/alice",
	"CreateUserRequest.id": "acme/alice", "VolumeStatus.id": "acme/shop.prod.db.v1#0:data", "Webhook.id": "QK2T7WJ4N5XB", "JoinToken.id": "T4R8W2ZK6M3P",
	"VolumeSnapshot.id": "acme/shop.prod.db.v1#0:data@monday", "Values.id": "acme/db-password", "Problem.type": "https://treeline.dev/problems/not_found", "Problem.title": "Not Found", "Problem.code": "not_found",
	"Problem.detail": "instance acme/shop.prod.cart.v1#9: not found",
}

const slaExample = `{"sla_version":"v2.0","applications":[{"application_name":"shop","application_namespace":"prod","microservices":[` +
	`{"microservice_name":"cart","microservice_namespace":"v1","virtualization":"container","code":"registry.example.org/shop/cart:1.4",` +
	`"memory":128,"vcpus":0.5,"replicas":2,"port":"8080:80"}]}]}`
