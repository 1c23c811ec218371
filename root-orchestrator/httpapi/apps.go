package httpapi

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/cron"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/promexpr"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/yaml"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

func (a *API) registerApps() {
	applications := rest.Tag("applications")
	apply := func(op rest.Operation) rest.Operation {
		op = op.About("Creates the applications in the document, and changes those that exist to match it. " +
			"The whole document is checked before anything is done, and all faults are returned at once. " +
			"If-Match, or If-None-Match: * to create only, is accepted with a document of one application.")
		return a.takesSLA(op)
	}
	handle(a, apply(applications.Put("/v1/apps", "Apply an SLA", 404, 409, 412, 413, 415).Named("applySLA")), rights.AppsWrite, a.apply)
	handle(a, apply(applications.Post("/v1/apps", "Apply an SLA", 404, 409, 412, 413, 415).Named("postSLA")), rights.AppsWrite, a.apply)
	answer(a, a.takesSLA(applications.Post("/v1/apps:plan", "Plan an SLA", 404, 409, 413, 415).Named("planSLA").
		About("What applying the document would do now, if nothing else changed: what differs, which instances would be placed, replaced, stopped, "+
			"stay or wait, and where. It accepts and refuses what applying does, and changes nothing. Each chosen cluster is asked for its own view; "+
			"what it cannot place goes to the next. Nodes are named to users who may see them.")), rights.AppsWrite, a.plan)
	answer(a, applications.Get("/v1/apps/{id}/latency", "Get latencies", 404).
		About("The round trips of the links whose latency the application's SLA bounds, as the clusters know them now, in the order of the instances: "+
			"measured by the TCP connections between the instances, or estimated by the coordinates of their nodes. At most 1024."), rights.AppsRead, a.latencies)
	remove := applications.Delete("/v1/apps/{id}", "Delete app", 404, 412, 428).
		About("Withdraws all instances. The application is removed when the last one has stopped. The answer is what is left of it.")
	remove.DefaultStatus = http.StatusAccepted
	handle(a, remove, rights.AppsWrite, a.deleteApp)
	handle(a, applications.Put("/v1/services/{id}/scale", "Set scale", 404, 409, 412, 428).
		About("Sets how many instances the service should have."), rights.AppsWrite, a.scale(true))
	handle(a, applications.Post("/v1/services/{id}/scale", "Scale", 404, 409, 412).
		About("The same; If-Match is optional."), rights.AppsWrite, a.scale(false))
}

// takesSLA sets the body of an operation to an SLA. huma does not validate it, because ParseSLA
// does with better error texts.
func (a *API) takesSLA(op rest.Operation) rest.Operation {
	op.SkipValidateBody = true
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.SLA](), true, "SLA")},
		"application/yaml": {Schema: &huma.Schema{Type: "string", Description: "The same as YAML."}},
	}}
	return op
}

type applyIn struct {
	Tenant api.Tenant `query:"tenant" doc:"The owner of the applications; without it, the user's tenant."`
	IntoInput
	IfMatch     string `header:"If-Match"`
	IfNoneMatch string `header:"If-None-Match" doc:"*: create, and do not change an existing one."`
	ContentType string `header:"Content-Type"`
	Trace       string `header:"traceparent" doc:"The trace to which what follows belongs (W3C Trace Context)."`
	RawBody     []byte
}

// IntoInput names the application of a document of services alone.
type IntoInput struct {
	Application string `query:"application" maxLength:"61" doc:"NAME.NAMESPACE of the application that gets the services of a document without applications, {microservices: […]}, as Oakestra's dashboard takes it. They are added to its services, or replace those of the same name. If it does not exist, it is created."`
}

// applyTries is how often services are added to an application that others change at the same time.
const applyTries = 5

