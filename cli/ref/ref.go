// Package ref resolves references to applications, services and instances among given ids.
//
// A reference is an id with or without its tenant (acme/shop.prod.web.v1#2, shop.prod.web.v1#2),
// app/service with or without namespaces and tenant (shop/web#2, shop.prod/web.v1#2), or the first
// parts of any of these (shop, shop.prod.web). Parts must be complete, but * matches any characters
// (shop/w*). Complete names take precedence over names without namespaces, these over first parts,
// and among equal matches the user's own tenant over others.
//
//	id, err := ref.Find(ref.Instance, "shop/web#2", "acme", ids)
package ref

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Kind is a kind of object. Messages contain it.
type Kind string

const (
	App      Kind = "application"
	Service  Kind = "service"
	Instance Kind = "instance"
)

// Ambiguous is the error for a reference that matches several objects. It wraps ErrInvalid.
type Ambiguous struct {
	Kind       Kind
	Reference  string
	Candidates []string
}

// shownCandidates limits the candidates in the message of an Ambiguous.
const shownCandidates = 12

func (e *Ambiguous) Error() string {
	list, more := e.Candidates, ""
	if len(list) > shownCandidates {
		more = fmt.Sprintf("\n  and %d more", len(list)-shownCandidates)
		list = list[:shownCandidates]
	}
	return fmt.Sprintf("%q matches %d %ss; use a longer name:\n  %s%s",
		e.Reference, len(e.Candidates), e.Kind, strings.Join(list, "\n  "), more)
}

func (e *Ambiguous) Unwrap() error { return api.ErrInvalid }

// Find returns the id that matches the reference best. ErrNotFound: none matches; *Ambiguous:
// several match equally well.
func Find(kind Kind, reference string, own api.Tenant, ids []string) (string, error) {
	found := All(kind, reference, own, ids)
	switch len(found) {
	case 0:
		return "", missing(kind, reference, ids)
	case 1:
		return found[0], nil
	}
	return "", &Ambiguous{Kind: kind, Reference: reference, Candidates: found}
}

// All returns the ids that match the reference best, all of them equally well, in the given order.
func All(kind Kind, reference string, own api.Tenant, ids []string) []string {
	var found []string
	best := nothing
	for _, id := range ids {
		r := fit(kind, reference, own, id)
		if r == nothing || r > best {
			continue
		}
		if r < best {
			best, found = r, found[:0]
		}
		found = append(found, id)
	}
	return found
}

// Whole returns the id for a complete reference, which needs no list of ids. own is the tenant if
// the reference has none.
func Whole(kind Kind, reference string, own api.Tenant) (string, bool) {
	tenant, name, n, numbered := split(reference)
	tenant = cmp.Or(tenant, string(own))
	parts := strings.Split(name, ".")
	want := 4
	if kind == App {
		want = 2
	}
	if tenant == "" || !api.ValidTenant(api.Tenant(tenant)) || len(parts) != want || numbered != (kind == Instance) {
		return "", false
	}
	for _, p := range parts {
		if !api.ValidName(p) {
			return "", false
		}
	}
	id := tenant + "/" + name
	if kind != Instance {
		return id, true
	}
	got, err := api.ParseInstanceID(id + "#" + n)
	return string(got), err == nil
}

// The quality of a match, best first. A match in another tenant is worse by one.
const (
	whole   = 0
	short   = 2 // names without their namespaces
	begins  = 4
	nothing = 1 << 10
)

func fit(kind Kind, reference string, own api.Tenant, id string) int {
	tenant, name, n, numbered := split(id)
	left, number, asked := reference, "", false
	if i := strings.LastIndexByte(reference, '#'); i >= 0 {
		left, number, asked = reference[:i], reference[i+1:], true
	}
	if left == "" || asked && (!numbered || number != "" && number != n) {
		return nothing
	}
	parts := strings.Split(name, ".")
	best := dotted(kind, left, tenant, name, parts)
	if i := strings.LastIndexByte(left, '/'); i >= 0 && kind != App && len(parts) == 4 {
		app, service := left[:i], left[i+1:]
		of := ""
		if j := strings.LastIndexByte(app, '/'); j >= 0 {
			of, app = app[:j], app[j+1:]
		}
		if of == "" || of == tenant {
			best = min(best, max(part(app, parts[0], parts[1]), part(service, parts[2], parts[3])))
		}
	}
	if best < nothing && tenant != string(own) {
		best++
	}
	return best
}

