package api

import (
	"encoding/json"
	"strings"
	"time"
)

// Limits of custom kinds and custom resources.
const (
	MaxCustomBytes  = 32 << 10 // of a schema, and of a resource
	MaxCustomValues = 4096     // objects, arrays and their elements in a resource
)

// KindID names a custom kind: "<tenant>/<name>".
type KindID string

// CustomKind returns the id of a custom kind of the tenant.
func (t Tenant) CustomKind(name string) KindID { return KindID(string(t) + "/" + name) }

// Tenant returns the tenant that owns the kind.
func (k KindID) Tenant() Tenant { return Tenant(beforeLast(string(k), '/')) }

// Name returns the kind's name without its tenant.
func (k KindID) Name() string { return afterLast(string(k), '/') }

// Resource returns the id of a resource of the kind.
func (k KindID) Resource(name string) CustomID { return CustomID(string(k) + ":" + name) }

// CustomID names a custom resource: "<tenant>/<kind>:<name>".
type CustomID string

// Kind returns the resource's kind.
func (c CustomID) Kind() KindID { k, _, _ := strings.Cut(string(c), ":"); return KindID(k) }

// Tenant returns the tenant that owns the resource and its kind.
func (c CustomID) Tenant() Tenant { return c.Kind().Tenant() }

// Name returns the resource's name within its kind.
func (c CustomID) Name() string { _, n, _ := strings.Cut(string(c), ":"); return n }

// Local returns "<kind>:<name>", the id without the tenant.
func (c CustomID) Local() string { return afterLast(string(c), '/') }

// CustomKind is a kind of custom resources. A tenant defines it for itself.
type CustomKind struct {
	ID          KindID          `json:"id"`
	Tenant      Tenant          `json:"tenant"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema"` // a JSON Schema, draft 2020-12
	Resources   int             `json:"resources"`
	Created     time.Time       `json:"created"`
	Changed     time.Time       `json:"changed"`
	By          string          `json:"by,omitempty"` // the user who changed it last
	Revision    Revision        `json:"revision"`
}

// NewCustomKind is the request to create or to replace a custom kind.
type NewCustomKind struct {
	Name        string          `json:"name,omitempty" maxLength:"63" doc:"Of a new kind: lower-case letters, digits and inner hyphens."`
	Description string          `json:"description,omitempty" maxLength:"500"`
	Schema      json.RawMessage `json:"schema" doc:"A JSON Schema, draft 2020-12, for the spec of its resources."`
}

// CustomResource is an object of a custom kind. Treeline stores it and checks it; programs give it a meaning.
type CustomResource struct {
	ID       CustomID        `json:"id"`
	Tenant   Tenant          `json:"tenant"`
	Kind     string          `json:"kind"`
	Name     string          `json:"name"`
	Spec     json.RawMessage `json:"spec"` // valid by the kind's schema
	Created  time.Time       `json:"created"`
	Changed  time.Time       `json:"changed"`
	By       string          `json:"by,omitempty"` // the user who changed it last
	Revision Revision        `json:"revision"`
}

// NewCustomResource is the request to create or to replace a custom resource.
type NewCustomResource struct {
	Kind string          `json:"kind,omitempty" maxLength:"63" doc:"Of a new resource."`
	Name string          `json:"name,omitempty" maxLength:"63" doc:"Of a new resource: lower-case letters, digits and inner hyphens."`
	Spec json.RawMessage `json:"spec" doc:"Valid by the kind's schema."`
}

// builtinKinds are names that no custom kind may have, because commands and documents use them.
var builtinKinds = map[string]bool{
	"kind": true, "kinds": true, "resource": true, "resources": true, "addon": true, "addons": true,
	"app": true, "apps": true, "application": true, "applications": true, "service": true, "services": true, "svc": true,
	"instance": true, "instances": true, "inst": true, "run": true, "runs": true, "snapshot": true, "snapshots": true, "volume": true, "volumes": true, "vol": true,
	"cluster": true, "clusters": true, "node": true, "nodes": true, "config": true, "configs": true, "secret": true, "secrets": true,
	"event": true, "events": true, "webhook": true, "webhooks": true,
}

// ValidKindName reports whether s may name a custom kind: a DNS label in lower case that is no kind of Treeline's.
func ValidKindName(s string) bool { return machineRE.MatchString(s) && !builtinKinds[s] }

// ValidResourceName reports whether s may name a custom resource: a DNS label in lower case.
func ValidResourceName(s string) bool { return machineRE.MatchString(s) }
