// Package httpapi is the root's REST API, /v1. It serves sign-in, tenants, users, tokens,
// applications, services, instances, clusters and events, and forwards requests to clusters. Huma
// derives the OpenAPI document from the types; openapi.json is served and committed.
//
// The package authenticates and authorizes requests and checks preconditions. The core (package
// root) decides about the objects. The types are in package api.
//
// In URLs, each "/" and "#" of an id is written "~" (see api.PathOf): acme/shop.prod.web.v1#2 is
// /v1/instances/acme~shop.prod.web.v1~2.
//
//	h, err := httpapi.New(httpapi.Options{Core: core, Owner: loop, Accounts: accounts, …})
//	srv := http.Server{Handler: h.Handler()}
//	h.Changed(change) // for watchers, from the loop's send function
package httpapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/signing"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/schedule"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/watch"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/rootca"
	"github.com/treeline-edge/treeline/root-orchestrator/webhooks"
)

// Owner runs functions on the goroutine that owns the core (package loop).
type Owner interface {
	// Do steps the core and then calls after on the owner's goroutine.
	Do(ctx context.Context, in root.Input, after func()) error
	// Read runs fn on the owner's goroutine.
	Read(ctx context.Context, fn func()) error
}

// Clusters sends requests to clusters through their open streams.
type Clusters interface {
	// Ask makes the cluster dial a stream to the root. The caller closes the stream. It returns
	// ErrUnavailable if the cluster is not connected.
	Ask(ctx context.Context, c api.ClusterID, r wire.StreamRequest) (io.ReadCloser, error)
	// Connect is Ask for a stream that carries bytes in both directions.
	Connect(ctx context.Context, c api.ClusterID, r wire.StreamRequest) (io.ReadWriteCloser, error)
	// Revoke ends the cluster's connection and revokes its certificates.
	Revoke(ctx context.Context, c api.ClusterID) error
}

// Options configures an API.
type Options struct {
	Core     *root.Core // read on the owner's goroutine only
	Owner    Owner
	Accounts *account.Service
	Tokens   *jointoken.Store // join tokens for clusters
	// Install returns where machines that join as clusters get the programs; nil: nowhere.
	Install  func() *api.Installer
	Clusters Clusters
	Version  string
	Replicas func() []string      // URLs of all replicas of the root, for clients; nil: there are none
	Members  func() []api.Replica // all replicas of the root; nil: there are none
	Sealer   Sealer               // for configs and secrets

	Snapshots  *snapshot.Taker
	Recipients []string // of snapshots, by the root's configuration
	Scheduled  *schedule.Runner
	Signing    *signing.Keys
	Authority  *rootca.Rotation

	Store  store.Store // for answers to requests with an Idempotency-Key
	Loaded []store.Doc // all documents in the store

	Observe rest.Observe // of requests; nil: none
	// WebhookNetworks are the networks besides public addresses to which webhooks may send.
	WebhookNetworks []netip.Prefix

	FeedSize int              // changes kept for watchers; default 10,000
	Rate     float64          // requests per second of one principal; default 100, with bursts of 400
	Now      func() time.Time // default time.Now
	Log      *slog.Logger     // default slog.Default
	Traces   *tracing.Relay   // of applications; nil: none is followed
}

// API serves /v1. It is safe for concurrent use.
type API struct {
	opt      Options
	core     *root.Core
	objects  objects // core, or what a Copy has
	owner    Owner
	watches  *watch.Watches
	router   chi.Router
	huma     huma.API
	parsing  *parsing
	requests *apishare.Shares
	shares   *shares
	decoded  *fairshare.Pool // bounds the objects in clusters' answers
	answers  *answers
	checks   *fairshare.Turns // of custom resources by their schemas
	routes   []Route
	webhooks *webhooks.Hooks
	grants   grant.Set[account.Authenticated] // of the current requests
	refusals *records.Refusals

	// tenants is held while a tenant is deleted, and shared while applications of a tenant that was
	// found to exist are created, so that no application is left without its tenant.
	tenants sync.RWMutex

	mu     sync.RWMutex // guards owners
	owners map[api.ClusterID]api.Tenant

	services map[string][]api.ServiceID // by application; accessed on the core's owner only
}

