package httpapi

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// The parts that several inputs and outputs share.
type (
	ListInput struct {
		Limit  int        `query:"limit" minimum:"1" maximum:"5000" default:"500" doc:"Objects on a page."`
		Cursor string     `query:"cursor" doc:"Where the page begins: next of the previous page."`
		Tenant api.Tenant `query:"tenant" doc:"Only objects of this tenant; without it, all that the user may see."`
		Watch  bool       `query:"watch" doc:"Stream changes (text/event-stream) instead of a page."`
		Since  string     `query:"since" doc:"With watch: the revision after which to begin; without it, now."`
		Under  string     `query:"under" doc:"Only objects of this application, service or custom kind, by its id."`
	}
	listOut[T any] struct {
		Link string `header:"Link" doc:"rel=next, if there is a next page."`
		Body api.Page[T]
	}
	objectIn struct {
		ID          string `path:"id" doc:"The object's id, with ~ for / and #."`
		IfNoneMatch string `header:"If-None-Match" doc:"The ETag that the client has: 304 if it is still the same."`
	}
	ChangeInput struct {
		ID      string `path:"id" doc:"The object's id, with ~ for / and #."`
		IfMatch string `header:"If-Match" doc:"The object's ETag, or *."`
	}
	objectOut[T any] struct {
		Status int
		ETag   string `header:"ETag"`
		Body   T
	}
)

// object returns an answer with the object, or 304 if the client has this revision.
func object[T any](o T, r api.Revision, ifNoneMatch string) *objectOut[T] {
	out := &objectOut[T]{Status: http.StatusOK, ETag: etag(r), Body: o}
	if notModified(ifNoneMatch, r) {
		out.Status = http.StatusNotModified
	}
	return out
}

// read returns an object on which the principal may do the action. what is its kind, for
// ErrNotFound.
func read[T any, ID interface {
	~string
	Tenant() api.Tenant
}](ctx context.Context, a *API, p rights.Principal, action rights.Action, what string, id ID, of func(ID) (T, bool)) (o T, err error) {
	if err := rights.Allowed(p, action, id.Tenant()); err != nil {
		return o, err
	}
	var ok bool
	if err := a.owner.Read(ctx, func() { o, ok = of(id) }); err != nil {
		return o, err
	}
	if !ok {
		return o, missing(what, id)
	}
	return o, nil
}

func missing[ID ~string](what string, id ID) error {
	return fmt.Errorf("%s %s: %w", what, id, api.ErrNotFound)
}

// listing describes the objects of a list.
type listing[T any] struct {
	path   string
	action rights.Action
	all    func(api.Tenant) []T // called on the core's owner
	tenant func(T) api.Tenant
	id     func(T) string
	key    func(T) string // the order of the list; nil: by id
	only   func(T) bool   // an additional filter; nil: none
	tail   int            // only this many, the last ones; 0: all

	unfiltered bool // the list ignores ListInput.Under
}

// list returns a page of the objects that the principal may see.
func list[T any](ctx context.Context, a *API, p rights.Principal, in *ListInput, l listing[T]) (*listOut[T], error) {
	tenant, err := tenantOf(p, l.action, in.Tenant)
	if err != nil {
		return nil, err
	}
	var all []T
	var rev api.Revision
	if err := a.owner.Read(ctx, func() { all, rev = l.all(tenant), a.objects.Revision() }); err != nil {
		return nil, err
	}
	key := l.id
	if l.key != nil {
		key = l.key
	}
	seen := slices.DeleteFunc(visible(p, l.action, all, l.tenant), func(o T) bool {
		return !root.Within(l.tenant(o), tenant) || !l.unfiltered && !api.Under(l.id(o), in.Under) || l.only != nil && !l.only(o)
	})
	slices.SortFunc(seen, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	if l.tail > 0 && len(seen) > l.tail {
		seen = seen[len(seen)-l.tail:]
	}
	out := &listOut[T]{}
	if out.Body, err = page(seen, key, in.Limit, in.Cursor); err != nil {
		return nil, err
	}
	out.Body.Revision = rev
	if out.Body.Next != "" {
		out.Link = nextLink(l.path, in, out.Body.Next)
	}
	return out, nil
}

// visible returns the objects of the tenants in which the principal may do the action.
func visible[T any](p rights.Principal, action rights.Action, all []T, tenant func(T) api.Tenant) []T {
	seen := make([]T, 0, len(all))
	for _, o := range all {
		if rights.Allowed(p, action, tenant(o)) == nil {
			seen = append(seen, o)
		}
	}
	return seen
}

// tenantOf returns the tenant whose objects a list contains: the requested one, or the user's own,
// with the tenants below it.
func tenantOf(p rights.Principal, action rights.Action, requested api.Tenant) (api.Tenant, error) {
	if requested == "" {
		return p.Tenant, nil
	}
	return requested, rights.Allowed(p, action, requested)
}

// page returns one page of items, which are sorted by key. A cursor is the last key of the previous
// page, so that changes between two requests neither repeat nor skip other items.
func page[T any](items []T, key func(T) string, limit int, cursor string) (api.Page[T], error) {
	if cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(cursor)
		after, ok := strings.CutPrefix(string(b), "k")
		if err != nil || !ok {
			return api.Page[T]{}, fmt.Errorf("cursor %q is invalid: take it from next of the previous page: %w", cursor, api.ErrInvalid)
		}
		items = items[sort.Search(len(items), func(i int) bool { return key(items[i]) > after }):]
	}
	p := api.Page[T]{Items: items}
	if len(items) > limit {
		p.Items = items[:limit]
		p.Next = base64.RawURLEncoding.EncodeToString([]byte("k" + key(items[limit-1])))
	}
	return p, nil
}

func nextLink(path string, in *ListInput, cursor string) string {
	q := url.Values{"cursor": {cursor}, "limit": {strconv.Itoa(in.Limit)}}
	if in.Tenant != "" {
		q.Set("tenant", string(in.Tenant))
	}
	if in.Under != "" {
		q.Set("under", in.Under)
	}
	return "<" + path + "?" + q.Encode() + `>; rel="next"`
}
