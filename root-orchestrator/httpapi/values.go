package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/root/values"
)

var (
	_ = fairshare.Declare(fairshare.Bound{
		Resource: "configs and secrets", Total: values.MaxObjects, Share: []int{values.MaxOfTenant}, Per: "topmost tenant",
		Beyond: "429, or 503 when all are taken; each has at most 64 keys and 128 KiB, and those of a tenant 8 MiB",
		Attack: "TestConfigsOfOneTenantLeaveRoomForOthers",
	})
	valueSize = jsonsize.Limit{Bytes: maxValueBody, Objects: 4, Values: 4 * api.MaxValueKeys}
)

// maxValueBody limits the request of a config or secret: its values are in base64.
const maxValueBody = 2 * api.MaxValueBytes

// Sealer encrypts values for the store and decrypts them (seal.Sealer).
type Sealer interface {
	Seal(label string, v wire.Value) ([]byte, error)
	Open(label string, sealed []byte) (wire.Value, error)
}

// takesValues reports whether the request creates or replaces a config or secret. Their bodies may be
// larger than others for people who have signed in.
func takesValues(r *http.Request) bool {
	return principal(r.Context()).User != "" && (strings.HasPrefix(r.URL.Path, "/v1/configs") || strings.HasPrefix(r.URL.Path, "/v1/secrets"))
}

func (a *API) registerValues() {
	for _, kind := range []api.ValueKind{api.KindConfig, api.KindSecret} {
		name, path := string(kind), "/v1/"+string(kind)+"s"
		tag := rest.Tag(name + "s")
		shown := "Values are written only: no answer has them."
		if kind == api.KindConfig {
			shown = "Its answer has the values."
		}
		title := strings.ToUpper(name[:1]) + name[1:]
		handle(a, a.watchable(tag.Get(path, "List "+name+"s"), name, rights.AppsRead), rights.AppsRead, a.listValues(kind))
		handle(a, tag.Get(path+"/{id}", "Get "+name, 404).About(shown), rights.AppsRead, a.getValues(kind))
		handle(a, a.takesNewValues(tag.Create(path, "Create "+name, 409, 413)).About(title+"s have at most 64 keys and 128 KiB of values, which files of the tenant's services name."),
			rights.AppsWrite, a.createValues(kind))
		handle(a, a.takesNewValues(tag.Put(path+"/{id}", "Replace "+name, 404, 409, 412, 413, 428)).About("Adds a version. Running instances get it as the on_change of their files says."),
			rights.AppsWrite, a.replaceValues(kind))
		act(a, tag.Delete(path+"/{id}", "Delete "+name, 404, 409, 412, 428).About("One that a service uses is deleted with force only."), rights.AppsWrite, a.deleteValues(kind))
	}
}

// takesNewValues sets the body of an operation. huma does not validate it, because its size is checked
// before it is decoded.
func (a *API) takesNewValues(op rest.Operation) rest.Operation {
	op.SkipValidateBody = true
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.NewValues](), true, "NewValues")},
	}}
	return op
}

func (a *API) listValues(kind api.ValueKind) func(context.Context, rights.Principal, *ListInput) (*listOut[api.Values], error) {
	return func(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.Values], error) {
		return list(ctx, a, p, in, listing[api.Values]{
			path: "/v1/" + string(kind) + "s", action: rights.AppsRead,
			all:    func(t api.Tenant) []api.Values { return a.core.AllValues(kind, t) },
			tenant: func(o api.Values) api.Tenant { return o.Tenant },
			id:     func(o api.Values) string { return string(o.ID) }, unfiltered: true,
		})
	}
}

func (a *API) getValues(kind api.ValueKind) func(context.Context, rights.Principal, *objectIn) (*objectOut[api.Values], error) {
	return func(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.Values], error) {
		var sealed []byte
		v, err := read(ctx, a, p, rights.AppsRead, string(kind), api.ValuesID(api.FromPath(in.ID)), func(id api.ValuesID) (api.Values, bool) {
			k := values.Key{Kind: kind, ID: id}
			sealed, _ = a.core.SealedValues(k)
			return a.core.Values(k)
		})
		if err == nil && kind == api.KindConfig {
			v.Data, err = a.open(values.Key{Kind: kind, ID: v.ID}, sealed)
		}
		return object(v, v.Revision, in.IfNoneMatch), err
	}
}

func (a *API) open(k values.Key, sealed []byte) (map[string][]byte, error) {
	v, err := a.opt.Sealer.Open(k.String(), sealed)
	return v.Data, err
}

type newValuesIn struct {
	Tenant  api.Tenant `query:"tenant" doc:"The owner; without it, the user's tenant."`
	RawBody []byte
}

func (a *API) createValues(kind api.ValueKind) func(context.Context, rights.Principal, *newValuesIn) (*objectOut[api.Values], error) {
	return func(ctx context.Context, p rights.Principal, in *newValuesIn) (*objectOut[api.Values], error) {
		tenant, err := a.applier(p, in.Tenant)
		if err != nil {
			return nil, err
		}
		n, err := decodeValues(kind, in.RawBody)
		if err != nil {
			return nil, err
		}
		if !api.ValidValuesName(n.Name) {
			return nil, fmt.Errorf("name %q: want at most 63 lower-case letters, digits and inner hyphens: %w", n.Name, api.ErrInvalid)
		}
		out, err := a.putValues(ctx, kind, tenant.Values(n.Name), n, values.Request{Create: true, By: p.User})
		if err == nil {
			out.Status = http.StatusCreated
		}
		return out, err
	}
}