// dotted matches a reference in the form of an id.
func dotted(kind Kind, left, tenant, name string, parts []string) int {
	if i := strings.LastIndexByte(left, '/'); i >= 0 {
		if left[:i] != tenant {
			return nothing
		}
		left = left[i+1:]
	}
	switch {
	case left == name:
		return whole
	case kind == App && left == parts[0]:
		return short
	case within(left, name):
		return begins
	}
	return nothing
}

// within reports whether a reference consists of the first complete parts of a name ("shop" of
// "shop.prod.web.v1", but not "sho"), or is a pattern with * that matches the name.
func within(reference, name string) bool {
	if strings.Contains(reference, "*") {
		ok, err := path.Match(reference, name)
		return err == nil && ok
	}
	return reference == "" || strings.HasPrefix(name, reference+".")
}

// part matches one half of app/service with a name and its namespace.
func part(p, name, namespace string) int {
	full := name + "." + namespace
	switch {
	case p == full:
		return whole
	case p == name:
		return short
	case within(p, full), strings.Contains(p, "*") && within(p, name):
		return begins
	}
	return nothing
}

// split splits an id into tenant, name without number, and number.
func split(id string) (tenant, name, number string, numbered bool) {
	if i := strings.LastIndexByte(id, '#'); i >= 0 {
		id, number, numbered = id[:i], id[i+1:], true
	}
	if i := strings.LastIndexByte(id, '/'); i >= 0 {
		tenant, id = id[:i], id[i+1:]
	}
	return tenant, id, number, numbered
}

// Slashed returns the forms app/service of the id of a service or instance, the shortest first:
// shop/web#0 and shop.prod/web.v1#0. Other ids have none.
func Slashed(id string) []string {
	tenant, name, n, numbered := split(id)
	p := strings.Split(name, ".")
	if len(p) != 4 {
		return nil
	}
	if numbered {
		n = "#" + n
	}
	if tenant != "" {
		tenant += "/"
	}
	return []string{tenant + p[0] + "/" + p[2] + n, tenant + p[0] + "." + p[1] + "/" + p[2] + "." + p[3] + n}
}

// near is the maximum edit distance of a suggestion.
const near = 3

func missing(kind Kind, reference string, ids []string) error {
	if reference == "" {
		return fmt.Errorf("empty name of %s: %w", kind, api.ErrInvalid)
	}
	hint := ""
	if guess := nearest(reference, ids); guess != "" {
		hint = fmt.Sprintf("; did you mean %s?", guess)
	} else if len(ids) == 0 {
		hint = fmt.Sprintf("; there are no %ss", kind)
	}
	return fmt.Errorf("%s %q: %w%s", kind, reference, api.ErrNotFound, hint)
}

func nearest(reference string, ids []string) string {
	best, at := "", near+1
	for _, id := range ids {
		for _, form := range forms(id) {
			if d := api.EditDistance(reference, form); d < at {
				best, at = form, d
			}
		}
	}
	return best
}

// forms returns the forms of an id that suggestions use.
func forms(id string) []string {
	_, name, n, numbered := split(id)
	number := ""
	if numbered {
		number = "#" + n
	}
	all := []string{name + number}
	if p := strings.Split(name, "."); len(p) == 4 {
		all = append(all, p[0]+"/"+p[2]+number)
	} else {
		all = append(all, p[0]+number)
	}
	return all
}

// Compare orders the ids of instances by name and then by number.
func Compare(a, b api.InstanceID) int {
	return cmp.Or(cmp.Compare(a.Service(), b.Service()), cmp.Compare(a.Number(), b.Number()))
}
