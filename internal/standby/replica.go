package standby

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/membership"
	"github.com/treeline-edge/treeline/internal/reach"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/shared"
)

// Config are the settings of a daemon with replicas.
type Config struct {
	Replica  bool
	Store    daemon.Secret
	Replicas []string      // https://host:port of all replicas, the own one included
	Lease    time.Duration // 0: the default
	Gossip   string        // host:port for gossip among the replicas; empty: there is none
}

// Validate returns ErrInvalid if a value is out of range.
func (c Config) Validate() error {
	switch good := replicas.Clean(c.Replicas); {
	case c.Replica && c.Store == "":
		return daemon.Invalid("replica", "needs store: the file in data cannot be shared with other processes")
	case c.Lease != 0 && (!c.Replica || c.Lease < time.Second || c.Lease > time.Minute):
		return daemon.Invalid("replica_lease", "%s, want 1s to 1m0s, and only with replica", c.Lease)
	case len(c.Replicas) > 0 && !c.Replica:
		return daemon.Invalid("replicas", "needs replica: true")
	case len(c.Replicas) > replicas.Max:
		return daemon.Invalid("replicas", "has %d URLs, want at most %d", len(c.Replicas), replicas.Max)
	case c.Gossip != "" && !c.Replica:
		return daemon.Invalid("gossip_listen", "needs replica: true")
	case !slices.Equal(good, c.Replicas):
		return daemon.Invalid("replicas", "%q: each must be https://host:port, once, without a path", c.Replicas)
	}
	if c.Gossip == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Gossip); err != nil {
		return daemon.Invalid("gossip_listen", "%q is not host:port such as :7446", c.Gossip)
	}
	return nil
}

// Options configure Open.
type Options struct {
	Config
	Self   identity.Identity
	Role   string // the name of the daemon's documents in the store
	Listen string
	Names  []string // further DNS names and addresses of this machine
	Dir    *os.Root
	// AddressFile is the file in Dir with the address of the port on this machine, for other programs.
	AddressFile string
	// Keys are the files in Dir that all replicas have. The first one creates them.
	Keys []string
	// Secret is the one of Keys that never changes. What identifies it is in the lease, and the key of the gossip is derived from it.
	Secret string
	Log    *slog.Logger
}

// Replica is this process. A nil Replica is a daemon without replicas, which is always active.
type Replica struct {
	o      Options
	ln     net.Listener // until Await
	url    string
	shares *shared.Replica
	logs   func() // closes the logs; nil after Await, when store has them
	scans  error  // see mongo.Scans

	gossip *membership.Gossip // nil: there is none

	store   *shared.Store // nil until Await has returned
	ended   chan error    // has the result of Hold
	release context.CancelFunc
}