type replaceValuesIn struct {
	ChangeInput
	RawBody []byte
}

func (a *API) replaceValues(kind api.ValueKind) func(context.Context, rights.Principal, *replaceValuesIn) (*objectOut[api.Values], error) {
	return func(ctx context.Context, p rights.Principal, in *replaceValuesIn) (*objectOut[api.Values], error) {
		id := api.ValuesID(api.FromPath(in.ID))
		if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
			return nil, err
		}
		rev, err := ifMatch(in.IfMatch, true)
		if err != nil {
			return nil, err
		}
		n, err := decodeValues(kind, in.RawBody)
		if err != nil {
			return nil, err
		}
		k := values.Key{Kind: kind, ID: id}
		var sealed []byte
		var now api.Values
		if err := a.owner.Read(ctx, func() {
			sealed, _ = a.core.SealedValues(k)
			now, _ = a.core.Values(k)
		}); err != nil {
			return nil, err
		}
		if now.Version > 0 && (rev == 0 || rev == now.Revision) && now.Type == n.Type && now.Registry == n.Registry {
			old, err := a.open(k, sealed)
			if err == nil && maps.EqualFunc(old, n.Data, func(x, y []byte) bool { return string(x) == string(y) }) {
				return object(now, now.Revision, ""), nil // nothing restarts for the same values
			}
		}
		return a.putValues(ctx, kind, id, n, values.Request{IfMatch: rev, By: p.User})
	}
}

// putValues encrypts the values and passes them to the core.
func (a *API) putValues(ctx context.Context, kind api.ValueKind, id api.ValuesID, n api.NewValues, r values.Request) (*objectOut[api.Values], error) {
	r.Kind, r.ID, r.Type, r.Registry = kind, id, n.Type, n.Registry
	k := values.Key{Kind: kind, ID: id}
	v := seal.Salted(n.Data)
	for _, name := range slices.Sorted(maps.Keys(n.Data)) {
		r.Keys = append(r.Keys, api.ValueKey{Name: name, Bytes: len(n.Data[name])})
	}
	var err error
	r.Digest = v.Digest()
	if r.Sealed, err = a.opt.Sealer.Seal(k.String(), v); err != nil {
		return nil, err
	}
	var out api.Values
	err = a.owner.Do(ctx, root.PutValues(r), func() { out, _ = a.core.Values(k) })
	return object(out, out.Revision, ""), err
}

type deleteValuesIn struct {
	ChangeInput
	Force bool `query:"force" doc:"Delete it although services use it: they have no value when an instance starts."`
}

func (a *API) deleteValues(kind api.ValueKind) func(context.Context, rights.Principal, *deleteValuesIn) error {
	return func(ctx context.Context, p rights.Principal, in *deleteValuesIn) error {
		id := api.ValuesID(api.FromPath(in.ID))
		if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
			return err
		}
		rev, err := ifMatch(in.IfMatch, true)
		if err != nil {
			return err
		}
		return a.owner.Do(ctx, root.DeleteValues{Key: values.Key{Kind: kind, ID: id}, IfMatch: rev, Force: in.Force, By: p.User}, nil)
	}
}

// decodeValues decodes and checks the body of a request. Errors do not contain values.
func decodeValues(kind api.ValueKind, body []byte) (n api.NewValues, err error) {
	if err := valueSize.Check(body); err != nil {
		return n, err
	}
	if json.Unmarshal(body, &n) != nil { // the cause may show a value
		return n, fmt.Errorf("the body is not JSON of a %s: {\"name\": …, \"data\": {\"KEY\": \"base64\"}}: %w", kind, api.ErrInvalid)
	}
	bytes := 0
	for name, v := range n.Data {
		if !api.ValidValueKey(name) {
			return n, fmt.Errorf("key %q: want 1 to %d letters, digits and . _ -: %w", name, api.MaxValueKey, api.ErrInvalid)
		}
		bytes += len(name) + len(v)
	}
	switch {
	case len(n.Data) == 0 || len(n.Data) > api.MaxValueKeys:
		return n, fmt.Errorf("the %s has %d keys, want 1 to %d: %w", kind, len(n.Data), api.MaxValueKeys, api.ErrInvalid)
	case bytes > api.MaxValueBytes:
		return n, fmt.Errorf("the %s has %d bytes, want at most %d: %w", kind, bytes, api.MaxValueBytes, api.ErrTooLarge)
	case n.Type == "" && n.Registry == "":
		return n, nil
	case n.Type != api.TypeRegistry || kind != api.KindSecret:
		return n, fmt.Errorf("type %q of a %s: want registry of a secret, or none: %w", n.Type, kind, api.ErrInvalid)
	case !api.ValidRegistry(n.Registry):
		return n, fmt.Errorf("registry %q: want the host of image references: registry.example.org or registry.example.org:5000: %w", n.Registry, api.ErrInvalid)
	case len(n.Data) != 2 || n.Data[api.UsernameKey] == nil || n.Data[api.PasswordKey] == nil:
		return n, fmt.Errorf("a secret of type registry has the keys %s and %s, this has %q: %w", api.UsernameKey, api.PasswordKey, slices.Sorted(maps.Keys(n.Data)), api.ErrInvalid)
	}
	return n, nil
}
