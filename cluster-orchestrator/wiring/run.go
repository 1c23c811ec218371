package wiring

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/cluster-orchestrator/audit"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/autoscale"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/csi"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/cluster-orchestrator/mover"
	"github.com/treeline-edge/treeline/cluster-orchestrator/nodelink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/operators"
	"github.com/treeline-edge/treeline/cluster-orchestrator/promquery"
	"github.com/treeline-edge/treeline/cluster-orchestrator/relay"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rotation"
	"github.com/treeline-edge/treeline/cluster-orchestrator/values"
	"github.com/treeline-edge/treeline/deploy"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/broker"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	csidriver "github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/daemon/metrics"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/installer"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/reach"
	record "github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/schedule"
	"github.com/treeline-edge/treeline/internal/standby"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/view"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
	"github.com/treeline-edge/treeline/web"
)

// AddressFile has the host:port at which the cluster serves on this machine. It is written
// once the cluster serves.
const AddressFile = "address"

// sweepEvery is how often expired join tokens are removed.
const sweepEvery = time.Hour

type orchestrator struct {
	cfg        Config
	log        *slog.Logger
	id         *identities
	rotation   *rotation.Rotation
	replica    *standby.Replica // nil: the cluster has no replicas
	core       *cluster.Core
	loop       *loop.Loop[cluster.Input]
	tracer     *tracing.Tracer // nil: no spans are exported
	traces     *tracing.Relay
	broker     *broker.Broker // the embedded broker; nil: the broker is external
	outer      *keeper.Keeper // of an external broker's certificate; nil: none
	buses      []bus.Bus      // one for each broker
	nodes      *nodes
	server     *nodelink.Server
	api        *httpapi.API
	snapshots  *schedule.Runner
	root       *rootlink.Link
	roots      *replicas.Addresses
	client     *http.Client // of the root
	port       *gate.Gate
	http       http.Handler
	programs   *installer.Server
	sched      *client.Asker
	relay      *relay.Relay // nil: none is configured
	values     *values.Values
	mover      *mover.Mover
	prometheus *promquery.Evaluator // nil: no server is configured
	csi        *csi.Controller      // nil: no drivers are configured
	drivers    map[string]*csidriver.Driver
	relays     relay.Foreign // other clusters' relays in routes
}

// Run runs a cluster orchestrator until ctx ends. It returns store.ErrConflict if another
// process has taken over the store. Once the cluster has joined, an unreachable root is not an
// error.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	dir, err := daemon.OpenData(cfg.Data)
	if err != nil {
		return err
	}
	defer dir.Close()
	o := &orchestrator{cfg: cfg, log: log}
	if cfg.Replica {
		if o.replica, err = openReplica(ctx, cfg, dir, log); err != nil {
			return err
		}
		defer o.replica.Close()
	}
	creds, err := join(ctx, cfg, dir, daemon.Version(), log)
	if err != nil {
		return err
	}
	log = log.With("cluster", creds.Info.ID)
	o.log = log
	var ln net.Listener
	var st *view.Store
	var docs []store.Doc
	if o.replica != nil {
		if ln, err = o.awaitActive(ctx, dir, creds); err != nil {
			return err
		}
		defer ln.Close()
		creds = o.id.credentials()
		st = view.New(o.replica.Store())
		docs, err = o.replica.MoveIn(ctx, st)
	} else {
		var opened store.Store
		if opened, err = openStore(ctx, cfg, dir, creds.Info.ID); err != nil {
			return err
		}
		defer opened.Close()
		st = view.New(opened)
		docs, err = store.Load(ctx, st)
	}
	if err != nil {
		return err
	}
	creds, before, err := o.adopt(ctx, dir, docs, creds)
	if err != nil {
		return err
	}
	docs, err = storemark.Check(ctx, st, docs, storemark.Options{
		Dir: dir, Authority: creds.Pair.Chain[0], Before: before, Embedded: storeFile, Elsewhere: cfg.Store != "", New: cfg.NewStore, Log: log,
	})
	if err != nil {
		return err
	}
	if ln == nil {
		if ln, err = freeport.Listen(cfg.Listen); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		defer ln.Close()
		if err := o.openIdentity(dir, creds, ln.Addr()); err != nil {
			return err
		}
	}
	external, _ := reach.Of(ln.Addr(), cfg.URL, cfg.Names)
	if err := o.build(ctx, st, docs, ln.Addr(), external); err != nil {
		return err
	}
	defer o.close()
	o.port = newPort(ln, o.id.info().ID, o.id.verifier, o.id.keeper.GetCertificate, 4*cfg.MaxNodes+1000, o.serveMQTT, o.serveRelay, log)
	var runBroker, runRelay, runPrometheus func(context.Context) error
	if o.outer != nil {
		runBroker = o.outer.Run
	}
	if o.relay != nil {
		runRelay = func(ctx context.Context) error {
			return daemon.RunAll(ctx, daemon.Part{Name: "datagrams", Run: o.relay.Run}, daemon.Part{Name: "names", Run: o.relays.Run})
		}
	}
	if o.prometheus != nil {
		runPrometheus = o.prometheus.Run
	}
	return daemon.RunAll(ctx,
		daemon.Part{Name: "core", Run: o.loop.Run},
		daemon.Part{Name: "replica", Run: o.replica.Hold},
		daemon.Part{Name: "certificate", Run: o.id.keeper.Run},
		daemon.Part{Name: "authority", Run: o.id.upper.Run},
		daemon.Part{Name: "broker", Run: runBroker},
		daemon.Part{Name: "relay", Run: runRelay},
		daemon.Part{Name: "scheduler", Run: o.sched.Run},
		daemon.Part{Name: "prometheus", Run: runPrometheus},
		daemon.Part{Name: "keys", Run: o.followKeys},
		daemon.Part{Name: "root keys", Run: o.followRoot},
		daemon.Part{Name: "sweep", Run: daemon.Every(sweepEvery, o.sweep)},
		// After a burst, such as a thousand joins, the Go runtime keeps most of the freed memory.
		// One collection per minute costs less than a thousandth of a core.
		daemon.Part{Name: "memory", Run: daemon.Every(time.Minute, func(context.Context) { debug.FreeOSMemory() })},
		daemon.Part{Name: "cluster", Run: func(ctx context.Context) error { return o.live(ctx, dir, external) }},
	)
}

