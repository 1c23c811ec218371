// Package httpapi is the cluster's REST API for its operator, /v1: nodes, instances, join
// tokens for nodes, and scaling while the root is unreachable. It has the conventions of the
// root's API: OpenAPI from the types, problem details, ids in paths with "~" for "/" and "#"
// (api.PathOf).
//
// It authenticates and authorizes requests. The core (package cluster) decides what happens
// to nodes and instances.
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
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxBody bounds the body of a request.
const maxBody = 64 << 10

// Owner is the goroutine that owns the core (package loop).
type Owner interface {
	// Do steps the core, and then runs after on the owner's goroutine.
	Do(ctx context.Context, in cluster.Input, after func()) error
	// Read runs fn on the owner's goroutine.
	Read(ctx context.Context, fn func()) error
}

// Core has the reads of the cluster's core. They run on its owner's goroutine.
type Core interface {
	Node(api.NodeID) (api.Node, bool)
	Nodes() []api.Node
	Instance(api.InstanceID) (api.Instance, bool)
	Instances() []api.Instance
	Why(api.InstanceID) (api.Explanation, bool)
	WhyOf(api.WhyRequest) api.Explanation
	Plan(api.ClusterPlanRequest) api.ClusterPlan
	Aggregate() api.Aggregate
	RootUp() bool
}

// Nodes reaches the nodes.
type Nodes interface {
	// Remove refuses the node's certificates from now on and ends its connections.
	Remove(ctx context.Context, n api.NodeID) error
	// Stream has the node dial out the requested stream. The caller closes it, from any
	// goroutine.
	Stream(ctx context.Context, n api.NodeID, r wire.StreamRequest) (io.ReadCloser, error)
}

// Options configure an API.
type Options struct {
	Core   Core
	Owner  Owner
	Nodes  Nodes
	Tokens *jointoken.Store
	Info   func() api.ClusterInfo // of this cluster, as it is now
	// Authenticate returns the holder of a bearer token that is presented at the cluster's
	// own port (ErrUnauthenticated).
	Authenticate func(token string) (Caller, error)
	// Spend returns the person on whose behalf the root sends the request object, by the
	// token that it delegated for it. A token is valid once (ErrUnauthenticated,
	// ErrForbidden).
	Spend   func(token, object string) (Caller, error)
	Version string
	Rate    float64          // requests a second of one person: 100, and 400 at once
	Now     func() time.Time // time.Now
	Log     *slog.Logger     // slog.Default
}

// Caller is the holder of a token.
type Caller struct {
	rights.Principal
	Life time.Duration // after which the token expires; 0: never
	Good func() error  // returns an error once the token is revoked
}

// API serves /v1. It is safe for concurrent use.
type API struct {
	opt    Options
	router chi.Router
	huma   huma.API
	shares *apishare.Shares
	plans  *fairshare.Turns
	grants grant.Set[rights.Principal] // of the requests under way
}

// New returns the API of a core.
func New(o Options) *API {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	a := &API{opt: o, plans: fairshare.NewTurns(planTurns, planAll, planTenant)}
	a.shares = apishare.New(apishare.Options{Person: principalOf, Rate: o.Rate, Now: o.Now})
	a.router = rest.Router(rest.Recover(o.Log, "cluster"), a.authenticate, a.shares.Wrap)
	a.huma = humachi.New(a.router, rest.Config("Treeline cluster", o.Version,
		"What a cluster orchestrator of Treeline offers to its operator. In paths, an id's \"/\" and \"#\" are written \"~\". Errors are problem details (RFC 9457) with a stable code.",
		"A token that the root exchanged for this cluster (POST /v1/clusters/{id}/access there), or this cluster's own operator token."))
	a.registerNodes()
	a.registerInstances()
	a.registerNet()
	a.registerTokens()
	a.registerStreams()
	return a
}

// Handler serves /v1.
func (a *API) Handler() http.Handler { return a.router }

// OpenAPI returns the API's description, as in openapi.json.
func (a *API) OpenAPI() *huma.OpenAPI { return a.huma.OpenAPI() }

type callerKey struct{}

// callerOf returns the holder of the request's token, or the zero value without a token.
func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

func principalOf(ctx context.Context) rights.Principal { return callerOf(ctx).Principal }

// authenticate determines the caller. It refuses an invalid token. Each operation decides
// about a request without a token.
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
	gate.Welcome(r.Context(), apishare.Path(c.Principal))
	ctx, release, err := a.grants.Hold(r.Context(), c.Life, c.Good)
	if err != nil {
		problem.Write(w, problemOf(err))
		return
	}
	defer release()
	next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, callerKey{}, c)))
}

// FromRoot serves the request r, which the root sends on behalf of a person. The token of
// r is valid once and for r alone. Tokens in the request's headers are ignored.
func (a *API) FromRoot(r wire.StreamRequest) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req.Header.Del("Authorization")
		c, err := a.opt.Spend(r.Token, r.CallObject())
		a.serveAs(w, req, c, err, a.router)
	})
}

// Recheck ends the requests whose tokens are revoked. It is called after revocations.
func (a *API) Recheck() { a.grants.Recheck() }

// Guard protects the metrics, which name nodes and services: they are served to this
// machine without a token, else to the operator and Admins of the system.
func (a *API) Guard(next http.Handler) http.Handler {
	return rest.Recover(a.opt.Log, "cluster")(a.authenticate(a.shares.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rest.Local(r) {
			if err := a.allowed(principalOf(r.Context()), rights.ClustersWrite); err != nil {
				problem.Write(w, problemOf(err))
				return
			}
		}
		next.ServeHTTP(w, r)
	}))))
}

// handle registers an operation. fn gets the caller and checks the rights that the object
// requires.
func handle[I, O any](a *API, op huma.Operation, fn func(context.Context, rights.Principal, *I) (*O, error)) {
	op.Security = []map[string][]string{{"bearer": {}}}
	op.Errors = append(op.Errors, 401, 403, 422, 429, 500)
	op.MaxBodyBytes = cmp.Or(op.MaxBodyBytes, maxBody)
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		p := principalOf(ctx)
		out, err := fn(ctx, p, in)
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

// allowed reports whether p may do the action on what belongs to the cluster's
// operator.
func (a *API) allowed(p rights.Principal, action rights.Action) error {
	return rights.Allowed(p, action, a.opt.Info().Tenant)
}

type body[T any] struct{ Body T }

type none struct{}
