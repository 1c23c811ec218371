package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/jsonschema"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/root/custom"
)

var (
	customBound = fairshare.Bound{Per: "topmost tenant", Beyond: "429, or 503 when all are taken", Attack: "TestCustomResourcesOfOneTenantLeaveRoomForOthers"}
	_           = customBound.Declare("custom kinds", custom.MaxKinds, custom.MaxKindsOfTenant)
	_           = customBound.Declare("custom resources", custom.MaxResources, custom.MaxResourcesOfTenant)
	_           = fairshare.Declare(fairshare.Bound{
		Resource: "custom kinds and resources, size", Total: custom.MaxBytes >> 20, Unit: "MiB", Share: []int{custom.MaxBytesOfTenant >> 20},
		Per: customBound.Per, Beyond: customBound.Beyond + "; a schema and a resource have at most 32 KiB each", Attack: "TestLargeCustomResourcesLeaveRoomForOthers",
	})
)

// Limits for checking custom resources by their schemas. A check takes at most about a second and 100 MiB
// (tested in internal/jsonschema).
const (
	checkAll    = 2
	checkTenant = 1
	checkWait   = 10 * time.Second // maximum time that a request waits, and that the resources of a kind may take
	checkTries  = 5                // while others change the kind or its resources
)

var checkTurns = fairshare.Declare(fairshare.Bound{
	Resource: "custom resources that wait to be checked", Total: 1024, Share: []int{64}, Per: "topmost tenant",
	Beyond: "2 requests are checked at once, 1 of one tenant, and tenants take turns; 429 after 10 s and beyond the share",
	Attack: "TestChecksOfOneTenantLeaveTurnsForOthers",
})

func (a *API) registerCustom() {
	kinds, resources := rest.Tag("kinds"), rest.Tag("resources")
	handle(a, a.watchable(kinds.Get("/v1/kinds", "List kinds").About("The custom kinds."), "kind", rights.AppsRead), rights.AppsRead,
		func(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.CustomKind], error) {
			return list(ctx, a, p, in, listing[api.CustomKind]{
				path: "/v1/kinds", action: rights.AppsRead, all: a.core.CustomKinds, unfiltered: true,
				tenant: func(o api.CustomKind) api.Tenant { return o.Tenant }, id: func(o api.CustomKind) string { return string(o.ID) },
			})
		})
	handle(a, kinds.Get("/v1/kinds/{id}", "Get kind", 404), rights.AppsRead,
		func(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.CustomKind], error) {
			o, err := read(ctx, a, p, rights.AppsRead, "kind", api.KindID(api.FromPath(in.ID)), a.core.CustomKind)
			return object(o, o.Revision, in.IfNoneMatch), err
		})
	handle(a, kinds.Create("/v1/kinds", "Create kind", 404, 409).
		About("Defines a kind of custom resources, for one tenant, with a JSON Schema (draft 2020-12) for their spec."), rights.AppsWrite, a.createKind)
	handle(a, kinds.Put("/v1/kinds/{id}", "Replace kind", 404, 409, 412, 428).
		About("A schema that existing resources violate is refused with their names."), rights.AppsWrite, a.replaceKind)
	act(a, kinds.Delete("/v1/kinds/{id}", "Delete kind", 404, 409, 412, 428).About("One that has resources is deleted with force only, and then with them."), rights.AppsWrite, a.deleteKind)

	handle(a, a.watchable(resources.Get("/v1/resources", "List resources").About("The custom resources; under=<tenant>/<kind> selects those of a kind."), "resource", rights.AppsRead), rights.AppsRead,
		func(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.CustomResource], error) {
			return list(ctx, a, p, in, listing[api.CustomResource]{
				path: "/v1/resources", action: rights.AppsRead, all: a.core.AllCustom,
				tenant: func(o api.CustomResource) api.Tenant { return o.Tenant }, id: func(o api.CustomResource) string { return string(o.ID) },
			})
		})
	handle(a, resources.Get("/v1/resources/{id}", "Get resource", 404), rights.AppsRead,
		func(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.CustomResource], error) {
			o, err := read(ctx, a, p, rights.AppsRead, "resource", api.CustomID(api.FromPath(in.ID)), a.core.Custom)
			return object(o, o.Revision, in.IfNoneMatch), err
		})
	handle(a, resources.Create("/v1/resources", "Create resource", 404, 409), rights.AppsWrite, a.createCustom)
	handle(a, resources.Put("/v1/resources/{id}", "Replace resource", 404, 409, 412, 428), rights.AppsWrite, a.replaceCustom)
	act(a, resources.Delete("/v1/resources/{id}", "Delete resource", 404, 412, 428), rights.AppsWrite,
		func(ctx context.Context, p rights.Principal, in *ChangeInput) error {
			id := api.CustomID(api.FromPath(in.ID))
			rev, err := a.changes(p, id.Tenant(), in)
			if err != nil {
				return err
			}
			return a.owner.Do(ctx, root.DeleteCustom{ID: id, IfMatch: rev, By: p.User}, nil)
		})
}