// openStore opens the store, and removes the address of an earlier process once no other process
// uses an embedded store.
func openStore(ctx context.Context, cfg Config, dir *os.Root, id api.ClusterID) (store.Store, error) {
	stale := func() error { return daemon.RemoveStale(dir, AddressFile) }
	if uri := cfg.Store.Reveal(); uri != "" {
		if err := stale(); err != nil {
			return nil, err
		}
		return mongo.Open(ctx, uri, roleOf(id))
	}
	return embedded.OpenWith(filepath.Join(cfg.Data, storeFile), stale)
}

// storeFile is the embedded store in the data directory.
const storeFile = "cluster.db"

// build creates and connects the parts. It starts the broker only.
func (o *orchestrator) build(ctx context.Context, st *view.Store, docs []store.Doc, at net.Addr, external string) error {
	info := o.id.info()
	seed, err := networkSeed(ctx, st, docs)
	if err != nil {
		return err
	}
	out, err := choice.Open(ctx, o.cfg.Scheduler)
	if err != nil {
		return err
	}
	o.core = cluster.New(o.cfg.core(info, seed, o.cfg.Network.relayAddr(external), out))
	if err := o.core.Restore(docs); err != nil {
		return fmt.Errorf("restore the cluster: %w", err)
	}
	reg := metrics.New()
	o.loop = loop.New(o.core, st, o.send, loop.Options[cluster.Input]{
		Tick: cluster.Tick{}, Log: o.log, Observe: metrics.NewLoop(reg).Observe,
	})
	if p := o.cfg.Prometheus; p.URL != "" {
		o.prometheus = promquery.New(promquery.Options{URL: p.URL, Label: p.Label, Post: o.loop.Post, Log: o.log})
	}
	o.sched = client.NewAsker(out, func(a sched.Answer) { o.loop.Post(cluster.Ranked{Answer: a}) })
	deliver := func(ctx context.Context, in cluster.Input) error { return o.loop.Do(ctx, in, nil) }

	if o.tracer, err = tracing.FromEnv("treeline-cluster", os.Getenv, o.log); err != nil {
		return err
	}
	o.traces = tracing.NewRelay(o.tracer)
	o.log = o.traces.Logger(o.log)
	members, err := nodelink.NewMembers(st, docs, info.ID, o.id.verifier)
	if err != nil {
		return err
	}
	if err := o.openRelay(at, members); err != nil {
		return err
	}
	tokens, err := jointoken.NewStore(st, docs, external, o.id.pin, time.Now)
	if err != nil {
		return err
	}
	if o.id.operators, err = operators.New(st, docs, time.Now); err != nil {
		return err
	}
	if err := o.openBuses(members); err != nil {
		return err
	}
	if err := o.openCSI(); err != nil {
		return err
	}
	o.nodes = &nodes{
		members: members, tokens: tokens, disconnect: func(api.NodeID) {}, replica: o.replica.URL(),
		link: nodelink.New(nodelink.Options{Buses: o.buses, Post: o.loop.Post, Member: members.Has, Log: o.log}),
	}
	o.mover = mover.New(mover.Options{Nodes: o.nodes, Log: o.log, Deliver: func(ctx context.Context, r moves.Result) error {
		return deliver(ctx, cluster.VolumesCopied{Result: r})
	}})
	if o.broker != nil {
		o.nodes.disconnect = o.broker.Disconnect
	}
	serve := nodelink.ServerOptions{
		Cluster: info.ID, Authority: o.id.authority, Tokens: tokens, Members: members, Streams: &o.nodes.streams,
		Purging: o.purging, Left: o.left, Value: o.value, Admit: deliver, Brokers: o.cfg.Broker.known(), Replicas: o.replica.URLs, Log: o.log,
	}
	if err := o.openRotation(st, docs); err != nil {
		return err
	}
	records, err := audit.New(ctx, audit.Options{
		Cluster: o.id.info().ID, Store: st, Loaded: docs,
		Recorded: func(e api.Event) { o.api.Recorded(e) },
		Notify:   func(ctx context.Context, text string) { _ = o.loop.Do(ctx, cluster.Accessed{Text: text}, nil) },
	})
	if err != nil {
		return err
	}
	o.programs = installer.NewServer(installer.Open(installer.Options{Dir: o.cfg.InstallDir, Script: deploy.Script, Files: deploy.Files}), installer.Node, external, o.log)
	var position func() uint64
	if o.replica != nil {
		position = o.replica.Store().Position
	}
	snapshots := snapshot.NewTaker(snapshot.Options{
		Position: position, Dir: o.id.dir, Tier: snapshot.Cluster, Cluster: string(info.ID), Version: daemon.Version(), Authority: func() *x509.Certificate { return o.id.authority().Pair().Chain[0] },
		All: st.All, Keys: &o.id.saving,
	})
	o.snapshots, err = schedule.New(schedule.Options{
		Config: o.cfg.Snapshot, Taker: snapshots, Store: st, Loaded: docs, Log: o.log, Record: func(ctx context.Context, text string) error {
			return records.RecordOperation(ctx, record.Record{Kind: "system", Object: "cluster"}, "", text, true)
		},
	})
	if err != nil {
		return err
	}
	if o.snapshots.Scheduled() {
		metrics.NewSnapshots(reg, o.snapshots.Age, o.snapshots.Interval)
	}
	people := httpapi.Options{
		Install: o.programs.Offer,
		Core:    o.core, Owner: o.loop, Nodes: o.nodes, Tokens: tokens, Operators: o.id.operators, Info: o.id.info,
		Authenticate: o.id.authenticate, AuthenticateOnce: o.id.authenticateOnce, Audit: records, Version: daemon.Version(), Log: o.log,
		Observe: metrics.NewHTTP(reg), Recipients: o.cfg.Snapshot.Recipients,
		Snapshots: snapshots, Scheduled: o.snapshots, Members: o.replica.Members, Authority: o.rotation,
	}
	if o.csi != nil {
		serve.AttachVolume, serve.DetachVolume, people.CSI = o.csi.Attach, o.csi.Detach, o.csi
	}
	o.server, o.api = nodelink.NewServer(serve), httpapi.New(people)
	o.root = rootlink.New(rootlink.Options{
		Roots: o.roots, Client: o.client, Traces: o.traces, Held: o.held, Post: o.loop.Post, Deliver: deliver,
		Logs: o.api.LogsFromRoot, Access: o.api.AccessFromRoot, API: o.api.FromRoot, Log: o.log,
		Revoked: func(r wire.Revocations) {
			o.id.revoked.Apply(time.Now(), r)
			o.api.Recheck()
		},
		Learned:  func(urls []string) { o.id.learn(o.roots, urls) },
		RootKeys: o.id.compareRoot, RootKeysReport: o.rootKeys,
	})
	if o.values, err = values.New(values.Options{Store: st, Loaded: docs, Sealer: o.id.sealer, Fetch: o.root.Value, Log: o.log}); err != nil {
		return err
	}
	o.registerMetrics(reg)
	if o.replica != nil {
		metrics.NewReplicas(reg, o.replica.Members)
	}
	var health daemon.Health
	health.RequireLoop(o.loop)
	o.replica.RequireActive(&health)
	health.Watch("root", func(context.Context) error { return o.root.Up() })
	o.watchBrokers(&health)
	o.http = o.route(health.Handler(o.api.Guard(metrics.Handler(reg))))
	return nil
}