// New returns the API for a restored core that has no owner yet.
func New(o Options) (*API, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Install == nil {
		o.Install = func() *api.Installer { return nil }
	}
	if o.Replicas == nil {
		o.Replicas = func() []string { return nil }
	}
	if o.Members == nil {
		o.Members = func() []api.Replica { return []api.Replica{} }
	}
	a := &API{
		opt: o, core: o.Core, objects: o.Core, owner: o.Owner,
		watches:  watch.New(watch.Options{Size: o.FeedSize, Floor: o.Core.Revision(), Now: o.Now}),
		parsing:  newParsing(),
		shares:   newShares(o.Now),
		checks:   fairshare.NewTurns(checkTurns, checkAll, checkTenant),
		refusals: records.NewRefusals(),
		decoded:  fairshare.NewPool(answerObjects, fairshare.Policy{Fixed: true}),
		owners:   map[api.ClusterID]api.Tenant{}, services: map[string][]api.ServiceID{},
	}
	o.Accounts.Revocations().Subscribe(a.grants.Recheck)
	for _, c := range o.Core.Clusters() {
		a.owners[c.ID] = c.Tenant
	}
	for _, app := range o.Core.Apps("") {
		a.services[string(app.ID)] = app.Services
	}
	var err error
	if a.answers, err = newAnswers(o.Store, o.Loaded, o.Now, o.Log); err != nil {
		return nil, err
	}
	a.requests = apishare.New(apishare.Options{Person: principal, Rate: o.Rate, Now: o.Now})
	a.router = rest.Router(rest.Measure(o.Observe), rest.Recover(o.Log, "root"), a.authenticate, a.requests.Wrap, readBody, a.answers.wrap)
	a.huma = humachi.New(a.router, rest.Config("Treeline root", o.Version, description, "An access token of /v1/auth/login, or a personal token."))
	a.registerAuth()
	a.registerTenants()
	a.registerUsers()
	a.registerReads()
	a.registerApps()
	a.registerRollOuts()
	a.registerInstances()
	a.registerAccess()
	a.registerNet()
	a.registerVolumes()
	a.registerClusters()
	a.registerValues()
	a.registerCustom()
	a.registerAddons()
	a.registerTokens()
	a.registerSystem()
	a.registerEvents()
	if err := a.openWebhooks(); err != nil {
		return nil, err
	}
	a.registerWebhooks()
	a.registerChanges()
	rest.Describe(a.huma.OpenAPI())
	return a, nil
}

const description = `The REST API of Treeline's root orchestrator, for people and programs.

In paths, "/" and "#" of an id are written "~": the instance acme/shop.prod.web.v1#2 is /v1/instances/acme~shop.prod.web.v1~2.

Errors are problem details (RFC 9457) with a stable code. All faults of a document are returned at once. An object of another tenant is answered like one that does not exist.

Objects have their revision as a strong ETag. Changing or deleting a single object requires If-Match with it, or * for any revision. The answer is 428 if the header is missing, and 412 if the object has another revision.

Lists are returned in pages (limit, cursor; Link rel=next) with the revision at which they were read. The same URL with watch=1&since=<revision> streams the later changes as server-sent events: change (api.Change), bookmark every 15 s, and gone when the position is no longer kept (410 at the start). Last-Event-ID resumes a stream.

A POST with an Idempotency-Key may be repeated for 24 hours and takes effect once, also across a restart of the root. The newest 512 answers of a person and 2048 of a tenant are kept, each of at most 64 KiB; every 8 KiB count as one.`

// Handler serves /v1.
func (a *API) Handler() http.Handler { return a.router }

// OpenAPI returns the document that openapi.json contains.
func (a *API) OpenAPI() *huma.OpenAPI { return a.huma.OpenAPI() }

// Sweep deletes expired answers to requests with an Idempotency-Key.
func (a *API) Sweep(ctx context.Context) error { return a.answers.sweep(ctx) }

// Guard restricts a handler to requests from this machine and to admins of the system. It is for
// metrics, which contain the names of clusters. HEAD only tells whether the client may read them.
func (a *API) Guard(next http.Handler) http.Handler {
	return a.authenticate(a.requests.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rest.Local(r) {
			if err := rights.Allowed(principal(r.Context()), rights.SystemRead, rights.System); err != nil {
				a.fail(w, r, err)
				return
			}
		}
		if r.Method != http.MethodHead {
			next.ServeHTTP(w, r)
		}
	})))
}

type principalKey struct{}

