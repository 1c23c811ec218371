package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/addon"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/jsonschema"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
	"github.com/treeline-edge/treeline/root-orchestrator/root/custom"
)

// maxAddonBody limits the request to install or upgrade an addon.
const maxAddonBody = api.MaxAddonBytes + api.MaxAddonValues + 4<<10

var addonSize = jsonsize.Limit{Bytes: maxAddonBody, Values: 16 << 10}

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "addons", Total: addons.Max, Share: []int{addons.MaxOfTenant}, Per: "topmost tenant",
	Beyond: "429, or 503 when all are taken; a package has at most 256 KiB, and its objects count as those of its tenant",
	Attack: "TestAddonsOfOneTenantLeaveRoomForOthers",
})

func (a *API) registerAddons() {
	tag := rest.Tag("addons")
	takes := func(op rest.Operation) rest.Operation {
		op.SkipValidateBody = true // decoded in turns
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.NewAddon](), true, "NewAddon")},
		}}
		return op
	}
	handle(a, tag.Get("/v1/addons", "List addons"), rights.AppsRead,
		func(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.Addon], error) {
			return list(ctx, a, p, in, listing[api.Addon]{
				path: "/v1/addons", action: rights.AppsRead, all: a.core.Addons, unfiltered: true,
				tenant: func(o api.Addon) api.Tenant { return o.Tenant }, id: func(o api.Addon) string { return string(o.ID) },
			})
		})
	handle(a, tag.Get("/v1/addons/{id}", "Get addon", 404), rights.AppsRead,
		func(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.Addon], error) {
			o, err := read(ctx, a, p, rights.AppsRead, "addon", api.AddonID(api.FromPath(in.ID)), a.core.Addon)
			return object(o, o.Revision, in.IfNoneMatch), err
		})
	handle(a, takes(tag.Create("/v1/addons", "Install addon", 404, 409, 413).
		About("Creates the application, kinds, resources and webhooks of a package: all of them, or none. An object that exists already is a conflict.")), rights.AppsWrite, a.installAddon)
	handle(a, takes(tag.Put("/v1/addons/{id}", "Upgrade addon", 404, 409, 412, 413, 428).
		About("Replaces an addon by another version of its package: all of it, or nothing. Objects that the new version does not have are deleted. Values that were given before are kept.")),
		rights.AppsWrite, a.upgradeAddon)
	remove := tag.Delete("/v1/addons/{id}", "Remove addon", 404, 409, 412, 428).
		About("Removes an addon with its objects. The answer is what was deleted. Its application is removed when the last instance has stopped.")
	remove.DefaultStatus = http.StatusOK
	answer(a, remove, rights.AppsWrite, a.removeAddon)
}

type installIn struct {
	Tenant  api.Tenant `query:"tenant" doc:"The owner; without it, the user's tenant."`
	RawBody []byte
}

func (a *API) installAddon(ctx context.Context, p rights.Principal, in *installIn) (*objectOut[api.AddonApplied], error) {
	tenant, err := a.applier(p, in.Tenant)
	if err != nil {
		return nil, err
	}
	out, err := a.putAddon(ctx, p, addonIn{tenant: tenant, create: true, body: in.RawBody})
	if err == nil {
		out.Status = http.StatusCreated
	}
	return out, err
}

type upgradeIn struct {
	ChangeInput
	Downgrade     bool `query:"downgrade" doc:"Also to an older version."`
	KeepResources bool `query:"keep_resources" doc:"Kinds that the new version does not have stay, and no longer belong to the addon, if others have resources of them. Otherwise this is a conflict."`
	RawBody       []byte
}

func (a *API) upgradeAddon(ctx context.Context, p rights.Principal, in *upgradeIn) (*objectOut[api.AddonApplied], error) {
	id := api.AddonID(api.FromPath(in.ID))
	rev, err := a.changes(p, id.Tenant(), &in.ChangeInput)
	if err != nil {
		return nil, err
	}
	return a.putAddon(ctx, p, addonIn{tenant: id.Tenant(), name: id.Name(), ifMatch: rev, downgrade: in.Downgrade, keep: in.KeepResources, body: in.RawBody})
}

