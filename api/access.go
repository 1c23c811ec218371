package api

import (
	"slices"
	"strings"
)

// Access says which services may call a service and which services of other tenants it calls. It is
// part of a service's SLA (`callers`, `calls`). It is checked where a packet leaves, where it
// arrives, and when a route is requested.
//
// An entry is "app" (services of the same application), "tenant" (all services of the tenant),
// "<app>.<ns>" or "<app>.<ns>.<service>.<ns>". A tenant's path may precede the last two:
// "acme/shop.prod".
type Access struct {
	Callers []string `json:"callers,omitempty"` // nil: all services of the tenant
	Closed  bool     `json:"closed,omitempty"`  // no service may call it: `callers: [none]`
	Calls   []string `json:"calls,omitempty"`   // services of other tenants
}

// MayCall reports whether a service may open flows to another. Within a tenant, the callee's list
// decides. Across tenants, both lists must contain the other service with its tenant's path.
func MayCall(caller ServiceID, callerAccess Access, callee ServiceID, calleeAccess Access) bool {
	if caller == "" || callee == "" || calleeAccess.Closed {
		return false
	}
	if caller.Tenant() == callee.Tenant() {
		return caller == callee || calleeAccess.Callers == nil ||
			slices.ContainsFunc(calleeAccess.Callers, func(e string) bool { return covers(e, callee, caller) })
	}
	across := func(of, other ServiceID) func(string) bool {
		return func(e string) bool { return strings.Contains(e, "/") && covers(e, of, other) }
	}
	return slices.ContainsFunc(calleeAccess.Callers, across(callee, caller)) &&
		slices.ContainsFunc(callerAccess.Calls, across(caller, callee))
}

// covers reports whether an entry in a list of the service of includes s.
func covers(entry string, of, s ServiceID) bool {
	switch entry {
	case "app":
		return of.App() == s.App()
	case "tenant":
		return of.Tenant() == s.Tenant()
	}
	full := entry
	if !strings.Contains(entry, "/") {
		full = string(of.Tenant()) + "/" + entry
	}
	return full == string(s) || full == string(s.App())
}