// maxBrokerBackoff is the longest mean pause before the cluster dials a broker again. It is that of nodes, which may be back first.
const maxBrokerBackoff = 5 * time.Second

func (o *orchestrator) openBuses(members *nodelink.Members) (err error) {
	for _, at := range o.cfg.Broker.URL {
		addr, err := brokerAddr(at)
		if err != nil {
			return err
		}
		conf := o.id.verifier.Client(identity.OfCluster(o.id.info().ID), o.id.keeper.GetClientCertificate)
		b, err := mqtt.Dial(mqtt.Options{Addr: addr, ClientID: identity.ClusterCN, TLS: conf, Fenced: o.replica.Fenced, MaxBackoff: maxBrokerBackoff, Log: o.log})
		if err != nil {
			return err
		}
		o.buses = append(o.buses, b)
	}
	if len(o.buses) > 0 {
		return nil
	}
	o.broker, err = broker.New(broker.Options{Identify: members.Node, MaxClients: o.cfg.MaxNodes, Log: o.log})
	if err == nil {
		o.buses = append(o.buses, o.broker.Bus())
	}
	return err
}

// watchBrokers shows the connections to external brokers. They are numbered in the order of broker.url, because /readyz is open to all.
func (o *orchestrator) watchBrokers(h *daemon.Health) {
	for i, c := range o.outerBuses() {
		h.Watch(fmt.Sprintf("broker %d", i+1), func(context.Context) error {
			if !c.Connected() {
				return errNoBroker
			}
			return nil
		})
	}
}

