package api

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Tenant is the path of a tenant: "acme" or "acme/lab". Names of objects are unique within a
// tenant. Tenants cannot see each other's objects.
type Tenant string

// ClusterID is the permanent name of a cluster, chosen by its operator when it joins.
type ClusterID string

// NodeID is the name of a node within its cluster, set when it joins.
type NodeID string

// AppID names an application: "<tenant>/<app>.<namespace>".
type AppID string

// ServiceID names a service: "<tenant>/<app>.<namespace>.<service>.<namespace>".
type ServiceID string

// InstanceID names an instance: "<service id>#<number>". Numbers begin at 0.
type InstanceID string

// Generation numbers a desired set. It only grows, also across restarts.
type Generation uint64

// Revision numbers the changes of the root's objects: the ETag and the position of a watch. It
// only grows, also across restarts.
type Revision uint64

const epochNodeBits = 20

// Epoch numbers the placements of one instance. The high bits count the root's placements and the
// low 20 bits a cluster's own re-placements, so that both can place while they are disconnected. A
// lower epoch is stale.
type Epoch uint64

// EpochOf returns the epoch of a cluster's n-th placement within the root's placement r.
func EpochOf(r Revision, n uint32) Epoch {
	return Epoch(uint64(r)<<epochNodeBits | uint64(n)&(1<<epochNodeBits-1))
}

// Root returns the root's part of the epoch.
func (e Epoch) Root() Revision { return Revision(e >> epochNodeBits) }

// Local returns the cluster's part of the epoch.
func (e Epoch) Local() uint32 { return uint32(e & (1<<epochNodeBits - 1)) }

// String returns both parts: "17.2".
func (e Epoch) String() string { return fmt.Sprintf("%d.%d", e.Root(), e.Local()) }

var (
	nameRE    = regexp.MustCompile(namePattern)
	tenantRE  = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?){0,7}$`)
	machineRE = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)
)

// ValidName reports whether s may name an application, a service or a namespace:
// 1 to 30 letters, digits and inner hyphens, but not TenantLabel in any case.
func ValidName(s string) bool { return nameRE.MatchString(s) && !strings.EqualFold(s, TenantLabel) }

// TenantLabel separates a service's name from its tenant in DNS. It is therefore not a
// valid name.
const TenantLabel = "of-tenant"

// ValidTenant reports whether t is a path of up to 8 parts, each of 1 to 30
// lower-case letters, digits and inner hyphens.
func ValidTenant(t Tenant) bool { return tenantRE.MatchString(string(t)) }

// ValidMachineName reports whether s may name a cluster or a node: a DNS label
// in lower case.
func ValidMachineName(s string) bool { return machineRE.MatchString(s) }

// App returns the id of application name.namespace of tenant t.
func (t Tenant) App(name, namespace string) AppID {
	return AppID(string(t) + "/" + name + "." + namespace)
}

func (a AppID) Tenant() Tenant { return Tenant(beforeLast(string(a), '/')) }

// Name returns the application's name without its tenant: "app.namespace".
func (a AppID) Name() string { return afterLast(string(a), '/') }

// Service returns the id of service name.namespace of the application.
func (a AppID) Service(name, namespace string) ServiceID {
	return ServiceID(string(a) + "." + name + "." + namespace)
}

func (s ServiceID) Tenant() Tenant { return Tenant(beforeLast(string(s), '/')) }

// Name returns the service's name without its tenant: "app.ns.service.ns".
func (s ServiceID) Name() string { return afterLast(string(s), '/') }

// NameInApp returns the service's name within its application: "service.ns".
func (s ServiceID) NameInApp() string { return strings.TrimPrefix(string(s), string(s.App())+".") }

func (s ServiceID) App() AppID {
	return AppID(beforeLast(beforeLast(string(s), '.'), '.'))
}

// Instance returns the id of the service's instance number n.
func (s ServiceID) Instance(n int) InstanceID {
	return InstanceID(string(s) + "#" + strconv.Itoa(n))
}

func (i InstanceID) Service() ServiceID { return ServiceID(beforeLast(string(i), '#')) }
func (i InstanceID) Tenant() Tenant     { return i.Service().Tenant() }

// Number returns the instance's number within its service, or -1 if the id has none.
func (i InstanceID) Number() int {
	n, err := strconv.Atoi(afterLast(string(i), '#'))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// Name returns the instance's name without its tenant: "app.ns.service.ns#n".
func (i InstanceID) Name() string { return afterLast(string(i), '/') }

// ParseInstanceID parses and validates an instance id. A malformed id is ErrInvalid.
func ParseInstanceID(s string) (InstanceID, error) {
	id := InstanceID(s)
	parts := strings.Split(id.Service().Name(), ".")
	ok := id.Number() >= 0 && ValidTenant(id.Tenant()) && len(parts) == 4
	for _, p := range parts {
		ok = ok && ValidName(p)
	}
	if !ok {
		return "", fmt.Errorf("instance %q is not <tenant>/<app>.<ns>.<service>.<ns>#<n>: %w", s, ErrInvalid)
	}
	return id, nil
}

func beforeLast(s string, sep byte) string {
	if i := strings.LastIndexByte(s, sep); i >= 0 {
		return s[:i]
	}
	return ""
}

func afterLast(s string, sep byte) string { return s[strings.LastIndexByte(s, sep)+1:] }

// Addr is the receiver of a message between cores.
type Addr string

// Addr returns the cluster's address for messages of the root.
func (c ClusterID) Addr() Addr { return Addr("cluster/" + string(c)) }

// Addr returns the node's address for messages of its cluster.
func (n NodeID) Addr() Addr { return Addr("node/" + string(n)) }

// Under reports whether an id is that of the given application, service, instance or custom kind, or of an object below
// it. All ids are below "".
func Under(id, under string) bool {
	rest, ok := strings.CutPrefix(id, under)
	return ok && (under == "" || rest == "" || rest[0] == '.' || rest[0] == '#' || rest[0] == ':')
}
