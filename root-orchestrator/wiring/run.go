package wiring

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/deploy"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/daemon/metrics"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/installer"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/reach"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/schedule"
	"github.com/treeline-edge/treeline/internal/standby"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/view"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/clusterlink"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/root-orchestrator/oakestra"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/rootca"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
	dashboard "github.com/treeline-edge/treeline/web"
)

// The files in the data directory for other programs.
const (
	AddressFile = "address" // host:port to dial on this machine; written when the root serves
	CAFile      = "ca.pem"  // the root's certificate, for clients to pin
	// OakestraFile has the host:port of oakestra_listen.
	OakestraFile = "oakestra-address"
	SignInFile   = "first-sign-in" // "<user> <code>" until the first admin has signed in; mode 0600
)

const sweepEvery = time.Hour

// Run runs the root orchestrator until ctx ends. It returns store.ErrConflict if another process
// has taken its role.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	dir, err := daemon.OpenData(cfg.Data)
	if err != nil {
		return err
	}
	defer dir.Close()
	var ln net.Listener
	var rep *standby.Replica
	var st *view.Store
	var loaded []store.Doc
	var position func() uint64
	if cfg.Replica {
		rep, err = standby.Open(ctx, standby.Options{
			Config: cfg.replicas(), Self: identity.OfRoot(), Role: cfg.Role, Listen: cfg.Listen, Names: cfg.Names,
			Dir: dir, AddressFile: AddressFile, Keys: []string{authorityFile, ringFile, valuesKeyFile}, Secret: valuesKeyFile, Log: log,
		})
		if err != nil {
			return err
		}
		defer rep.Close()
		if ln, err = awaitActive(ctx, cfg, dir, rep, log); err != nil {
			return err
		}
		st, position = view.New(rep.Store()), rep.Store().Position
		loaded, err = rep.MoveIn(ctx, st)
	} else {
		var opened store.Store
		if opened, err = openStore(ctx, cfg, dir); err != nil {
			return err
		}
		defer opened.Close()
		st = view.New(opened)
		loaded, err = store.Load(ctx, st)
	}
	if ln != nil {
		defer ln.Close()
	}
	if err != nil {
		return err
	}
	authority, err := openAuthority(dir, len(loaded) > 0)
	if err != nil {
		return err
	}
	sealer, err := openSealer(cfg, dir, loaded)
	if err != nil {
		return err
	}
	pair, before, changed, err := rootca.Adopt(loaded, authority.Pair(), sealer, time.Now())
	if err != nil {
		return err
	}
	if changed {
		log.Warn("the key of the root's certificate authority was replaced by another process or before a crash; using the one in the store")
		if err := saveAuthority(dir, pair); err != nil {
			return err
		}
	}
	loaded, err = storemark.Check(ctx, st, loaded, storemark.Options{
		Dir: dir, Authority: pair.Chain[0], Before: before, Embedded: storeFile, Elsewhere: cfg.Store != "", New: cfg.NewStore, Log: log,
	})
	if err != nil {
		return err
	}
	if ln == nil {
		if ln, err = freeport.Listen(cfg.Listen); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		defer ln.Close()
	}

	external, names := reach.Of(ln.Addr(), cfg.URL, cfg.Names)
	id, err := openIdentity(cfg, dir, pair, sealer, st, loaded, external, names, log)
	if err != nil {
		return err
	}
	scheduler, err := choice.Open(ctx, cfg.Scheduler)
	if err != nil {
		return err
	}
	core := root.New(cfg.core(scheduler))
	if err := core.Restore(loaded); err != nil {
		return fmt.Errorf("restore the root: %w", err)
	}
	var web *httpapi.API
	var link *clusterlink.Link
	var asker *client.Asker
	reg := metrics.New()
	stages := newStages(reg)
	tracer, err := tracing.FromEnv("treeline-root", os.Getenv, log)
	if err != nil {
		return err
	}
	traces := tracing.NewRelay(tracer)
	log = traces.Logger(log)
	l := loop.New(core, st, func(envs []wire.Envelope) { send(envs, web, link, asker, stages, traces) }, loop.Options[root.Input]{
		Tick: root.Tick{}, Log: log, Observe: metrics.NewLoop(reg).Observe,
	})
	asker = client.NewAsker(scheduler, func(a sched.Answer) { l.Post(root.Ranked{Answer: a}) })
	link = clusterlink.New(clusterlink.Options{
		Core: core, Owner: l, Authority: id.rootca.Authority, Verifier: id.verifier, Issued: id.issued,
		Tokens: id.tokens, Keys: id.signing.Public, Replicas: rep.URLs, Revoked: id.accounts.Revocations(), Open: id.sealer.Open, Log: log,
	})
	id.rootca.Renew = func(ctx context.Context) error { return id.replaced(ctx, link) }
	id.rootca.Retired = link.EndStreams
	id.rootca.Behind = func(ctx context.Context, k wire.RootKeys) (behind []api.ClusterBehind, err error) {
		var clusters []api.ClusterID
		err = l.Read(ctx, func() {
			for _, c := range core.Clusters() {
				clusters = append(clusters, c.ID)
			}
		})
		if err != nil {
			return nil, err
		}
		return link.RootKeysBehind(ctx, clusters, k), nil
	}
	snapshots := snapshot.NewTaker(snapshot.Options{
		Dir: dir, Tier: snapshot.Root, Version: daemon.Version(), Authority: func() *x509.Certificate { return id.rootca.Authority().Pair().Chain[0] }, All: st.All, Position: position,
	})
	scheduled, err := schedule.New(schedule.Options{
		Config: cfg.Snapshot, Taker: snapshots, Store: st, Loaded: loaded, Log: log, Record: func(ctx context.Context, text string) error {
			return l.Do(ctx, root.Operated{Kind: "system", Object: "root", Text: text}, nil)
		},
	})
	if err != nil {
		return err
	}
	if scheduled.Scheduled() {
		metrics.NewSnapshots(reg, scheduled.Age, scheduled.Interval)
	}
	programs := installer.NewServer(installer.Open(installer.Options{Dir: cfg.InstallDir, Script: deploy.Script, Files: deploy.Files}), installer.Cluster, external, log)
	web, err = httpapi.New(httpapi.Options{
		Install: programs.Offer,
		Core:    core, Owner: l, Accounts: id.accounts, Tokens: id.tokens, Clusters: link, Version: daemon.Version(), Replicas: rep.URLs, Members: rep.Members, Log: log,
		Signing: id.signing, Authority: id.rootca, Snapshots: snapshots, Recipients: cfg.Snapshot.Recipients, Scheduled: scheduled,
		Store: st, Loaded: loaded, Sealer: id.sealer, Observe: metrics.NewHTTP(reg), WebhookNetworks: cfg.webhookNetworks(), Traces: traces,
	})
	if err != nil {
		return err
	}
	registerMetrics(reg, core, l, link)
	if rep != nil {
		metrics.NewReplicas(reg, rep.Members)
	}
	var health daemon.Health
	health.RequireLoop(l)
	rep.RequireActive(&health)

	if err := firstSignIn(ctx, dir, id.accounts, external, id.rootca.Hash()); err != nil {
		return err
	}
	conf := id.verifier.Server(id.keeper.GetCertificate, false)
	conf.NextProtos = []string{"h2", "http/1.1"}
	port := gate.New(ln, gate.Options{TLS: conf, Log: log})
	serve := func(ctx context.Context) error {
		if err := l.Do(ctx, root.Start{}, nil); err != nil {
			return err
		}
		if err := ca.WriteFile(dir, CAFile, rootPEM(id.rootca.Authority().Pair()), 0o644); err != nil {
			return err
		}
		if err := ca.WriteFile(dir, AddressFile, []byte(reach.Local(ln.Addr())+"\n"), 0o644); err != nil {
			return err
		}
		log.Info("root serves", "address", reach.Local(ln.Addr()), "url", external, "data", cfg.Data)
		daemon.NotifyReady(log)
		people := rep.Guard(web.Handler())
		handler := route(programs, dashboard.Handler(dashboard.Root, people), countBytes(reg, rep.Guard(link.Handler())), health.Handler(web.Guard(metrics.Handler(reg))))
		var plain func(context.Context) error
		if cfg.OakestraCompat {
			compat := oakestra.New(oakestra.Options{Native: people, DoubleJSON: cfg.OakestraDoubleJSON, Log: log})
			handler = withOakestra(handler, compat)
			plain = servePlain(cfg, dir, compat, log)
		}
		if rep != nil {
			handler = standby.Accept(id.verifier, identity.OfRoot(), handler)
		}
		return daemon.RunAll(ctx,
			daemon.Part{Name: "oakestra", Run: plain},
			daemon.Part{Name: "port", Run: port.Run},
			daemon.Part{Name: "snapshots", Run: scheduled.Run},
			daemon.Part{Name: "http", Run: func(ctx context.Context) error { return daemon.Serve(ctx, port, handler, nil) }},
		)
	}
	return daemon.RunAll(ctx,
		daemon.Part{Name: "core", Run: l.Run},
		daemon.Part{Name: "replica", Run: rep.Hold},
		daemon.Part{Name: "certificate", Run: id.keeper.Run},
		daemon.Part{Name: "scheduler", Run: asker.Run},
		daemon.Part{Name: "server", Run: serve},
		daemon.Part{Name: "webhooks", Run: web.RunWebhooks},
		daemon.Part{Name: "traces", Run: tracer.Run},
		daemon.Part{Name: "sweep", Run: daemon.Every(sweepEvery, func(ctx context.Context) {
			err := errors.Join(id.accounts.Sweep(ctx), id.tokens.Sweep(ctx), web.Sweep(ctx))
			if err != nil && ctx.Err() == nil {
				log.Warn("expired records not deleted", "err", err)
			}
		})},
	)
}