func (a *API) removeAddon(ctx context.Context, p rights.Principal, in *struct {
	ChangeInput
	KeepResources bool `query:"keep_resources" doc:"Kinds of which others have resources stay with these. Otherwise this is a conflict."`
},
) (api.Page[api.AddonChange], error) {
	id, out := api.AddonID(api.FromPath(in.ID)), api.Page[api.AddonChange]{Items: []api.AddonChange{}}
	rev, err := a.changes(p, id.Tenant(), &in.ChangeInput)
	if err != nil {
		return out, err
	}
	err = a.checked(ctx, id.Tenant(), func(ctx context.Context) error {
		had, err := read(ctx, a, p, rights.AppsWrite, "addon", id, a.core.Addon)
		if err != nil {
			return err
		}
		defer a.sweepLater(ctx, id)
		return a.owner.Do(ctx, root.DeleteAddon{ID: id, IfMatch: rev, KeepResources: in.KeepResources, By: p.User}, func() {
			out.Items = a.addonChanges(had, api.Addon{}, 0)
		})
	})
	return out, err
}

// addonIn is a request to install or to upgrade an addon.
type addonIn struct {
	tenant          api.Tenant
	name            string // "" for a new one
	create          bool
	ifMatch         api.Revision
	downgrade, keep bool
	body            []byte
}

// putAddon checks all parts of a package and applies them. Requests of a topmost tenant take turns, so that no other one
// deletes the webhooks of this one.
func (a *API) putAddon(ctx context.Context, p rights.Principal, in addonIn) (*objectOut[api.AddonApplied], error) {
	var out api.AddonApplied
	err := a.checked(ctx, in.tenant, func(ctx context.Context) (err error) {
		out, err = a.putAddonOnce(ctx, p, in)
		return err
	})
	return object(out, out.Addon.Revision, ""), err
}

func (a *API) putAddonOnce(ctx context.Context, p rights.Principal, in addonIn) (out api.AddonApplied, err error) {
	n, err := decodeAddon(in.body)
	if err != nil {
		return out, err
	}
	pkg := n.Package
	if in.name != "" && pkg.Name != in.name {
		return out, fmt.Errorf("package %.80q is not of addon %s: %w", pkg.Name, in.name, api.ErrInvalid)
	}
	if err := addon.Check(pkg); err != nil {
		return out, fmt.Errorf("package: %w", err)
	}
	if !addon.Runs(pkg, a.opt.Version) {
		return out, fmt.Errorf("%s %s needs Treeline %s, and the root is %s: %w", pkg.Name, pkg.Version, pkg.MinTreeline, a.opt.Version, api.ErrConflict)
	}
	if len(pkg.Webhooks) > 0 {
		if err := rights.Allowed(p, rights.EventsRead, in.tenant); err != nil {
			return out, err
		}
	}
	id := in.tenant.Addon(pkg.Name)
	var had api.Addon
	var base api.Revision
	if err := a.owner.Read(ctx, func() { had, _ = a.core.Addon(id); base = a.core.Revision() }); err != nil {
		return out, err
	}
	switch {
	case had.Revision == 0 || in.create: // the core refuses what cannot be
	case in.ifMatch != 0 && in.ifMatch != had.Revision:
		return out, fmt.Errorf("addon %s is at revision %d, not %d; get it again and repeat: %w", id, had.Revision, in.ifMatch, api.ErrPrecondition)
	case addon.Compare(pkg.Version, had.Version) < 0 && !in.downgrade:
		return out, fmt.Errorf("addon %s has version %s, and %s is older; say so if you want that (--downgrade): %w", id, had.Version, pkg.Version, api.ErrConflict)
	}
	put := root.PutAddon{Request: addons.Request{Create: in.create, IfMatch: had.Revision, Record: addons.Record{
		ID: id, Version: pkg.Version, Description: pkg.Description, Source: n.Source, Digest: n.Digest, By: p.User,
		Values: addon.Merge(had.Values, n.Values),
	}}, KeepResources: in.keep}
	filled, err := addon.Fill(pkg, put.Values)
	if err != nil {
		return out, err
	}
	if err := a.addonCustom(ctx, &put, pkg, filled, had); err != nil {
		return out, err
	}
	if filled.SLA != nil {
		sla, err := a.parsing.sla(ctx, in.tenant, document{contentType: "application/json", body: filled.SLA})
		if err != nil {
			return out, err
		}
		if len(sla.Applications) != 1 {
			return out, fmt.Errorf("the SLA of package %s has %d applications, want 1: %w", pkg.Name, len(sla.Applications), api.ErrInvalid)
		}
		put.App = &sla.Applications[0]
		put.Record.App = in.tenant.App(put.App.Name, put.App.Namespace)
	}
	defer a.sweepLater(ctx, id)
	if err := a.addonWebhooks(ctx, &put, &out, filled.Webhooks); err != nil {
		return out, err
	}
	a.tenants.RLock()
	defer a.tenants.RUnlock()
	if _, err := a.opt.Accounts.Tenant(in.tenant); err != nil { // it may have been deleted meanwhile
		return out, err
	}
	err = a.owner.Do(ctx, put, func() {
		out.Addon, _ = a.core.Addon(id)
		out.Changes = a.addonChanges(had, out.Addon, base)
	})
	if errors.Is(err, api.ErrPrecondition) {
		err = fmt.Errorf("addon %s: %w", id, custom.ErrChecked) // another request has changed it since it was read
	}
	return out, err
}