// principal returns the user of the request, the zero value if the request has no token.
func principal(ctx context.Context) rights.Principal {
	p, _ := ctx.Value(principalKey{}).(who)
	return p.Principal
}

// authenticated returns the user of the request with the credentials to delegate a token.
func authenticated(ctx context.Context) account.Authenticated {
	p, _ := ctx.Value(principalKey{}).(who)
	return p.Authenticated
}

type who struct {
	account.Authenticated
	token string // checked again when a stream is renewed; never forwarded
}

// authenticate checks the request's token and refuses an invalid one. Each operation decides
// whether it needs a token. The request's context is cancelled when the token expires or is
// revoked, or when its user loses a right.
func (a *API) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := rest.Bearer(r)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		if token == "" {
			next.ServeHTTP(w, r)
			return
		}
		var p account.Authenticated
		err = a.requests.Token(r.RemoteAddr, token, func() (_ rights.Principal, err error) {
			p, err = a.opt.Accounts.Authenticate(token)
			return p.Principal, err
		})
		if err != nil {
			a.fail(w, r, err)
			return
		}
		gate.MarkAuthenticated(r.Context(), apishare.Path(p.Principal))
		ctx, release, err := a.grants.Hold(r.Context(), max(1, time.Until(p.Expires)), func() error { return a.opt.Accounts.Recheck(token, p) })
		if err != nil {
			a.fail(w, r, err)
			return
		}
		defer release()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, principalKey{}, who{p, token})))
	})
}

// fail writes an error as a problem document, for handlers outside of huma.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Status == http.StatusInternalServerError {
		a.opt.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
	problem.Write(w, p)
}

// Route is an operation and the action that it requires; "" if it needs no token.
type Route struct {
	Method, Path string
	Action       rights.Action
}

// signedIn is the security requirement of operations that need a token.
var signedIn = []map[string][]string{{"bearer": {}}}

// handle registers an operation. It checks that the user's role allows the action in the user's own
// tenant; fn checks the tenant of the object.
func handle[I, O any](a *API, r rest.Operation, action rights.Action, fn func(context.Context, rights.Principal, *I) (*O, error)) {
	op := huma.Operation(r)
	a.routes = append(a.routes, Route{op.Method, op.Path, action})
	if action != "" {
		op.Security = signedIn
		op.Errors = append(op.Errors, 401, 403)
	}
	op.Errors = append(op.Errors, 422, 429, 500)
	op.OperationID = operationID(op)
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		p := principal(ctx)
		ctx, done := a.operated(ctx, p, op)
		if action != "" {
			if err := anywhere(p, action); err != nil {
				done(err)
				return nil, problemOf(err)
			}
		}
		out, err := fn(ctx, p, in)
		if done(err); err != nil {
			refused := problemOf(err)
			if refused.Status == http.StatusInternalServerError {
				a.opt.Log.Error("request failed", "operation", op.OperationID, "user", p.User, "err", err)
			}
			return nil, refused
		}
		return out, nil
	})
}

// answer registers an operation that returns a body without headers.
func answer[I, T any](a *API, op rest.Operation, action rights.Action, fn func(context.Context, rights.Principal, *I) (T, error)) {
	handle(a, op, action, func(ctx context.Context, p rights.Principal, in *I) (*rest.Body[T], error) {
		out, err := fn(ctx, p, in)
		return &rest.Body[T]{Body: out}, err
	})
}

// act registers an operation that returns no body.
func act[I any](a *API, op rest.Operation, action rights.Action, fn func(context.Context, rights.Principal, *I) error) {
	handle(a, op, action, func(ctx context.Context, p rights.Principal, in *I) (*rest.None, error) {
		return nil, fn(ctx, p, in)
	})
}

// anywhere returns an error if the principal may do the action in no tenant. That is so if it may
// not do it in its own tenant.
func anywhere(p rights.Principal, action rights.Action) error {
	return rights.Allowed(p, action, p.Tenant)
}

// operationID returns the id of the operation, or one derived from its summary: "listApps" for
// "List apps".
func operationID(op huma.Operation) string {
	if op.OperationID != "" {
		return op.OperationID
	}
	words := strings.Fields(op.Summary)
	for i, w := range words {
		words[i] = strings.ToUpper(w[:1]) + w[1:]
	}
	words[0] = strings.ToLower(words[0])
	return strings.Join(words, "")
}
