// Package httpapi is the cluster's REST API for its operator, /v1: nodes, instances, join
// tokens for nodes, and scaling while the root is unreachable. It follows the conventions of
// the root's API: OpenAPI generated from types, problem details, and "~" for "/" and "#" of
// ids in paths (api.PathOf).
//
// It authenticates and authorizes requests and passes them to the core (package cluster).
//
//	h := httpapi.New(httpapi.Options{Core: core, Owner: loop, …}).Handler()
package httpapi

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/audit"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/operators"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/schedule"
	"github.com/treeline-edge/treeline/internal/watch"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxBody bounds the body of a request.
const maxBody = 64 << 10

// Nodes is access to the nodes.
type Nodes interface {
	// Remove refuses the node's certificates from now on and ends its connections.
	Remove(ctx context.Context, n api.NodeID) error
	// Stream requests a stream that the node dials out. The caller must close it, from any
	// goroutine.
	Stream(ctx context.Context, n api.NodeID, r wire.StreamRequest) (io.ReadCloser, error)
	// Connect is Stream for a stream that carries bytes in both directions.
	Connect(ctx context.Context, n api.NodeID, r wire.StreamRequest) (io.ReadWriteCloser, error)
}

// Authority rotates the key of the cluster's certificate authority. Errors: see package rotation.
type Authority interface {
	Status() (api.Authority, error)
	Begin(ctx context.Context, by string) error
	Retire(ctx context.Context, by string, leave []api.NodeID) error
}

// Options configure an API.
type Options struct {
	Core   *cluster.Core
	Owner  *loop.Loop[cluster.Input] // of Core
	Nodes  Nodes
	Tokens *jointoken.Store
	// Operators has the named tokens that Authenticate accepts.
	Operators *operators.Store
	// Install returns where machines that join as nodes get the programs; nil: nowhere.
	Install func() *api.Installer
	Info    func() api.ClusterInfo // returns the current information about this cluster
	// Authenticate returns the holder of a bearer token at the cluster's own port. It returns
	// ErrUnauthenticated for an invalid token.
	Authenticate func(token string) (Caller, error)
	// AuthenticateOnce returns the person on whose behalf the root sends the request object, and
	// invalidates the token that the root delegated for it. It returns ErrUnauthenticated or
	// ErrForbidden for an invalid token.
	AuthenticateOnce func(token, object string) (Caller, error)
	Audit            *audit.Audit // of access to workloads
	CSI              CSI          // nil: the cluster has no drivers
	Snapshots        *snapshot.Taker
	Recipients       []string // of snapshots, by the cluster's configuration
	Scheduled        *schedule.Runner
	Authority        Authority
	Members          func() []api.Replica // all replicas of this cluster; nil: there are none
	Observe          rest.Observe         // of requests; nil: none
	Version          string
	FeedSize         int              // changes kept for watchers; default 2,000
	Rate             float64          // requests per second of one person; default 100, with bursts of 400
	Now              func() time.Time // default time.Now
	Log              *slog.Logger     // default slog.Default
}

// Caller is the holder of a token.
type Caller struct {
	rights.Principal
	Own  bool          // it is the operator's own token, not a named one or one that the root issued
	Life time.Duration // until the token expires; 0: never
	Good func() error  // returns an error once the token is revoked
	// root says that the root sends the request on behalf of the person.
	root bool
}

// feedSize is below the root's: a node that reports changes at a high rate fills the feed, with up to some KiB each, and watchers
// then list again.
const feedSize = 2000

// API serves /v1. It is safe for concurrent use.
type API struct {
	opt     Options
	router  chi.Router
	huma    huma.API
	shares  *apishare.Shares
	watches *watch.Watches
	plans   *fairshare.Turns
	usages  *fairshare.Pool
	grants  grant.Set[rights.Principal] // of requests in progress

	refusals *records.Refusals

	measured measurements
}

func New(o Options) *API {
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Install == nil {
		o.Install = func() *api.Installer { return nil }
	}
	a := &API{opt: o, plans: fairshare.NewTurns(planTurns, planAll, planTenant), usages: fairshare.NewPool(usagePlaces, fairshare.Policy{Fixed: true})}
	a.refusals = records.NewRefusals()
	a.watches = watch.New(watch.Options{Size: cmp.Or(o.FeedSize, feedSize), Floor: firstRevision(o.Now()), Now: o.Now})
	a.measured.nodes = map[api.NodeID]*measurement{}
	a.shares = apishare.New(apishare.Options{Person: principalOf, Rate: o.Rate, Now: o.Now})
	a.router = rest.Router(rest.Measure(o.Observe), rest.Recover(o.Log, "cluster"), a.authenticate, a.shares.Wrap)
	a.huma = humachi.New(a.router, rest.Config("Treeline cluster", o.Version,
		"The API of a Treeline cluster orchestrator for its operator. In paths, the \"/\" and \"#\" of an id are written \"~\". "+
			"Errors are problem details (RFC 9457) with a stable code.",
		"A token that the root issued for this cluster (POST /v1/clusters/{id}/access at the root), or the cluster's own operator token."))
	a.registerNodes()
	a.registerInstances()
	a.registerAccess()
	a.registerChanges()
	a.registerNet()
	a.registerMetrics()
	a.registerUsage()
	a.registerVolumes()
	a.registerTokens()
	a.registerOperators()
	a.registerSystem()
	renew := rest.Tag("instances").Post("/v1/auth/streams/{id}", "Renew stream", 404).Named("renewStream").About(rest.AboutRenewal)
	answer(a, renew, "", a.renewStream)
	rest.Describe(a.huma.OpenAPI())
	return a
}