var digestRE = regexp.MustCompile(`^(sha256:[0-9a-f]{64})?$`)

func decodeAddon(body []byte) (n api.NewAddon, err error) {
	if err := addonSize.Check(body); err != nil {
		return n, fmt.Errorf("package: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&n); err != nil {
		return n, fmt.Errorf("package: %w: %w", err, api.ErrInvalid)
	}
	if len(n.Source) > 512 || len(n.Package.Description) > 500 || !digestRE.MatchString(n.Digest) {
		return n, fmt.Errorf("source, description, digest: want at most 512 and 500 bytes, and sha256:… with 64 hexadecimal digits: %w", api.ErrInvalid)
	}
	return n, nil
}

// addonCustom adds the kinds and resources of a package to a request. It checks the resources by the package's kinds,
// and those that others have of kinds that exist already.
func (a *API) addonCustom(ctx context.Context, put *root.PutAddon, pkg api.AddonPackage, f addon.Filled, had api.Addon) error {
	schemas := map[string]*jsonschema.Schema{}
	for i, k := range pkg.Kinds {
		var text bytes.Buffer
		if err := json.Compact(&text, k.Schema); err != nil {
			return fmt.Errorf("kind %s: %w: %w", k.Name, err, api.ErrInvalid)
		}
		schema, err := jsonschema.Compile(text.Bytes())
		if err != nil {
			return inBody("kind "+k.Name, fmt.Sprintf("/package/kinds/%d/schema", i), err)
		}
		schemas[k.Name] = schema
		r := custom.KindRequest{ID: put.ID.Tenant().CustomKind(k.Name), Description: k.Description, Schema: text.Bytes(), By: put.By}
		var existing []api.CustomResource
		if err := a.owner.Read(ctx, func() { existing, r.Checked = a.core.CustomOf(r.ID) }); err != nil {
			return err
		}
		existing = slices.DeleteFunc(existing, func(o api.CustomResource) bool { return slices.Contains(had.Resources, o.ID) })
		if slices.Contains(had.Kinds, r.ID) { // otherwise it is a conflict, which the core names
			if err := violators(ctx, schema, existing); err != nil {
				return fmt.Errorf("kind %s: %w", r.ID, err)
			}
		}
		put.Kinds, put.Record.Kinds = append(put.Kinds, r), append(put.Record.Kinds, r.ID)
	}
	for i, o := range f.Resources {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := custom.Request{ID: put.ID.Tenant().CustomKind(o.Kind).Resource(o.Name), Spec: o.Spec, By: put.By}
		if err := schemas[o.Kind].Check(r.Spec); err != nil {
			return inBody(fmt.Sprintf("resource %s:%s violates the schema of its kind", o.Kind, o.Name), fmt.Sprintf("/package/resources/%d/spec", i), err)
		}
		put.Resources, put.Record.Resources = append(put.Resources, r), append(put.Record.Resources, r.ID)
	}
	return nil
}

// addonWebhooks adds the webhooks of a package to a request. It keeps those that are the same, and creates the others
// before the addon lists them. Webhooks that no addon lists are deleted by sweepWebhooks.
func (a *API) addonWebhooks(ctx context.Context, put *root.PutAddon, out *api.AddonApplied, wanted []api.AddonWebhook) error {
	have := a.webhooksOf(put.ID)
	for _, w := range wanted {
		same := slices.IndexFunc(have, func(h api.Webhook) bool {
			return h.By == put.By && h.URL == w.URL && slices.Equal(h.Kinds, w.Kinds) && slices.Equal(h.Reasons, w.Reasons)
		})
		if same >= 0 {
			put.Record.Webhooks = append(put.Record.Webhooks, have[same].ID)
			have = slices.Delete(have, same, same+1)
			continue
		}
		h, err := a.webhooks.Create(ctx, api.NewWebhook{URL: w.URL, Kinds: w.Kinds, Reasons: w.Reasons}, put.ID.Tenant(), put.By, put.ID)
		if err != nil {
			return err
		}
		put.Record.Webhooks, out.Webhooks = append(put.Record.Webhooks, h.ID), append(out.Webhooks, h)
	}
	return nil
}

func (a *API) webhooksOf(id api.AddonID) []api.Webhook {
	return slices.DeleteFunc(a.webhooks.All(), func(w api.Webhook) bool { return w.Addon != id })
}

// addonsOf returns the addons that have one of the webhooks.
func addonsOf(all []api.Webhook) map[api.AddonID]bool {
	out := map[api.AddonID]bool{}
	for _, w := range all {
		if w.Addon != "" {
			out[w.Addon] = true
		}
	}
	return out
}

// sweepWait limits the deletion of webhooks after a request.
const sweepWait = 5 * time.Second

// sweepLater is sweepWebhooks after a request, whatever its result. What it cannot delete is deleted by the next request
// for the addon, or when the root starts.
func (a *API) sweepLater(ctx context.Context, id api.AddonID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepWait)
	defer cancel()
	if err := a.sweepWebhooks(ctx, id); err != nil {
		a.opt.Log.Warn("webhooks of an addon not deleted", "addon", id, "err", err)
	}
}