// awaitActive creates the keys if this is the first replica, and waits until it is active.
func awaitActive(ctx context.Context, cfg Config, dir *os.Root, rep *standby.Replica, log *slog.Logger) (net.Listener, error) {
	if _, err := openRing(dir, false, log); err != nil {
		return nil, err
	}
	keys, err := seal.KeyFile(dir, valuesKeyFile, false)
	if err != nil {
		return nil, err
	}
	var reads standby.Reads
	if cfg.StandbyReads {
		if reads, err = httpapi.NewCopy(httpapi.CopyOptions{
			Ring: func() (*jwt.Ring, error) { return openRing(dir, false, log) }, Sealer: seal.New(keys), Log: log,
		}); err != nil {
			return nil, err
		}
	}
	authority, err := openAuthority(dir, false)
	if err != nil {
		return nil, err
	}
	_, names := reach.Of(rep.Addr(), cfg.URL, cfg.Names)
	keeper, err := openKeeper(func() *ca.Authority { return authority }, names, log)
	if err != nil {
		return nil, err
	}
	if err := ca.WriteFile(dir, CAFile, rootPEM(authority.Pair()), 0o644); err != nil {
		return nil, err
	}
	return rep.Await(ctx, standby.Serving{Verifier: trust.New(authority.Pair().Roots()...), Keeper: keeper, Reads: reads})
}

