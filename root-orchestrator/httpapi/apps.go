package httpapi

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/yaml"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// The parts that inputs and outputs share.
type (
	ListInput struct {
		Limit  int        `query:"limit" minimum:"1" maximum:"5000" default:"500" doc:"Objects on a page."`
		Cursor string     `query:"cursor" doc:"Where the page begins: next of the page before."`
		Tenant api.Tenant `query:"tenant" doc:"Of this tenant alone; without it, of all that the asker sees."`
		Watch  bool       `query:"watch" doc:"Stream changes (text/event-stream) instead of a page."`
		Since  string     `query:"since" doc:"With watch: the revision after which to begin; without it, now."`
		Under  string     `query:"under" doc:"Of this application or service alone, by its id."`
	}
	listOut[T any] struct {
		Link string `header:"Link" doc:"rel=next, where there is a next page."`
		Body api.Page[T]
	}
	objectIn struct {
		ID          string `path:"id" doc:"The object's id, with ~ for / and #."`
		IfNoneMatch string `header:"If-None-Match" doc:"ETag that the asker holds: 304 while it is the same."`
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
	nothing struct{}
)

// object returns an answer with the object, or 304 if the client has that revision.
func object[T any](o T, r api.Revision, ifNoneMatch string) *objectOut[T] {
	out := &objectOut[T]{Status: http.StatusOK, ETag: etag(r), Body: o}
	if notModified(ifNoneMatch, r) {
		out.Status = http.StatusNotModified
	}
	return out
}

// listed returns a page of the objects that the user may see.
func listed[T any](path string, in *ListInput, rev api.Revision, all []T, may func(T) bool, key func(T) string) (*listOut[T], error) {
	seen := make([]T, 0, len(all))
	for _, o := range all {
		if may(o) {
			seen = append(seen, o)
		}
	}
	slices.SortFunc(seen, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	p, err := page(seen, key, in.Limit, in.Cursor)
	if err != nil {
		return nil, err
	}
	p.Revision = rev
	out := &listOut[T]{Body: p}
	if p.Next != "" {
		out.Link = nextLink(path, in, p.Next)
	}
	return out, nil
}

// tenantOf returns the tenant whose objects a list shows: the requested one, or the
// user's own with all below.
func tenantOf(p rights.Principal, action rights.Action, asked api.Tenant) (api.Tenant, error) {
	if asked == "" {
		return p.Tenant, nil
	}
	return asked, rights.Allowed(p, action, asked)
}

func (a *API) registerApps() {
	tags := []string{"applications"}
	apply := func(method, id string) huma.Operation {
		return huma.Operation{
			Method: method, Path: "/v1/apps", OperationID: id, Summary: "Apply an SLA", Tags: tags,
			Description: "Makes the document's applications what it says: those that exist are changed, others are made. " +
				"The whole document is checked before anything is done, and all faults come at once. " +
				"If-Match, or If-None-Match: * to create only, may go with a document of one application.",
			Errors:           []int{404, 409, 412, 413, 415},
			SkipValidateBody: true, // ParseSLA does, and says more
			RequestBody:      a.slaBody(),
		}
	}
	handle(a, apply(http.MethodPut, "applySLA"), rights.AppsWrite, a.apply)
	handle(a, apply(http.MethodPost, "postSLA"), rights.AppsWrite, a.apply)
	handle(a, a.planOperation(), rights.AppsWrite, a.plan)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/apps", Summary: "List apps", Tags: tags,
		Middlewares: huma.Middlewares{a.watchable("app", rights.AppsRead)},
	}, rights.AppsRead, a.listApps)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/apps/{id}", Summary: "Get app", Tags: tags, Errors: []int{404},
	}, rights.AppsRead, a.getApp)
	handle(a, huma.Operation{
		Method: http.MethodDelete, Path: "/v1/apps/{id}", Summary: "Delete app", Tags: tags, Errors: []int{404, 412, 428},
		DefaultStatus: http.StatusAccepted,
		Description:   "Withdraws all instances; the application is gone when the last has stopped. Answers what is left of it.",
	}, rights.AppsWrite, a.deleteApp)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/services", Summary: "List services", Tags: tags,
		Middlewares: huma.Middlewares{a.watchable("service", rights.AppsRead)},
	}, rights.AppsRead, a.listServices)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/services/{id}", Summary: "Get service", Tags: tags, Errors: []int{404},
	}, rights.AppsRead, a.getService)
	handle(a, huma.Operation{
		Method: http.MethodPut, Path: "/v1/services/{id}/scale", Summary: "Set scale", Tags: tags, Errors: []int{404, 409, 412, 428},
		Description: "Sets how many instances the service should have.",
	}, rights.AppsWrite, func(ctx context.Context, p rights.Principal, in *scaleIn) (*objectOut[api.Service], error) {
		return a.scale(ctx, p, in, true)
	})
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/services/{id}/scale", Summary: "Scale", Tags: tags, Errors: []int{404, 409, 412},
		Description: "The same; If-Match may be left out.",
	}, rights.AppsWrite, func(ctx context.Context, p rights.Principal, in *scaleIn) (*objectOut[api.Service], error) {
		return a.scale(ctx, p, in, false)
	})
}

