package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/signing"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// objects are what the operations of registerReads read. A root.Core has them, and a root.Copy.
type objects interface {
	Revision() api.Revision
	App(id api.AppID) (api.App, bool)
	Apps(tenant api.Tenant) []api.App
	Service(id api.ServiceID) (api.Service, bool)
	Services(tenant api.Tenant) []api.Service
	RollOutHistory(id api.ServiceID) (api.RollOutHistory, bool)
	Instance(id api.InstanceID) (api.Instance, bool)
	Instances(tenant api.Tenant) []api.Instance
}

// registerReads registers the operations that a standby answers, too, because all that they answer derives from stored
// documents.
func (a *API) registerReads() {
	applications, rollouts, instances := rest.Tag("applications"), rest.Tag("rollouts"), rest.Tag("instances")
	handle(a, a.watchable(applications.Get("/v1/apps", "List apps"), "app", rights.AppsRead), rights.AppsRead, a.listApps)
	handle(a, applications.Get("/v1/apps/{id}", "Get app", 404), rights.AppsRead, a.getApp)
	handle(a, applications.Get("/v1/apps/{id}/sla", "Get SLA", 404).
		About("The application as an SLA, to change and apply: with explicit units, and the present number of instances."), rights.AppsRead, a.getSLA)
	handle(a, a.watchable(applications.Get("/v1/services", "List services"), "service", rights.AppsRead), rights.AppsRead, a.listServices)
	handle(a, applications.Get("/v1/services/{id}", "Get service", 404), rights.AppsRead, a.getService)
	answer(a, rollouts.Get("/v1/services/{id}/rollout/history", "Get rollout history", 404).
		About("The versions of the service, the oldest first. The newest ten are kept."), rights.AppsRead, a.rollOutHistory)
	handle(a, a.watchable(instances.Get("/v1/instances", "List instances"), "instance", rights.AppsRead), rights.AppsRead, a.listInstances)
	handle(a, instances.Get("/v1/instances/{id}", "Get instance", 404), rights.AppsRead, a.getInstance)
}

// MaxAge is how old a copy may be that answers.
const MaxAge = time.Second

// CopyOptions configure a Copy.
type CopyOptions struct {
	Ring   func() (*jwt.Ring, error) // a new ring, whose keys are replaced by those in the store
	Sealer *seal.Sealer
	Log    *slog.Logger
	Rate   float64          // as in Options
	Now    func() time.Time // time.Now
}

// Copy answers the operations of registerReads at a standby, from a copy of the stored documents that a shared.Follower
// keeps. Everything else is forwarded: other operations and watches, requests that must not be answered by a cache
// (Cache-Control), those whose token the copy does not accept, all while the copy is older than MaxAge, and all that the
// copy would not answer with success, because the object or the right to it may be new.
//
// Rights are checked by the same copy under the same lock as the objects. A right that was revoked is thus used for
// at most MaxAge after the revocation was acknowledged. The header Age (RFC 9111) has the age in whole seconds, rounded up.
//
// It writes nothing: it has no store, no owner that takes inputs, no webhooks, and no operation that changes something.
// It is safe for concurrent use.
type Copy struct {
	opt CopyOptions
	api *API

	mu   sync.RWMutex // guards the fields below, and objects, owners and opt.Accounts of api; held shared by a read
	core *root.Copy
	ring *jwt.Ring
	keys bool      // ring has the keys in the store
	asOf time.Time // the time of the copy; zero: not known

	written sync.Mutex // guards write
	write   time.Time  // when the last forwarded request was executed that may have changed something
}

// NewCopy returns a Copy that answers nothing before the first Reset and Current.
func NewCopy(o CopyOptions) (*Copy, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Copy{opt: o}
	a := &API{opt: Options{Log: o.Log, Now: o.Now}, owner: &readers{c}}
	a.requests = apishare.New(apishare.Options{Person: principal, Rate: o.Rate, Now: o.Now})
	a.router = rest.Router(rest.Recover(o.Log, "root"), a.authenticate, a.requests.Wrap)
	a.huma = humachi.New(a.router, rest.Config("Treeline root", "", description, ""))
	a.registerReads()
	c.api = a
	return c, c.Reset(nil)
}

// readers is the Owner of a copy. A read holds the lock already.
type readers struct{ *Copy }

// Do implements Owner: a copy takes no input.
func (*readers) Do(context.Context, root.Input, func()) error {
	return fmt.Errorf("a standby changes nothing: %w", api.ErrUnavailable)
}

// Read implements Owner.
func (*readers) Read(_ context.Context, fn func()) error {
	fn()
	return nil
}

// nowhere is the store of a copy's accounts.
type nowhere struct{}