// openStore opens the store, and removes the address of an earlier process once no other process
// uses an embedded store.
func openStore(ctx context.Context, cfg Config, dir *os.Root) (store.Store, error) {
	stale := func() error { return daemon.RemoveStale(dir, AddressFile) }
	if uri := cfg.Store.Reveal(); uri != "" {
		if err := stale(); err != nil {
			return nil, err
		}
		return mongo.Open(ctx, uri, cfg.Role)
	}
	return embedded.OpenWith(filepath.Join(cfg.Data, storeFile), stale)
}

// storeFile is the embedded store in the data directory.
const storeFile = "root.db"

// send passes the core's messages to their receivers. It runs on the core's owner and must not
// block.
func send(envs []wire.Envelope, web *httpapi.API, link *clusterlink.Link, asker *client.Asker, stages *stages, traces *tracing.Relay) {
	var changes []api.Change
	for _, e := range envs {
		switch msg := e.Msg.(type) {
		case api.Change:
			changes = append(changes, msg)
		case sched.Ask:
			asker.Send(msg)
		case wire.Desired:
			e.Msg = traces.Sent(msg, tracing.OfApp, "choose cluster", func(a wire.Assignment) map[string]string {
				return map[string]string{"treeline.instance": string(a.Instance), "treeline.cluster": strings.TrimPrefix(string(e.To), "cluster/")}
			})
			link.Send(e)
		default:
			link.Send(e)
		}
	}
	if len(changes) > 0 {
		stages.observe(changes)
		web.Changed(changes...)
	}
}

func route(programs, people, clusters, health http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/v1/cluster/"), path == "/v1/join/cluster":
			clusters.ServeHTTP(w, r)
		case installer.Serves(r):
			programs.ServeHTTP(w, r)
		case path == "/livez", path == "/readyz", path == "/version", path == "/metrics":
			health.ServeHTTP(w, r)
		default:
			people.ServeHTTP(w, r)
		}
	})
}

// withOakestra adds Oakestra's API, whose paths the native API does not have.
func withOakestra(native, compat http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/") {
			compat.ServeHTTP(w, r)
			return
		}
		native.ServeHTTP(w, r)
	})
}

// servePlain returns what serves Oakestra's API over plain HTTP, nil without an address.
func servePlain(cfg Config, dir *os.Root, compat http.Handler, log *slog.Logger) func(context.Context) error {
	if cfg.OakestraListen == "" {
		return nil
	}
	return func(ctx context.Context) error {
		return daemon.ServePlain(ctx, cfg.OakestraListen, withOakestra(http.NotFoundHandler(), compat), log, func(address string) error {
			log.Warn("Oakestra's API is served without TLS: its passwords and tokens can be read on the way", "address", address)
			return ca.WriteFile(dir, OakestraFile, []byte(address+"\n"), 0o644)
		})
	}
}

// firstSignIn prints the first admin's one-time code and writes it to SignInFile at each start
// until it is used.
func firstSignIn(ctx context.Context, dir *os.Root, accounts *account.Service, external string, pin [32]byte) error {
	code, err := accounts.Bootstrap(ctx)
	if err != nil {
		return err
	}
	if code.Text == "" {
		if err := dir.Remove(SignInFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the first sign-in: %w", err)
		}
		return nil
	}
	if err := ca.WriteFile(dir, SignInFile, []byte(string(code.User)+" "+code.Text+"\n"), 0o600); err != nil {
		return err
	}
	_, err = fmt.Fprintf(os.Stderr, "\n  first sign-in (one use, until %s); on another machine, use --code-file - and enter the code in that file:\n    treeline login %s --user %s --code-file %s --pin %x\n  or in a browser, with the code in that file: %s%s\n\n",
		code.Expires.Format(time.TimeOnly), external, code.User, filepath.Join(dir.Name(), SignInFile), pin, external, dashboard.Path)
	if err != nil {
		return fmt.Errorf("print the first sign-in: %w", err)
	}
	return nil
}

func rootPEM(p ca.Pair) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Root().Raw})
}