func (a *API) slaBody() *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(typeOf[api.SLA](), true, "SLA")},
		"application/yaml": {Schema: &huma.Schema{Type: "string", Description: "The same as YAML."}},
	}}
}

type applyIn struct {
	Tenant      api.Tenant `query:"tenant" doc:"Whose the applications are; without it, the asker's."`
	IfMatch     string     `header:"If-Match"`
	IfNoneMatch string     `header:"If-None-Match" doc:"* makes and never changes."`
	ContentType string     `header:"Content-Type"`
	RawBody     []byte
}

func (a *API) apply(ctx context.Context, p rights.Principal, in *applyIn) (*objectOut[api.Applied], error) {
	tenant, err := a.applier(p, in.Tenant)
	if err != nil {
		return nil, err
	}
	sla, err := a.parsing.sla(ctx, tenant, in.ContentType, in.RawBody)
	if err != nil {
		return nil, err
	}
	rev, err := ifMatch(in.IfMatch, false)
	if err != nil {
		return nil, err
	}
	create := strings.TrimSpace(in.IfNoneMatch) == "*"
	if (rev != 0 || create) && len(sla.Applications) != 1 {
		return nil, fmt.Errorf("apply: If-Match and If-None-Match go with a document of one application, this has %d: %w", len(sla.Applications), api.ErrInvalid)
	}
	out := &objectOut[api.Applied]{Status: http.StatusOK}
	for _, spec := range sla.Applications {
		id := tenant.App(spec.Name, spec.Namespace)
		var app api.App
		err := a.owner.Do(ctx, root.Apply{Tenant: tenant, Spec: spec, IfMatch: rev, MustNotExist: create, By: p.User}, func() {
			app, _ = a.core.App(id)
		})
		if err != nil {
			return nil, partly(out.Body.Apps, err)
		}
		out.Body.Apps = append(out.Body.Apps, app)
	}
	if len(out.Body.Apps) == 1 {
		out.ETag = etag(out.Body.Apps[0].Revision)
	}
	return out, nil
}

// applier returns the tenant whose applications the request changes: the requested one,
// or the user's own.
func (a *API) applier(p rights.Principal, tenant api.Tenant) (api.Tenant, error) {
	if tenant == "" {
		tenant = p.Tenant
	}
	if tenant == rights.System {
		return "", fmt.Errorf("apply: the system tenant owns no applications; name one, ?tenant=acme: %w", api.ErrInvalid)
	}
	if err := rights.Allowed(p, rights.AppsWrite, tenant); err != nil {
		return "", err
	}
	if _, err := a.opt.Accounts.Tenant(tenant); err != nil {
		return "", fmt.Errorf("apply: %w", err)
	}
	return tenant, nil
}

// partly adds to an error which applications were changed before it.
func partly(done []api.App, err error) error {
	if len(done) == 0 {
		return err
	}
	ids := make([]string, len(done))
	for i, d := range done {
		ids[i] = string(d.ID)
	}
	return fmt.Errorf("applied %s, but then: %w", strings.Join(ids, ", "), err)
}