// outerBuses returns the connections to external brokers, by index in broker.url.
func (o *orchestrator) outerBuses() (all []*mqtt.Client) {
	for _, b := range o.buses {
		if c, ok := b.(*mqtt.Client); ok {
			all = append(all, c)
		}
	}
	return all
}

var errNoBroker = errors.New("the cluster is not connected to it, see the log")

// openCSI opens the configured CSI drivers.
func (o *orchestrator) openCSI() (err error) {
	sockets, err := csidriver.ParseAll(o.cfg.CSI)
	if err != nil || len(sockets) == 0 {
		return err
	}
	secrets, err := csidriver.ParseSecrets(o.cfg.CSISecrets, sockets)
	if err != nil {
		return err
	}
	if o.drivers, err = csidriver.OpenAll(sockets, secrets, o.cfg.CSITimeout); err != nil {
		return err
	}
	o.csi = csi.New(csi.Options{Cluster: o.id.info().ID, Drivers: o.drivers, Core: o.core, Owner: o.loop, Log: o.log})
	return nil
}

func (o *orchestrator) close() {
	for _, d := range o.drivers {
		d.Close()
	}
	for _, b := range o.buses {
		_ = b.Close()
	}
	if o.broker != nil {
		_ = o.broker.Close()
	}
	o.client.CloseIdleConnections()
}

// send dispatches the core's messages. It runs on the core's goroutine and must not block.
func (o *orchestrator) send(envs []wire.Envelope) {
	var changes []api.Change
	for _, e := range envs {
		switch e.To {
		case wire.ToRoot:
			o.root.Send(e.Msg.(wire.ClusterToRoot))
		case netbook.ToRelay:
			o.sendRelay(e.Msg)
		case placement.ToValues:
			if need, ok := e.Msg.(placement.Needed); ok {
				o.values.Need(need)
			}
		case cluster.ToPrometheus:
			if all, ok := e.Msg.(autoscale.Queries); ok && o.prometheus != nil {
				o.prometheus.Set(all)
			}
		case wire.ToWatchers:
			changes = append(changes, e.Msg.(api.Change))
		case placement.ToMoves:
			if all, ok := e.Msg.(placement.Tasks); ok {
				o.mover.Set(all)
			}
		case wire.ToScheduler:
			if q, ok := e.Msg.(sched.Ask); ok {
				o.sched.Send(q)
			}
		case uplink.ToOperator:
			if n, ok := e.Msg.(wire.Notice); ok {
				o.log.Warn(n.Text, "times", n.Times)
			}
		default:
			if d, ok := e.Msg.(wire.NetDown); ok {
				o.noteRelays(d)
			}
			if d, ok := e.Msg.(wire.Desired); ok {
				d.Replicas = o.replica.URLs()
				e.Msg = o.traces.Sent(d, tracing.OfPlacement, "choose node", func(a wire.Assignment) map[string]string {
					return map[string]string{
						"treeline.cluster": string(o.id.info().ID), "treeline.instance": string(a.Instance), "treeline.node": strings.TrimPrefix(string(e.To), "node/"),
					}
				})
			}
			o.nodes.link.Send(e)
		}
	}
	if len(changes) > 0 {
		o.api.Changed(changes...)
	}
}