// Open opens the store and listens. It returns ErrNotFound if another replica was active before and
// Keys are missing here, and ErrConflict if Secret is another one than that of the last active replica: with
// other keys, no machine below and no value in the store would survive a takeover.
func Open(ctx context.Context, o Options) (*Replica, error) {
	if err := daemon.RemoveStale(o.Dir, o.AddressFile); err != nil {
		return nil, err
	}
	entries, leases, err := mongo.OpenLogs(ctx, o.Store.Reveal(), o.Role)
	if err != nil {
		return nil, err
	}
	r := &Replica{o: o, logs: func() { _ = errors.Join(leases.Close(), entries.Close()) }, scans: mongo.Scans(entries)}
	if r.ln, err = freeport.Listen(o.Listen); err != nil {
		r.logs()
		return nil, fmt.Errorf("listen: %w", err)
	}
	r.url = r.ownURL()
	r.shares = shared.New(entries, leases, shared.Options{Name: r.url, TTL: o.Lease, Log: o.Log})
	if err := r.checkKeys(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Addr returns the address of the listener.
func (r *Replica) Addr() net.Addr { return r.ln.Addr() }

// URL returns the URL at which this replica is reached, and nothing without replicas.
func (r *Replica) URL() string {
	if r == nil {
		return ""
	}
	return r.url
}

// Store returns the store; it may be used after Await.
func (r *Replica) Store() *shared.Store { return r.store }

func (r *Replica) checkKeys(ctx context.Context) error {
	l, err := r.shares.Active(ctx)
	if err != nil || l.Name == "" {
		return err
	}
	var missing []string
	for _, name := range r.o.Keys {
		if _, err := r.o.Dir.Stat(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return r.fits(l)
	}
	return fmt.Errorf("start a replica: %s has no %s; %s: %w", r.o.Dir.Name(), strings.Join(missing, ", "), r.copyFrom(l), api.ErrNotFound)
}

// copyFrom says how a replica gets the keys.
func (r *Replica) copyFrom(l shared.Lease) string {
	last := len(r.o.Keys) - 1
	return fmt.Sprintf("copy %s and %s from the data directory of the replica at %s", strings.Join(r.o.Keys[:last], ", "), r.o.Keys[last], l.Name)
}

// fits returns ErrConflict if the replica with a lease has another secret key than this one, which would find that
// out after it has taken over. The other keys may be newer there.
func (r *Replica) fits(l shared.Lease) error {
	id, err := r.keysID()
	if err != nil || l.Keys == "" || l.Keys == id {
		return err
	}
	return fmt.Errorf("start a replica: %s in %s is not the one of the replica at %s; %s: %w", r.o.Secret, r.o.Dir.Name(), l.Name, r.copyFrom(l), api.ErrConflict)
}

// keysID returns what identifies Secret, and does not show it.
func (r *Replica) keysID() (string, error) {
	id, err := seal.Derive(r.o.Dir, r.o.Secret, "identity of replicas of "+r.o.Role)
	return hex.EncodeToString(id), err
}

// ownURL returns the URL of this replica. It is the one in Replicas with its port and one of its names,
// and without that an address of this machine. It is not the URL for clients, which may be one for all
// replicas.
func (r *Replica) ownURL() string {
	own, names := reach.Of(r.ln.Addr(), "", r.o.Names)
	_, port, _ := net.SplitHostPort(r.ln.Addr().String())
	for _, text := range r.o.Replicas {
		if u, err := url.Parse(text); err == nil && cmp.Or(u.Port(), "443") == port && slices.Contains(names, u.Hostname()) {
			return text
		}
	}
	return own
}

// Serving is what a standby serves with.
type Serving struct {
	Verifier *trust.Verifier
	Keeper   *keeper.Keeper // of the certificate of the port
	Parts    []daemon.Part  // run while the replica is a standby, such as keepers of further certificates
	Reads    Reads          // nil: all requests are forwarded
}

// Await waits until this replica is active, and serves its health and forwards requests meanwhile. The
// listener that it returns has the same address. The lease is held until Close.
func (r *Replica) Await(ctx context.Context, s Serving) (net.Listener, error) {
	addr := r.ln.Addr().String()
	keys, err := r.keysID()
	if err != nil {
		return nil, err
	}
	r.shares.Keys(keys)
	if err := r.openGossip(); err != nil {
		return nil, err
	}
	st, err := r.wait(ctx, s)
	if err != nil {
		return nil, err
	}
	r.gossip.Contact("") // the others learn of this one
	// Nothing may end the lease while the store is loaded.
	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	r.store, r.ended, r.release, r.logs = st, make(chan error, 1), release, nil
	go func() { r.ended <- st.Hold(holding) }()
	ln, err := again(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return ln, nil
}

// again listens at an address whose listener is being closed.
func again(ctx context.Context, addr string) (ln net.Listener, err error) {
	for range 500 {
		if ln, err = freeport.Listen(addr); !errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil, err
}

// wait serves as a standby until the replica is active. Its server no longer accepts connections then.
func (r *Replica) wait(ctx context.Context, s Serving) (*shared.Store, error) {
	local := reach.Local(r.ln.Addr())
	if err := ca.WriteFile(r.o.Dir, r.o.AddressFile, []byte(local+"\n"), 0o644); err != nil {
		return nil, err
	}
	log, kind := r.o.Log, string(r.o.Self.Kind)
	conf := s.Verifier.Server(s.Keeper.GetCertificate, false)
	conf.NextProtos = []string{"h2", "http/1.1"}
	port := gate.New(r.ln, gate.Options{TLS: conf, Own: r.o.Self.Cluster, Log: log})
	var active atomic.Pointer[shared.Lease]
	all := replicas.New(r.o.Replicas...)
	where := func() (string, bool) {
		if l := active.Load(); l != nil {
			return "the active one is " + l.Name, true
		}
		return "no other one is active yet", false
	}
	forward := ForwardOptions{Self: r.o.Self, Verifier: s.Verifier, Own: s.Keeper.GetClientCertificate, Replicas: all, Active: where, Log: log}
	parts := append([]daemon.Part{{Name: "certificate", Run: s.Keeper.Run}}, s.Parts...)
	handler := Forward(forward)
	if s.Reads != nil && r.scans != nil {
		log.Warn("standby forwards all reads", "err", r.scans)
	} else if s.Reads != nil {
		f := r.shares.NewFollower(s.Reads)
		forward.Executed = executed(s.Reads, f)
		handler = readFirst(s.Reads, f, Forward(forward))
		parts = append(parts, daemon.Part{Name: "copy", Run: f.Run})
	}
	handler = healthOr(where, handler)
	serving, stop := context.WithCancel(ctx)
	defer stop() // requests that last longer end by themselves
	failed := make(chan error, 3)
	run := func(parts ...daemon.Part) {
		if err := daemon.RunAll(serving, parts...); serving.Err() == nil {
			failed <- fmt.Errorf("serve as a standby: %w", err)
			stop()
		}
	}
	go run(
		daemon.Part{Name: "port", Run: port.Run},
		daemon.Part{Name: "http", Run: func(ctx context.Context) error { return daemon.Serve(ctx, port, handler, nil) }},
	)
	var kept sync.WaitGroup // the active replica runs these again
	kept.Go(func() { run(parts...) })
	log.Info(kind+" is a standby until no other replica is active", "address", local, "data", r.o.Dir.Name())
	daemon.NotifyReady(log)
	st, err := r.shares.Await(serving, func(l shared.Lease) {
		if err := r.fits(l); err != nil { // both may have been the first one
			failed <- err
			stop()
			return
		}
		r.gossip.Contact(l.Gossip)
		if l.Name == r.url {
			active.Store(nil) // forwarding to itself would be refused
			log.Info("an earlier process of this replica was active", "url", l.Name)
			return
		}
		all.Learn([]string{l.Name})
		all.Prefer(l.Name)
		active.Store(&l)
		log.Info("another replica is active", "url", l.Name)
	})
	stop()
	kept.Wait()
	select {
	case cause := <-failed:
		if st != nil {
			_, r.logs = st.Close(), nil
		}
		return nil, cause
	default:
		return st, err
	}
}

// healthOr serves the health and the metrics of a standby, and otherwise next.
func healthOr(where func() (text string, ok bool), next http.Handler) http.Handler {
	var health daemon.Health
	health.Require("role standby", func(context.Context) error {
		text, _ := where()
		return errors.New(text)
	})
	healthy := health.Handler(serveMetrics(next))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch r.URL.Path {
		case "/livez", "/readyz", "/version", "/metrics":
			healthy.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Hold ends with an error when the replica is no longer active. It is a part of the active daemon.
func (r *Replica) Hold(ctx context.Context) error {
	if r == nil {
		<-ctx.Done()
		return nil
	}
	select {
	case err := <-r.ended:
		r.ended <- err // for Close
		return err
	case <-ctx.Done():
		return nil
	}
}

// Fenced reports whether the replica was active and its lease has ended, so that another one may be
// active. It must then tell no machine what to do.
func (r *Replica) Fenced() bool { return r != nil && r.store != nil && !r.store.Active() }

// RequireActive adds the check that the replica is active.
func (r *Replica) RequireActive(h *daemon.Health) {
	if r == nil {
		return
	}
	h.Require("role active", func(context.Context) error {
		if r.Fenced() {
			return shared.ErrLeaseLost
		}
		return nil
	})
}

// Guard refuses requests when another replica can be active, which has newer data.
func (r *Replica) Guard(next http.Handler) http.Handler {
	if r == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.Fenced() {
			Refuse(w, "this "+string(r.o.Self.Kind)+" is no longer the active replica; repeat the request at another one")
			return
		}
		next.ServeHTTP(w, req)
	})
}

// Transport fails all requests when the replica is fenced.
func (r *Replica) Transport(next http.RoundTripper) http.RoundTripper {
	if r == nil {
		return next
	}
	return fenced{r, next}
}

type fenced struct {
	r    *Replica
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f fenced) RoundTrip(req *http.Request) (*http.Response, error) {
	if f.r.Fenced() {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, shared.ErrLeaseLost
	}
	return f.next.RoundTrip(req)
}

// CloseIdleConnections is for http.Client.
func (f fenced) CloseIdleConnections() {
	if c, ok := f.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Close releases the lease and closes the store. The daemon writes nothing any more.
func (r *Replica) Close() {
	defer r.leave() // after the lease is released
	_ = r.ln.Close()
	if r.logs != nil {
		r.logs()
	}
	if r.store == nil {
		return
	}
	r.release()
	<-r.ended
	if err := r.store.Close(); err != nil {
		r.o.Log.Warn("store not closed", "err", err)
	}
}

// MoveIn moves the documents of a daemon without replicas into the store of the first replica, and returns
// all documents of st, which is a view of Store. It does so again if it was interrupted, which the mark of
// the store shows: it is moved last.
func (r *Replica) MoveIn(ctx context.Context, st store.Store) ([]store.Doc, error) {
	docs, err := store.Load(ctx, st)
	if err != nil || storemark.Marked(docs) {
		return docs, err
	}
	old, err := mongo.Open(ctx, r.o.Store.Reveal(), r.o.Role)
	if err != nil {
		return nil, err
	}
	defer old.Close()
	var move, last []store.Doc
	err = old.Retire(ctx, func(d store.Doc) error {
		d.Version = 1
		if storemark.Marked([]store.Doc{d}) {
			last = append(last, d)
		} else {
			move = append(move, d)
		}
		return nil
	})
	if err != nil || len(move)+len(last) == 0 {
		return docs, err
	}
	r.o.Log.Info("moving the documents of the store to the log of the replicas", "documents", len(move))
	if err := st.Save(ctx, append(move, last...)); err != nil {
		return nil, fmt.Errorf("move the store: %w", err)
	}
	return store.Load(ctx, st)
}