// Save implements store.Store.
func (nowhere) Save(context.Context, []store.Doc) error {
	return fmt.Errorf("a standby stores nothing: %w", api.ErrUnavailable)
}

// Load implements store.Store.
func (nowhere) Load(context.Context, func(store.Doc) error) error { return nil }

// Close implements store.Store.
func (nowhere) Close() error { return nil }

// Reset implements shared.Copy.
func (c *Copy) Reset(docs []store.Doc) error {
	ring, err := c.opt.Ring()
	if err != nil {
		return err
	}
	accounts, err := account.New(account.Options{
		Store: nowhere{}, Loaded: docs, Ring: ring, Issuer: api.TokenIssuer, Audience: api.TokenAudience, Now: c.opt.Now, Log: c.opt.Log,
	})
	if err != nil {
		return err
	}
	core := root.NewCopy()
	keys := false
	for _, d := range docs {
		if err := c.adopt(core, ring, &keys, d); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core, c.ring, c.keys, c.asOf = core, ring, keys, time.Time{}
	c.api.objects, c.api.owners, c.api.opt.Accounts = core, core.Owners(), accounts
	return nil
}

func (c *Copy) adopt(core *root.Copy, ring *jwt.Ring, keys *bool, d store.Doc) error {
	if d.Kind == signing.Kind {
		if err := signing.Adopt(ring, c.opt.Sealer, d, c.opt.Now()); err != nil {
			return fmt.Errorf("adopt the keys of tokens: %w", err)
		}
		*keys = true
	}
	return core.Adopt(d)
}

// Adopt implements shared.Copy.
func (c *Copy) Adopt(docs []store.Doc) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range docs {
		if err := c.adopt(c.core, c.ring, &c.keys, d); err != nil {
			return err
		}
		if err := c.api.opt.Accounts.Adopt(d); err != nil {
			return err
		}
	}
	return nil
}

// Current implements shared.Copy.
func (c *Copy) Current(asOf time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asOf = asOf
}

// Forwarded says that the active replica has executed a request just now, before the client has the answer. The client
// then reads what it wrote: the copy answers when it is newer.
func (c *Copy) Forwarded(method string) {
	if method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions {
		return
	}
	c.written.Lock()
	defer c.written.Unlock()
	c.write = time.Now()
}

// Reads reports whether the copy may answer a request, if it is current.
func (c *Copy) Reads(r *http.Request) bool {
	path, h := r.URL.Path, r.Header
	switch {
	case r.Method != http.MethodGet, r.ContentLength != 0, r.TLS != nil && len(r.TLS.PeerCertificates) > 0:
		return false
	case h.Get("Authorization") == "", h.Get("Upgrade") != "", h.Get("Cache-Control") != "", h.Get("Pragma") != "":
		return false
	case !strings.HasPrefix(path, "/v1/apps") && !strings.HasPrefix(path, "/v1/services") && !strings.HasPrefix(path, "/v1/instances"):
		return false // huma has paths of its own
	case r.URL.Query().Has("watch"):
		return false
	}
	return c.api.router.Match(chi.NewRouteContext(), r.Method, path)
}

// Answer answers a request for which Reads is true, or returns false and has written nothing.
func (c *Copy) Answer(w http.ResponseWriter, r *http.Request) bool {
	got := &kept{header: http.Header{}}
	asOf := c.read(got, r)
	if asOf.IsZero() || got.status != http.StatusOK && got.status != http.StatusNotModified {
		return false
	}
	old := age(asOf) // of what is sent now: the process may have been paused
	if old > MaxAge {
		return false
	}
	for name, values := range got.header {
		w.Header()[name] = values
	}
	w.Header().Set("Age", strconv.Itoa(int((old+time.Second-1)/time.Second)))
	w.WriteHeader(got.status)
	_, _ = w.Write(got.body.Bytes())
	return true
}

// read serves a request from the copy and returns the time of the copy, or zero if it is too old or about to change: requests
// do not queue for it. The lock is held until the answer is complete, and not while it is sent.
func (c *Copy) read(w http.ResponseWriter, r *http.Request) time.Time {
	c.written.Lock()
	write := c.write
	c.written.Unlock()
	if !c.mu.TryRLock() {
		return time.Time{}
	}
	defer c.mu.RUnlock()
	if c.asOf.IsZero() || !c.keys || age(c.asOf) > MaxAge || !c.asOf.After(write) {
		return time.Time{}
	}
	c.api.router.ServeHTTP(w, r)
	return c.asOf
}

// age returns how long ago t was, by the clock that has advanced more: the monotonic one stands still while the machine is
// suspended, and the other one may be set back.
func age(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// kept is an answer that is not sent yet.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *kept) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *kept) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

// Write implements http.ResponseWriter.
func (r *kept) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}
