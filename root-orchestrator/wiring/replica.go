package wiring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/reach"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/shared"
	"github.com/treeline-edge/treeline/root-orchestrator/standby"
)

// replica is the part of an active root that only replicas have; nil without replicas.
type replica struct {
	store   *shared.Store
	ended   chan error // has the result of Hold
	release context.CancelFunc
}

// hold ends with an error when the root is no longer active.
func (r *replica) hold(ctx context.Context) error {
	if r == nil {
		<-ctx.Done()
		return nil
	}
	select {
	case err := <-r.ended:
		r.ended <- err // for close
		return err
	case <-ctx.Done():
		return nil
	}
}

// close releases the lease and closes the store. The root writes nothing any more.
func (r *replica) close() {
	r.release()
	<-r.ended
	if err := r.store.Close(); err != nil {
		slog.Warn("store not closed", "err", err)
	}
}

// guard refuses requests when another replica can be active, which has newer data.
func (r *replica) guard(next http.Handler) http.Handler {
	if r == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !r.store.Active() {
			standby.Refuse(w, "this root is no longer the active replica; repeat the request at another one")
			return
		}
		next.ServeHTTP(w, req)
	})
}

// becomeActive waits until this replica of the root is active, and serves /readyz and refusals meanwhile. The
// listener that it returns has the same address.
func becomeActive(ctx context.Context, cfg Config, dir *os.Root, log *slog.Logger) (*replica, net.Listener, error) {
	if err := daemon.RemoveStale(dir, AddressFile); err != nil {
		return nil, nil, err
	}
	entries, leases, err := mongo.OpenLogs(ctx, cfg.Store.Reveal(), cfg.Role)
	if err != nil {
		return nil, nil, err
	}
	closeLogs := func() { _ = errors.Join(leases.Close(), entries.Close()) }
	ln, err := freeport.Listen(cfg.Listen)
	if err != nil {
		closeLogs()
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	shares := shared.New(entries, leases, shared.Options{Name: cfg.ownURL(ln.Addr()), TTL: cfg.ReplicaLease, Log: log})
	st, err := wait(ctx, cfg, dir, shares, ln, log)
	if err != nil {
		closeLogs()
		_ = ln.Close()
		return nil, nil, err
	}
	// Nothing may end the lease while the store is loaded.
	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	r := &replica{store: st, ended: make(chan error, 1), release: release}
	go func() { r.ended <- st.Hold(holding) }()
	ln, err = again(ctx, ln.Addr().String())
	if err != nil {
		r.close()
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	return r, ln, nil
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
func wait(ctx context.Context, cfg Config, dir *os.Root, shares *shared.Replica, ln net.Listener, log *slog.Logger) (*shared.Store, error) {
	authority, err := replicaKeys(ctx, dir, shares, log)
	if err != nil {
		return nil, err
	}
	external, names := reach.Of(ln.Addr(), cfg.URL, cfg.Names)
	keeper, err := openKeeper(authority, names, log)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(ca.WriteFile(dir, CAFile, rootPEM(authority), 0o644), ca.WriteFile(dir, AddressFile, []byte(reach.Local(ln.Addr())+"\n"), 0o644)); err != nil {
		return nil, err
	}
	verifier := trust.New(authority.Root())
	conf := verifier.Server(keeper.GetCertificate, false)
	conf.NextProtos = []string{"h2", "http/1.1"}
	port := gate.New(ln, gate.Options{TLS: conf, Log: log})
	var active atomic.Pointer[shared.Lease]
	roots := replicas.New(cfg.Replicas...)
	where := func() (string, bool) {
		if l := active.Load(); l != nil {
			return "the active one is " + l.Name, true
		}
		return "no other one is active yet", false
	}
	handler := healthOr(where, standby.New(standby.Options{Verifier: verifier, Own: keeper.GetClientCertificate, Roots: roots, Active: where, Log: log}))
	serving, stop := context.WithCancel(ctx)
	defer stop() // requests that last longer end by themselves
	failed := make(chan error, 1)
	go func() {
		err := daemon.RunAll(serving,
			daemon.Part{Name: "port", Run: port.Run},
			daemon.Part{Name: "certificate", Run: keeper.Run},
			daemon.Part{Name: "http", Run: func(ctx context.Context) error { return daemon.Serve(ctx, port, handler, nil) }},
		)
		if serving.Err() == nil {
			failed <- fmt.Errorf("serve as a standby: %w", err)
			stop()
		}
	}()
	log.Info("root is a standby until no other replica is active", "address", reach.Local(ln.Addr()), "url", external, "data", cfg.Data)
	daemon.NotifyReady(log)
	st, err := shares.Await(serving, func(l shared.Lease) {
		roots.Learn([]string{l.Name})
		roots.Prefer(l.Name)
		active.Store(&l)
		log.Info("another replica is active", "url", l.Name)
	})
	select {
	case cause := <-failed:
		if st != nil {
			_ = st.Close()
		}
		return nil, cause
	default:
		return st, err
	}
}

// healthOr serves the health of a standby, and otherwise next.
func healthOr(where func() (text string, ok bool), next http.Handler) http.Handler {
	var health daemon.Health
	health.Require("role standby", func(context.Context) error {
		text, _ := where()
		return errors.New(text)
	})
	healthy := health.Handler(nil)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch r.URL.Path {
		case "/livez", "/readyz", "/version":
			healthy.ServeHTTP(w, r)
		case "/metrics":
			text, _ := where()
			standby.Refuse(w, "this root is a standby replica, which has no metrics: "+text)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ownURL returns the URL of this replica. It is the one in Replicas with its port and one of its names,
// and without that an address of this machine. It is not URL, which may be one for all replicas.
func (c Config) ownURL(ln net.Addr) string {
	own, names := reach.Of(ln, "", c.Names)
	_, port, _ := net.SplitHostPort(ln.String())
	for _, text := range c.Replicas {
		if u, err := url.Parse(text); err == nil && cmp.Or(u.Port(), "443") == port && slices.Contains(names, u.Hostname()) {
			return text
		}
	}
	return own
}

// replicaKeys returns the authority that all replicas have. The first replica creates the keys; the
// others must have copies, so that clusters, tokens and secrets survive a takeover.
func replicaKeys(ctx context.Context, dir *os.Root, shares *shared.Replica, log *slog.Logger) (*ca.Authority, error) {
	l, err := shares.Active(ctx)
	if err != nil {
		return nil, err
	}
	if l.Name != "" {
		var missing []string
		for _, name := range []string{authorityFile, ringFile, valuesKeyFile} {
			if _, err := dir.Stat(name); err != nil {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return nil, fmt.Errorf("start a replica: %s has no %s; copy %s, %s and %s from the data directory of the replica at %s: %w",
				dir.Name(), strings.Join(missing, ", "), authorityFile, ringFile, valuesKeyFile, l.Name, api.ErrNotFound)
		}
	}
	if _, err := openRing(dir, false, log); err != nil {
		return nil, err
	}
	if _, err := seal.KeyFile(dir, valuesKeyFile, false); err != nil {
		return nil, err
	}
	return openAuthority(dir, false)
}

// moveIn moves the documents of a root without replicas into the store of the first replica, and returns
// all documents. It does so again if it was interrupted, which the mark of the store shows: it is moved
// last.
func moveIn(ctx context.Context, cfg Config, st store.Store, log *slog.Logger) ([]store.Doc, error) {
	docs, err := store.Load(ctx, st)
	if err != nil || storemark.Marked(docs) {
		return docs, err
	}
	old, err := mongo.Open(ctx, cfg.Store.Reveal(), cfg.Role)
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
	log.Info("moving the documents of the store to the log of the replicas", "documents", len(move))
	if err := st.Save(ctx, append(move, last...)); err != nil {
		return nil, fmt.Errorf("move the store: %w", err)
	}
	return store.Load(ctx, st)
}