func (o *orchestrator) held(ctx context.Context) (gen api.Generation, digest api.Digest, err error) {
	err = o.loop.Read(ctx, func() {
		gen = o.core.Gen()
		digest, _ = o.core.Digests()
	})
	return gen, digest, err
}

// value returns the config or secret that a node requests, and whether an instance on it needs it.
func (o *orchestrator) value(ctx context.Context, n api.NodeID, w wire.WantValue) (v wire.Value, ok bool, err error) {
	var k wire.ValueKey
	if err := o.loop.Read(ctx, func() { k, ok = o.core.ValueFor(n, w) }); err != nil || !ok {
		return v, false, err
	}
	v, err = o.values.Get(ctx, k)
	return v, true, err
}

func (o *orchestrator) route(health http.Handler) http.Handler {
	pages := web.Handler(web.Cluster, health)
	nodes, people := o.replica.Guard(o.server.Handler()), o.replica.Guard(o.api.Handler())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p := r.URL.Path; {
		case strings.HasPrefix(p, "/v1/node/"), strings.HasPrefix(p, "/v1/join/"):
			nodes.ServeHTTP(w, r)
		case p == web.APIPath:
			pages.ServeHTTP(w, r)
		case installer.Serves(r):
			o.programs.ServeHTTP(w, r)
		case strings.HasPrefix(p, "/v1/"):
			people.ServeHTTP(w, r)
		default:
			pages.ServeHTTP(w, r)
		}
	})
}

func (o *orchestrator) serveMQTT(ctx context.Context, c *tls.Conn) error {
	if o.broker == nil {
		return c.Close()
	}
	return o.broker.ServeConn(ctx, c)
}

// live starts the core and then accepts connections.
func (o *orchestrator) live(ctx context.Context, dir *os.Root, external string) error {
	if err := o.loop.Do(ctx, cluster.Start{}, nil); err != nil {
		return err
	}
	if err := o.loop.Read(ctx, func() {
		o.values.Need(o.core.Values())
		o.mover.Set(o.core.MoveTasks())
	}); err != nil {
		return err
	}
	if err := expel(ctx, o.core, o.loop, o.nodes); err != nil {
		return err
	}
	local := reach.Local(o.port.Addr())
	ready := func() error {
		if err := ca.WriteFile(dir, AddressFile, []byte(local+"\n"), 0o644); err != nil {
			return err
		}
		o.log.Info("cluster serves", "address", local, "url", external, "root", o.id.credentials().URL, "data", o.cfg.Data)
		daemon.NotifyReady(o.log)
		return nil
	}
	return daemon.RunAll(ctx,
		daemon.Part{Name: "nodes", Run: o.nodes.link.Run},
		daemon.Part{Name: "root", Run: o.root.Run},
		daemon.Part{Name: "values", Run: o.values.Run},
		daemon.Part{Name: "moves", Run: o.mover.Run},
		daemon.Part{Name: "traces", Run: o.tracer.Run},
		daemon.Part{Name: "switch", Run: o.watchSwitch},
		daemon.Part{Name: "port", Run: o.port.Run},
		daemon.Part{Name: "snapshots", Run: o.snapshots.Run},
		daemon.Part{Name: "rotation", Run: o.rotation.Run},
		daemon.Part{Name: "oakestra", Run: o.serveOakestra(dir)},
		daemon.Part{Name: "server", Run: func(ctx context.Context) error {
			if err := ready(); err != nil {
				return err
			}
			return daemon.Serve(ctx, o.port, o.served(), nil)
		}},
	)
}

func (o *orchestrator) sweep(ctx context.Context) {
	if err := o.nodes.tokens.Sweep(ctx); err != nil && ctx.Err() == nil {
		o.log.Warn("cannot remove expired join tokens", "err", err)
	}
}