func (a *API) apply(ctx context.Context, p rights.Principal, in *applyIn) (out *objectOut[api.Applied], err error) {
	span, end := a.traced(in.Trace)
	tenant, err := a.applier(p, in.Tenant)
	if err != nil {
		return nil, err
	}
	defer func() { end(tenant, err) }()
	rev, err := ifMatch(in.IfMatch, false)
	if err != nil {
		return nil, err
	}
	create := strings.TrimSpace(in.IfNoneMatch) == "*"
	if in.Application == "" {
		return a.applyOnce(ctx, p, tenant, document{in.ContentType, in.RawBody, nil}, rev, create, span)
	}
	for n := 1; ; n++ {
		into, at, err := a.into(ctx, p, tenant, in.Application)
		if err != nil {
			return nil, err
		}
		if rev != 0 && at != rev || create && at != 0 {
			return nil, fmt.Errorf("apply: application %s is at revision %d: %w", in.Application, at, api.ErrPrecondition)
		}
		out, err := a.applyOnce(ctx, p, tenant, document{in.ContentType, in.RawBody, into}, at, at == 0, span)
		if !errors.Is(err, api.ErrPrecondition) || rev != 0 || create || n == applyTries {
			return out, err
		}
	}
}

// into returns an application as it is, with its revision, to add services to it: nil if name is empty, and one
// without services, at revision 0, if it does not exist.
func (a *API) into(ctx context.Context, p rights.Principal, tenant api.Tenant, name string) (*api.Application, api.Revision, error) {
	if name == "" {
		return nil, 0, nil
	}
	if err := rights.Allowed(p, rights.AppsRead, tenant); err != nil { // the answer has the application's other services
		return nil, 0, err
	}
	app := api.Application{}
	app.Name, app.Namespace, _ = strings.Cut(name, ".")
	if !api.ValidName(app.Name) || !api.ValidName(app.Namespace) {
		return nil, 0, fmt.Errorf("application %q: want NAME.NAMESPACE, each 1 to 30 letters, digits and inner hyphens: %w", name, api.ErrInvalid)
	}
	at := api.Revision(0)
	err := a.owner.Read(ctx, func() {
		if is, ok := a.core.App(tenant.App(app.Name, app.Namespace)); ok {
			app, at = is.Spec, is.Revision
		}
	})
	return &app, at, err
}

func (a *API) applyOnce(ctx context.Context, p rights.Principal, tenant api.Tenant, doc document, rev api.Revision, create bool, span tracing.Context) (*objectOut[api.Applied], error) {
	sla, err := a.parsing.sla(ctx, tenant, doc)
	if err != nil {
		return nil, err
	}
	if (rev != 0 || create) && len(sla.Applications) != 1 {
		return nil, fmt.Errorf("apply: If-Match and If-None-Match need a document of one application, this has %d: %w", len(sla.Applications), api.ErrInvalid)
	}
	a.tenants.RLock()
	defer a.tenants.RUnlock()
	if _, err := a.opt.Accounts.Tenant(tenant); err != nil { // it may have been deleted meanwhile
		return nil, fmt.Errorf("apply: %w", err)
	}
	out := &objectOut[api.Applied]{Status: http.StatusOK}
	for _, spec := range sla.Applications {
		id := tenant.App(spec.Name, spec.Namespace)
		var app api.App
		a.opt.Traces.Remember(tenant, string(id), span)
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

// traced returns the context of a request's span within the trace that the client asks for, or in a new one.
// end emits the span. A root that exports nothing passes the client's context on.
func (a *API) traced(traceparent string) (span tracing.Context, end func(api.Tenant, error)) {
	parent, tracer := tracing.Parse(traceparent), a.opt.Traces.Tracer()
	if tracer == nil {
		return parent, func(api.Tenant, error) {}
	}
	began := time.Now()
	if span = tracing.New(); !parent.IsZero() {
		span = parent.Child("apply", began.String())
	}
	return span, func(tenant api.Tenant, err error) {
		tracer.Emit(tracing.Span{
			Context: span, Parent: parent, Name: "apply", Kind: tracing.Server, Start: began, End: time.Now(), Err: err, Tenant: tenant,
			Attributes: map[string]string{"treeline.tenant": string(tenant)},
		})
	}
}

// applier returns the tenant whose applications a request changes: the requested one, or the user's
// own.
func (a *API) applier(p rights.Principal, tenant api.Tenant) (api.Tenant, error) {
	if tenant == "" {
		tenant = p.Tenant
	}
	if tenant == rights.System {
		return "", fmt.Errorf("apply: the system tenant cannot own applications; name another one, such as acme, with --tenant acme on the command line or ?tenant=acme in a request: %w", api.ErrInvalid)
	}
	if err := rights.Allowed(p, rights.AppsWrite, tenant); err != nil {
		return "", err
	}
	if _, err := a.opt.Accounts.Tenant(tenant); err != nil {
		return "", fmt.Errorf("apply: %w", err)
	}
	return tenant, nil
}

// partly adds to an error the applications that were applied before it.
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

func decodeSLA(doc document) (api.SLA, error) {
	kind, _, err := mime.ParseMediaType(doc.contentType)
	if doc.contentType == "" {
		kind, err = "application/json", nil
	}
	switch {
	case err != nil:
	case kind == "application/json" || strings.HasSuffix(kind, "+json"):
		return parseSLA(doc.body, doc.into)
	case kind == "application/yaml" || kind == "application/x-yaml" || kind == "text/yaml":
		body, err := yaml.ToJSON(doc.body)
		if err != nil {
			return api.SLA{}, err
		}
		return parseSLA(body, doc.into)
	}
	return api.SLA{}, problem.New(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type %q: an SLA is application/json or application/yaml", doc.contentType))
}

// parseSLA parses an SLA, or services for an application. It returns the faults as a problem.
func parseSLA(doc []byte, into *api.Application) (sla api.SLA, err error) {
	pointer := func(p string) string { return p }
	if into != nil {
		var in func(string) string
		if doc, in, err = into.AddServices(doc); err == nil {
			pointer = in
		}
	}
	if err == nil {
		sla, err = api.ParseSLA(doc)
	}
	if err == nil {
		err = cron.Check(sla, time.Now())
	}
	if err == nil {
		err = promexpr.Check(sla)
	}
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
		p.Errors = append(p.Errors, api.ProblemField{Pointer: pointer(x.Pointer), Detail: msg})
	}
	if f.More > 0 {
		p.Detail += fmt.Sprintf("; %d more faults are not listed", f.More)
	}
	return sla, p
}

func (a *API) listApps(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.App], error) {
	return list(ctx, a, p, in, listing[api.App]{
		path: "/v1/apps", action: rights.AppsRead, all: a.objects.Apps,
		tenant: func(o api.App) api.Tenant { return o.Tenant },
		id:     func(o api.App) string { return string(o.ID) },
	})
}

func (a *API) getApp(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.App], error) {
	app, err := read(ctx, a, p, rights.AppsRead, "application", api.AppID(api.FromPath(in.ID)), a.objects.App)
	return object(app, app.Revision, in.IfNoneMatch), err
}

