// Package rights decides which actions a role allows on the objects of a tenant. The caller
// passes the tenant of the object.
//
//	if err := rights.Allowed(p, rights.AppsWrite, app.Tenant()); err != nil { … }
package rights

import (
	"fmt"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Role is a set of rights of a user or robot within its tenant. The names are Oakestra's.
type Role string

// The roles. An Admin of the system tenant ("") is Admin of all tenants.
const (
	Admin                  Role = "Admin"
	OrganizationAdmin      Role = "Organization_Admin"
	ApplicationProvider    Role = "Application_Provider"
	InfrastructureProvider Role = "Infrastructure_Provider"
)

// Roles are all roles, the one with the most rights first.
var Roles = []Role{Admin, OrganizationAdmin, ApplicationProvider, InfrastructureProvider}

// System is the tenant of the installation's operators. It owns no applications.
const System api.Tenant = ""

// Principal is the authenticated user of a request. The zero value is unauthenticated.
type Principal struct {
	User   string     `json:"user"` // "acme/alice", or "admin" in the system tenant
	Tenant api.Tenant `json:"tenant,omitempty"`
	Roles  []Role     `json:"roles"`
	PAT    string     `json:"pat,omitempty"` // the id of the personal token, if one was used
}

func (p Principal) Has(r Role) bool { return slices.Contains(p.Roles, r) }

// Global reports whether the principal is Admin of the whole installation.
func (p Principal) Global() bool { return p.User != "" && p.Tenant == System && p.Has(Admin) }

// Sees reports whether the tenant is the principal's own or below it.
func (p Principal) Sees(t api.Tenant) bool {
	switch {
	case p.User == "":
		return false
	case p.Global(), t == p.Tenant:
		return true
	}
	return p.Tenant != System && strings.HasPrefix(string(t), string(p.Tenant)+"/")
}

// Action is an action that needs a right: "<objects>:<verb>".
type Action string

const (
	AppsRead      Action = "apps:read"      // applications, services, instances, why
	AppsWrite     Action = "apps:write"     // apply, scale, delete
	AppsLogs      Action = "apps:logs"      // what workloads write
	AppsExec      Action = "apps:exec"      // processes in workloads, their ports and files
	EventsRead    Action = "events:read"    //
	ClustersRead  Action = "clusters:read"  //
	ClustersWrite Action = "clusters:write" // cordon, drain, remove
	ClustersJoin  Action = "clusters:join"  // make and revoke join tokens for clusters
	NodesRead     Action = "nodes:read"     //
	NodesWrite    Action = "nodes:write"    // cordon, drain, remove
	NodesJoin     Action = "nodes:join"     // make and revoke join tokens for nodes
	TenantsRead   Action = "tenants:read"   //
	TenantsWrite  Action = "tenants:write"  // make and remove tenants below
	UsersRead     Action = "users:read"     //
	UsersWrite    Action = "users:write"    // make, change, disable, invite
	TokensWrite   Action = "tokens:write"   // one's own personal tokens
	SystemRead    Action = "system:read"    // the installation's own state
	SystemWrite   Action = "system:write"   //
)

// table has the roles that allow an action within their tenant. Admin allows all of them except
// those that begin with "system:", which require an Admin of the system tenant.
var table = map[Action][]Role{
	AppsRead:      {OrganizationAdmin, ApplicationProvider},
	AppsWrite:     {OrganizationAdmin, ApplicationProvider},
	AppsLogs:      {OrganizationAdmin, ApplicationProvider},
	AppsExec:      {OrganizationAdmin, ApplicationProvider},
	EventsRead:    {OrganizationAdmin, ApplicationProvider, InfrastructureProvider},
	ClustersRead:  {OrganizationAdmin, ApplicationProvider, InfrastructureProvider},
	ClustersWrite: {OrganizationAdmin, InfrastructureProvider},
	ClustersJoin:  {OrganizationAdmin, InfrastructureProvider},
	NodesRead:     {OrganizationAdmin, InfrastructureProvider},
	NodesWrite:    {OrganizationAdmin, InfrastructureProvider},
	NodesJoin:     {OrganizationAdmin, InfrastructureProvider},
	TenantsRead:   {OrganizationAdmin, ApplicationProvider, InfrastructureProvider},
	TenantsWrite:  {OrganizationAdmin},
	UsersRead:     {OrganizationAdmin},
	UsersWrite:    {OrganizationAdmin},
	TokensWrite:   {OrganizationAdmin, ApplicationProvider, InfrastructureProvider},
	SystemRead:    {},
	SystemWrite:   {},
}

// Actions are all actions in alphabetical order, for docs and tests.
func Actions() []Action {
	all := make([]Action, 0, len(table))
	for a := range table {
		all = append(all, a)
	}
	slices.Sort(all)
	return all
}

// Allowed returns nil if p may do the action on an object of tenant t. It returns
// ErrUnauthenticated for the zero Principal, ErrNotFound if p may not see t (whether or not the
// object exists), and ErrForbidden if p lacks the role.
func Allowed(p Principal, a Action, t api.Tenant) error {
	if p.User == "" {
		return fmt.Errorf("%s: sign in first: %w", a, api.ErrUnauthenticated)
	}
	roles, known := table[a]
	if !known {
		return fmt.Errorf("%s: no such action: %w", a, api.ErrForbidden)
	}
	if p.Global() {
		return nil
	}
	if strings.HasPrefix(string(a), "system:") {
		return fmt.Errorf("%s: only an Admin of the system tenant may: %w", a, api.ErrForbidden)
	}
	if !p.Sees(t) {
		return fmt.Errorf("%s in tenant %q: %w", a, t, api.ErrNotFound)
	}
	if p.Has(Admin) && p.Tenant != System || slices.ContainsFunc(roles, p.Has) {
		return nil
	}
	return fmt.Errorf("%s in tenant %q: user %s has the roles %v, needs one of %v: %w",
		a, t, p.User, p.Roles, append([]Role{Admin}, roles...), api.ErrForbidden)
}

// MayGrant returns nil if p may give the roles to a user of tenant t, or an error as Allowed. Only
// an Admin may give Admin, and only an Admin of the system tenant may give roles there.
func MayGrant(p Principal, roles []Role, t api.Tenant) error {
	if err := Allowed(p, UsersWrite, t); err != nil {
		return err
	}
	if slices.Contains(roles, Admin) && !p.Has(Admin) || t == System && !p.Global() {
		return fmt.Errorf("grant the roles %v in tenant %q: user %s has only %v: %w", roles, t, p.User, p.Roles, api.ErrForbidden)
	}
	return nil
}
