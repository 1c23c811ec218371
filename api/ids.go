package api

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Tenant is the path of the tenant that owns an object: "acme", later "acme/lab".
// Names are unique within a tenant; two tenants never see each other.
type Tenant string

// ClusterID names a cluster for its whole life, chosen by its operator when it joins.
type ClusterID string

// NodeID names a node within its cluster, given by the cluster when the node joins.
type NodeID string

// AppID names an application: "<tenant>/<app>.<namespace>".
type AppID string

// ServiceID names a service: "<tenant>/<app>.<namespace>.<service>.<namespace>".
type ServiceID string

// InstanceID names an instance: "<service id>#<number>", numbers from 0.
type InstanceID string

// Generation numbers a desired set. It only grows, across restarts too.
type Generation uint64

// Revision numbers the changes of the root's objects: the ETag and the
// position of a watch. It only grows, across restarts too.
type Revision uint64

const epochNodeBits = 20

// Epoch numbers the placements of one instance. The root's placements count in
// the high bits and a cluster's own re-placements in the low 20, so that both
// may go on while they cannot hear each other. Whoever holds an older epoch is wrong.
type Epoch uint64

// EpochOf is the epoch of a cluster's n-th placement within the root's placement r.
func EpochOf(r Revision, n uint32) Epoch {
	return Epoch(uint64(r)<<epochNodeBits | uint64(n)&(1<<epochNodeBits-1))
}

// Root is the part of the epoch that the root counts.
func (e Epoch) Root() Revision { return Revision(e >> epochNodeBits) }

// Local is the part of the epoch that the cluster counts.
func (e Epoch) Local() uint32 { return uint32(e & (1<<epochNodeBits - 1)) }

// String shows both parts: "17.2".
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

// App is the id of the application name.namespace of tenant t.
func (t Tenant) App(name, namespace string) AppID {
	return AppID(string(t) + "/" + name + "." + namespace)
}

// Tenant is the tenant that owns the application.
func (a AppID) Tenant() Tenant { return Tenant(beforeLast(string(a), '/')) }

// Name is the application's name without its tenant: "app.namespace".
func (a AppID) Name() string { return afterLast(string(a), '/') }

// Service is the id of the service name.namespace of the application.
func (a AppID) Service(name, namespace string) ServiceID {
	return ServiceID(string(a) + "." + name + "." + namespace)
}

// Tenant is the tenant that owns the service.
func (s ServiceID) Tenant() Tenant { return Tenant(beforeLast(string(s), '/')) }

// Name is the service's name without its tenant: "app.ns.service.ns".
func (s ServiceID) Name() string { return afterLast(string(s), '/') }

// NameInApp is the service's name as others of its application write it:
// "service.ns".
func (s ServiceID) NameInApp() string { return strings.TrimPrefix(string(s), string(s.App())+".") }

// App is the application that the service belongs to.
func (s ServiceID) App() AppID {
	return AppID(beforeLast(beforeLast(string(s), '.'), '.'))
}

// Instance is the id of the service's instance number n.
func (s ServiceID) Instance(n int) InstanceID {
	return InstanceID(string(s) + "#" + strconv.Itoa(n))
}

// Service is the service that the instance belongs to.
func (i InstanceID) Service() ServiceID { return ServiceID(beforeLast(string(i), '#')) }

// Tenant is the tenant that owns the instance.
func (i InstanceID) Tenant() Tenant { return i.Service().Tenant() }

// Number is the instance's number within its service, or -1 if the id has none.
func (i InstanceID) Number() int {
	n, err := strconv.Atoi(afterLast(string(i), '#'))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// Name is the instance's name without its tenant: "app.ns.service.ns#n".
func (i InstanceID) Name() string { return afterLast(string(i), '/') }

// ParseInstanceID checks a full instance id that came from outside.
// A malformed one is ErrInvalid.
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