type slaOut struct {
	ContentType string `header:"Content-Type"`
	ETag        string `header:"ETag"`
	Body        []byte
}

func (a *API) getSLA(ctx context.Context, p rights.Principal, in *objectIn) (*slaOut, error) {
	app, err := read(ctx, a, p, rights.AppsRead, "application", api.AppID(api.FromPath(in.ID)), func(id api.AppID) (api.App, bool) {
		app, ok := a.objects.App(id)
		app.Spec.Services = slices.Clone(app.Spec.Services)
		for i := range app.Spec.Services {
			m := &app.Spec.Services[i]
			if s, ok := a.objects.Service(id.Service(m.Name, m.Namespace)); ok && m.Completions == 0 && m.Scale == nil {
				m.Replicas = &s.Replicas
			}
		}
		return app, ok
	})
	if err != nil {
		return nil, err
	}
	text, err := app.Spec.Document()
	return &slaOut{ContentType: "application/json", ETag: etag(app.Revision), Body: text}, err
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
	return list(ctx, a, p, in, listing[api.Service]{
		path: "/v1/services", action: rights.AppsRead, all: a.objects.Services,
		tenant: func(o api.Service) api.Tenant { return o.ID.Tenant() },
		id:     func(o api.Service) string { return string(o.ID) },
	})
}

func (a *API) getService(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.Service], error) {
	s, err := read(ctx, a, p, rights.AppsRead, "service", api.ServiceID(api.FromPath(in.ID)), a.objects.Service)
	return object(s, s.Revision, in.IfNoneMatch), err
}

type scaleIn struct {
	ChangeInput
	Body api.Replicas
}

// scale returns the handler of a scale operation. conditional says that If-Match is required.
func (a *API) scale(conditional bool) func(context.Context, rights.Principal, *scaleIn) (*objectOut[api.Service], error) {
	return func(ctx context.Context, p rights.Principal, in *scaleIn) (*objectOut[api.Service], error) {
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
		return object(s, s.Revision, ""), err
	}
}