func decodeSLA(contentType string, body []byte) (api.SLA, error) {
	kind, _, err := mime.ParseMediaType(contentType)
	if contentType == "" {
		kind, err = "application/json", nil
	}
	switch {
	case err != nil:
	case kind == "application/json" || strings.HasSuffix(kind, "+json"):
		return parseSLA(body)
	case kind == "application/yaml" || kind == "application/x-yaml" || kind == "text/yaml":
		if body, err = yaml.ToJSON(body); err != nil {
			return api.SLA{}, err
		}
		return parseSLA(body)
	}
	return api.SLA{}, problem.New(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type %q: an SLA is application/json or application/yaml", contentType))
}

// parseSLA parses an SLA. It returns the faults as a problem.
func parseSLA(doc []byte) (api.SLA, error) {
	sla, err := api.ParseSLA(doc)
	var f *api.Faults
	if !errors.As(err, &f) {
		return sla, err
	}
	p := problem.New(http.StatusUnprocessableEntity, "the SLA is invalid")
	for _, x := range f.Faults {
		msg := x.Message
		if x.Fix != "" {
			msg += "; " + x.Fix
		}
		p.Errors = append(p.Errors, api.ProblemField{Pointer: x.Pointer, Detail: msg})
	}
	if f.More > 0 {
		p.Detail += fmt.Sprintf("; %d more faults are not listed", f.More)
	}
	return sla, p
}

func (a *API) listApps(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.App], error) {
	t, err := tenantOf(p, rights.AppsRead, in.Tenant)
	if err != nil {
		return nil, err
	}
	var all []api.App
	var rev api.Revision
	if err := a.owner.Read(ctx, func() { all, rev = a.core.Apps(t), a.core.Revision() }); err != nil {
		return nil, err
	}
	return listed("/v1/apps", in, rev, all,
		func(o api.App) bool {
			return within(string(o.ID), in.Under) && rights.Allowed(p, rights.AppsRead, o.Tenant) == nil
		},
		func(o api.App) string { return string(o.ID) })
}

func (a *API) getApp(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.App], error) {
	id := api.AppID(api.FromPath(in.ID))
	if err := rights.Allowed(p, rights.AppsRead, id.Tenant()); err != nil {
		return nil, err
	}
	var app api.App
	var ok bool
	if err := a.owner.Read(ctx, func() { app, ok = a.core.App(id) }); err != nil {
		return nil, err
	}
	if !ok {
		return nil, missing("application", id)
	}
	return object(app, app.Revision, in.IfNoneMatch), nil
}

func (a *API) deleteApp(ctx context.Context, p rights.Principal, in *ChangeInput) (*objectOut[api.App], error) {
	id := api.AppID(api.FromPath(in.ID))
	if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
		return nil, err
	}
	rev, err := ifMatch(in.IfMatch, true)
	if err != nil {
		return nil, err
	}
	left := api.App{ID: id, Tenant: id.Tenant(), Leaving: true}
	err = a.owner.Do(ctx, root.DeleteApp{App: id, IfMatch: rev, By: p.User}, func() {
		if app, ok := a.core.App(id); ok {
			left = app
		}
	})
	if err != nil {
		return nil, err
	}
	return &objectOut[api.App]{Status: http.StatusAccepted, ETag: etag(left.Revision), Body: left}, nil
}

func (a *API) listServices(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.Service], error) {
	t, err := tenantOf(p, rights.AppsRead, in.Tenant)
	if err != nil {
		return nil, err
	}
	var all []api.Service
	var rev api.Revision
	if err := a.owner.Read(ctx, func() { all, rev = a.core.Services(t), a.core.Revision() }); err != nil {
		return nil, err
	}
	return listed("/v1/services", in, rev, all,
		func(o api.Service) bool {
			return within(string(o.ID), in.Under) && rights.Allowed(p, rights.AppsRead, o.ID.Tenant()) == nil
		},
		func(o api.Service) string { return string(o.ID) })
}

func (a *API) getService(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.Service], error) {
	id := api.ServiceID(api.FromPath(in.ID))
	if err := rights.Allowed(p, rights.AppsRead, id.Tenant()); err != nil {
		return nil, err
	}
	var s api.Service
	var ok bool
	if err := a.owner.Read(ctx, func() { s, ok = a.core.Service(id) }); err != nil {
		return nil, err
	}
	if !ok {
		return nil, missing("service", id)
	}
	return object(s, s.Revision, in.IfNoneMatch), nil
}

type scaleIn struct {
	ChangeInput
	Body api.Replicas
}

func (a *API) scale(ctx context.Context, p rights.Principal, in *scaleIn, conditional bool) (*objectOut[api.Service], error) {
	id := api.ServiceID(api.FromPath(in.ID))
	if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
		return nil, err
	}
	rev, err := ifMatch(in.IfMatch, conditional)
	if err != nil {
		return nil, err
	}
	var s api.Service
	err = a.owner.Do(ctx, root.Scale{Service: id, Replicas: in.Body.Replicas, IfMatch: rev, By: p.User}, func() {
		s, _ = a.core.Service(id)
	})
	if err != nil {
		return nil, err
	}
	return object(s, s.Revision, ""), nil
}

func missing[ID ~string](what string, id ID) error {
	return fmt.Errorf("%s %s: %w", what, id, api.ErrNotFound)
}