// changes returns the revision at which the principal may change an object of a tenant, 0 for any.
func (a *API) changes(p rights.Principal, t api.Tenant, in *ChangeInput) (api.Revision, error) {
	if err := rights.Allowed(p, rights.AppsWrite, t); err != nil {
		return 0, err
	}
	return ifMatch(in.IfMatch, true)
}

// checked calls fn when it is the tenant's turn, and again while the objects that it checks are changed meanwhile.
func (a *API) checked(ctx context.Context, t api.Tenant, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	leave, err := a.checks.Enter(ctx, a.opt.Now(), []string{string(t.Top())}, false)
	if err == nil {
		defer leave()
		for range checkTries {
			if err = fn(ctx); !errors.Is(err, custom.ErrChecked) {
				break
			}
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return problem.New(http.StatusTooManyRequests, fmt.Sprintf("not checked within %s; send fewer requests at the same time, or a simpler schema", checkWait))
	case errors.Is(err, custom.ErrChecked):
		return fmt.Errorf("%w; repeat the request: %w", err, api.ErrConflict)
	}
	return err
}

type createKindIn struct {
	Tenant api.Tenant `query:"tenant" doc:"The owner; without it, the user's tenant."`
	Body   api.NewCustomKind
}

func (a *API) createKind(ctx context.Context, p rights.Principal, in *createKindIn) (*objectOut[api.CustomKind], error) {
	tenant, err := a.applier(p, in.Tenant)
	if err != nil {
		return nil, err
	}
	if !api.ValidKindName(in.Body.Name) {
		return nil, fmt.Errorf("name %.80q: want at most 63 lower-case letters, digits and inner hyphens, and none of Treeline's own kinds: %w", in.Body.Name, api.ErrInvalid)
	}
	out, err := a.putKind(ctx, custom.KindRequest{ID: tenant.CustomKind(in.Body.Name), Create: true, By: p.User}, in.Body)
	if err == nil {
		out.Status = http.StatusCreated
	}
	return out, err
}

type replaceKindIn struct {
	ChangeInput
	Body api.NewCustomKind
}

func (a *API) replaceKind(ctx context.Context, p rights.Principal, in *replaceKindIn) (*objectOut[api.CustomKind], error) {
	id := api.KindID(api.FromPath(in.ID))
	rev, err := a.changes(p, id.Tenant(), &in.ChangeInput)
	if err != nil {
		return nil, err
	}
	if n := in.Body.Name; n != "" && n != id.Name() {
		return nil, fmt.Errorf("name %.80q: the kind is %s, and a name does not change: %w", n, id.Name(), api.ErrInvalid)
	}
	return a.putKind(ctx, custom.KindRequest{ID: id, IfMatch: rev, By: p.User}, in.Body)
}

// putKind checks a schema and all resources of the kind by it, and stores it.
func (a *API) putKind(ctx context.Context, r custom.KindRequest, n api.NewCustomKind) (*objectOut[api.CustomKind], error) {
	if len(n.Schema) == 0 {
		return nil, fmt.Errorf("schema is missing; {} allows everything: %w", api.ErrInvalid)
	}
	var text bytes.Buffer
	if err := json.Compact(&text, n.Schema); err != nil {
		return nil, fmt.Errorf("schema: %w: %w", err, api.ErrInvalid)
	}
	r.Description, r.Schema = n.Description, text.Bytes()
	var out api.CustomKind
	err := a.checked(ctx, r.ID.Tenant(), func(ctx context.Context) error {
		schema, err := jsonschema.Compile(r.Schema)
		if err != nil {
			return inBody("the schema has faults", "/schema", err)
		}
		var existing []api.CustomResource
		if err := a.owner.Read(ctx, func() { existing, r.Checked = a.core.CustomOf(r.ID) }); err != nil {
			return err
		}
		if err := violators(ctx, schema, existing); err != nil {
			return fmt.Errorf("kind %s: %w", r.ID, err)
		}
		a.tenants.RLock()
		defer a.tenants.RUnlock()
		if _, err := a.opt.Accounts.Tenant(r.ID.Tenant()); err != nil { // it may have been deleted meanwhile
			return err
		}
		return a.owner.Do(ctx, root.PutCustomKind(r), func() { out, _ = a.core.CustomKind(r.ID) })
	})
	return object(out, out.Revision, ""), err
}

// bodyFaults are the faults of a part of a request's body.
type bodyFaults struct {
	text   string
	at     string // a JSON pointer
	faults *jsonschema.Faults
}

// inBody names the faults of a part of the body, which the answer lists, and prefixes other errors.
func inBody(text, at string, err error) error {
	var f *jsonschema.Faults
	if !errors.As(err, &f) {
		return fmt.Errorf("%s: %w", text, err)
	}
	return &bodyFaults{text, at, f}
}

func (b *bodyFaults) Error() string                     { return b.text + ": " + b.faults.Unwrap().Error() }
func (b *bodyFaults) Unwrap() error                     { return b.faults }
func (b *bodyFaults) ProblemFields() []api.ProblemField { return b.faults.Below(b.at) }

// shownViolators is the number of resources that an error names.
const shownViolators = 10

// violators returns ErrConflict with the names of the resources that violate a schema.
func violators(ctx context.Context, schema *jsonschema.Schema, all []api.CustomResource) error {
	var names []string
	var first error
	for _, o := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := schema.Check(o.Spec); err != nil {
			if first == nil {
				first = fmt.Errorf("%s: %s", o.Name, strings.TrimSuffix(err.Error(), ": "+api.ErrInvalid.Error()))
			}
			names = append(names, o.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	text := strings.Join(names[:min(len(names), shownViolators)], ", ")
	if more := len(names) - shownViolators; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%d of %d resources violate the new schema: %s (%w); change them first: %w", len(names), len(all), text, first, api.ErrConflict)
}

func (a *API) deleteKind(ctx context.Context, p rights.Principal, in *struct {
	ChangeInput
	Force bool `query:"force" doc:"Delete it with its resources."`
},
) error {
	id := api.KindID(api.FromPath(in.ID))
	rev, err := a.changes(p, id.Tenant(), &in.ChangeInput)
	if err != nil {
		return err
	}
	return a.owner.Do(ctx, root.DeleteCustomKind{ID: id, IfMatch: rev, Force: in.Force, By: p.User}, nil)
}

type createCustomIn struct {
	Tenant api.Tenant `query:"tenant" doc:"The owner of the kind and the resource; without it, the user's tenant."`
	Body   api.NewCustomResource
}

func (a *API) createCustom(ctx context.Context, p rights.Principal, in *createCustomIn) (*objectOut[api.CustomResource], error) {
	tenant, err := a.applier(p, in.Tenant)
	if err != nil {
		return nil, err
	}
	if !api.ValidKindName(in.Body.Kind) || !api.ValidResourceName(in.Body.Name) {
		return nil, fmt.Errorf("kind %.80q, name %.80q: want at most 63 lower-case letters, digits and inner hyphens each: %w", in.Body.Kind, in.Body.Name, api.ErrInvalid)
	}
	out, err := a.putCustom(ctx, custom.Request{ID: tenant.CustomKind(in.Body.Kind).Resource(in.Body.Name), Create: true, By: p.User}, in.Body.Spec)
	if err == nil {
		out.Status = http.StatusCreated
	}
	return out, err
}

type replaceCustomIn struct {
	ChangeInput
	Body api.NewCustomResource
}

func (a *API) replaceCustom(ctx context.Context, p rights.Principal, in *replaceCustomIn) (*objectOut[api.CustomResource], error) {
	id := api.CustomID(api.FromPath(in.ID))
	rev, err := a.changes(p, id.Tenant(), &in.ChangeInput)
	if err != nil {
		return nil, err
	}
	if b := in.Body; b.Kind != "" && b.Kind != id.Kind().Name() || b.Name != "" && b.Name != id.Name() {
		return nil, fmt.Errorf("kind %.80q, name %.80q: the resource is %s, and its kind and name do not change: %w", b.Kind, b.Name, id.Local(), api.ErrInvalid)
	}
	return a.putCustom(ctx, custom.Request{ID: id, IfMatch: rev, By: p.User}, in.Body.Spec)
}

// putCustom checks a resource by the schema of its kind, and stores it.
func (a *API) putCustom(ctx context.Context, r custom.Request, spec json.RawMessage) (*objectOut[api.CustomResource], error) {
	var text bytes.Buffer
	if err := json.Compact(&text, spec); err != nil {
		return nil, fmt.Errorf("spec is missing or no JSON: %w: %w", err, api.ErrInvalid)
	}
	r.Spec = text.Bytes()
	var out api.CustomResource
	err := a.checked(ctx, r.ID.Tenant(), func(ctx context.Context) error {
		var kind api.CustomKind
		if err := a.owner.Read(ctx, func() { kind, _ = a.core.CustomKind(r.ID.Kind()) }); err != nil {
			return err
		}
		if kind.Revision != 0 {
			schema, err := jsonschema.Compile(kind.Schema)
			if err != nil {
				return fmt.Errorf("kind %s: %w", kind.ID, err)
			}
			if err := schema.Check(r.Spec); err != nil {
				return inBody(fmt.Sprintf("resource %s violates the schema of its kind", r.ID), "/spec", err)
			}
		}
		r.Checked = kind.Revision
		return a.owner.Do(ctx, root.PutCustom(r), func() { out, _ = a.core.Custom(r.ID) })
	})
	return object(out, out.Revision, ""), err
}