// sweepWebhooks deletes the webhooks that were created for an addon which does not list them. It runs in the turn of the
// addon's tenant, because a request lists its webhooks only after it has created them.
func (a *API) sweepWebhooks(ctx context.Context, id api.AddonID) error {
	have := a.webhooksOf(id)
	if len(have) == 0 {
		return nil
	}
	var now api.Addon
	if err := a.owner.Read(ctx, func() { now, _ = a.core.Addon(id) }); err != nil {
		return err
	}
	for _, w := range have {
		if !slices.Contains(now.Webhooks, w.ID) {
			if err := a.webhooks.Delete(ctx, w.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// addonChanges returns what has changed between two states of an addon; base is the revision at the first. It runs on
// the core's owner.
func (a *API) addonChanges(had, has api.Addon, base api.Revision) []api.AddonChange {
	out := []api.AddonChange{}
	add := func(kind, id string, before, after bool, now api.Revision, stays bool) {
		c := api.AddonChange{Kind: kind, ID: id, Action: "none"}
		switch {
		case !before:
			c.Action = "create"
		case !after && stays:
			c.Action = "release"
		case !after:
			c.Action = "delete"
		case now > base:
			c.Action = "update"
		}
		out = append(out, c)
	}
	for _, id := range union(had.Kinds, has.Kinds) {
		k, ok := a.core.CustomKind(id)
		add("kind", string(id), slices.Contains(had.Kinds, id), slices.Contains(has.Kinds, id), k.Revision, ok)
	}
	for _, id := range union(had.Resources, has.Resources) {
		r, _ := a.core.Custom(id)
		add("resource", string(id), slices.Contains(had.Resources, id), slices.Contains(has.Resources, id), r.Revision, false)
	}
	for _, id := range union([]api.AppID{had.App}, []api.AppID{has.App}) {
		if id != "" {
			app, _ := a.core.App(id)
			add("app", string(id), id == had.App, id == has.App, app.Revision, false)
		}
	}
	for _, id := range union(had.Webhooks, has.Webhooks) {
		add("webhook", id, slices.Contains(had.Webhooks, id), slices.Contains(has.Webhooks, id), 0, false)
	}
	return out
}

func union[T comparable](a, b []T) []T {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