// Handler serves /v1.
func (a *API) Handler() http.Handler { return a.router }

type callerKey struct{}

// callerOf returns the holder of the request's token, or the zero value without a token.
func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

func principalOf(ctx context.Context) rights.Principal { return callerOf(ctx).Principal }

// authenticate determines the caller. It refuses an invalid token. A request without a token
// passes; each operation decides about it.
func (a *API) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := rest.Bearer(r)
		if err != nil {
			problem.Write(w, problemOf(err))
			return
		}
		if token == "" {
			next.ServeHTTP(w, r)
			return
		}
		var c Caller
		err = a.shares.Token(r.RemoteAddr, token, func() (_ rights.Principal, err error) {
			c, err = a.opt.Authenticate(token)
			return c.Principal, err
		})
		a.serveAs(w, r, c, err, next)
	})
}

// serveAs serves the request of a caller. Its context ends with the token.
func (a *API) serveAs(w http.ResponseWriter, r *http.Request, c Caller, err error, next http.Handler) {
	if err != nil {
		problem.Write(w, problemOf(err))
		return
	}
	gate.MarkAuthenticated(r.Context(), apishare.Path(c.Principal))
	ctx, release, err := a.grants.Hold(r.Context(), c.Life, c.Good)
	if err != nil {
		problem.Write(w, problemOf(err))
		return
	}
	defer release()
	next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, callerKey{}, c)))
}

// FromRoot serves the request r, which the root sends on behalf of a person. The token of r
// is valid once and for r only. Tokens in the request's headers are ignored.
func (a *API) FromRoot(r wire.StreamRequest) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rest.DropBearer(req)
		c, err := a.opt.AuthenticateOnce(r.Token, r.CallObject())
		c.root = true
		a.serveAs(w, req, c, err, a.router)
	})
}

// Recheck ends the requests whose tokens are revoked. Call it after revocations.
func (a *API) Recheck() { a.grants.Recheck() }

// Guard protects the metrics, which name nodes and services. Clients on this machine need no
// token; others need the right to change the cluster. HEAD only tells whether they have it.
func (a *API) Guard(next http.Handler) http.Handler {
	return rest.Recover(a.opt.Log, "cluster")(a.authenticate(a.shares.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rest.Local(r) {
			if err := a.allowed(principalOf(r.Context()), rights.ClustersWrite); err != nil {
				problem.Write(w, problemOf(err))
				return
			}
		}
		if r.Method != http.MethodHead {
			next.ServeHTTP(w, r)
		}
	}))))
}

// handle registers an operation. The caller needs the right to the action on the objects of
// the cluster's operator. Without an action, fn must check the rights.
func handle[I, O any](a *API, r rest.Operation, action rights.Action, fn func(context.Context, rights.Principal, *I) (*O, error)) {
	op := huma.Operation(r)
	op.Security = []map[string][]string{{"bearer": {}}}
	op.Errors = append(op.Errors, 401, 403, 422, 429, 500)
	op.MaxBodyBytes = cmp.Or(op.MaxBodyBytes, maxBody)
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		p := principalOf(ctx)
		var out *O
		var err error
		ctx, done := a.operated(ctx, op)
		if action != "" {
			err = a.allowed(p, action)
		}
		if err == nil {
			out, err = fn(ctx, p, in)
		}
		done(err)
		if err != nil {
			refused := problemOf(err)
			if refused.Status == http.StatusInternalServerError {
				a.opt.Log.Error("request failed", "operation", op.OperationID, "user", p.User, "err", err)
			}
			return nil, refused
		}
		return out, nil
	})
}

// answer registers an operation whose response has a body.
func answer[I, T any](a *API, op rest.Operation, action rights.Action, fn func(context.Context, rights.Principal, *I) (T, error)) {
	handle(a, op, action, func(ctx context.Context, p rights.Principal, in *I) (*rest.Body[T], error) {
		out, err := fn(ctx, p, in)
		return &rest.Body[T]{Body: out}, err
	})
}

// act registers an operation whose response is empty.
func act[I any](a *API, op rest.Operation, action rights.Action, fn func(context.Context, rights.Principal, *I) error) {
	handle(a, op, action, func(ctx context.Context, p rights.Principal, in *I) (*rest.None, error) {
		return nil, fn(ctx, p, in)
	})
}

// page returns all items, read at a revision, on one page. No items are [] in JSON, not null.
func page[T any](at api.Revision, items []T, err error) (api.Page[T], error) {
	return api.Page[T]{Items: append([]T{}, items...), Revision: at}, err
}

// readAll calls fn on the goroutine that owns the core, and returns the revision after which watches continue.
func readAll[T any](ctx context.Context, a *API, fn func() []T) (at api.Revision, all []T, err error) {
	err = a.opt.Owner.Read(ctx, func() { at, all = a.watches.Newest(), fn() })
	return at, all, err
}

// read calls fn on the goroutine that owns the core.
func read[T any](ctx context.Context, a *API, fn func() T) (out T, err error) {
	err = a.opt.Owner.Read(ctx, func() { out = fn() })
	return out, err
}

// allowed returns an error unless p may do the action on the objects of the cluster's
// operator.
func (a *API) allowed(p rights.Principal, action rights.Action) error {
	return rights.Allowed(p, action, a.opt.Info().Tenant)
}

func problemOf(err error) *problem.Problem { return problem.Of(err, "the cluster's log") }
