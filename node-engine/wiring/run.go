package wiring

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/hostports"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/access"
	"github.com/treeline-edge/treeline/node-engine/checks"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/csi"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/driver"
	"github.com/treeline-edge/treeline/node-engine/files"
	"github.com/treeline-edge/treeline/node-engine/network"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/pinger"
	"github.com/treeline-edge/treeline/node-engine/ports"
	"github.com/treeline-edge/treeline/node-engine/probe"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/guard"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
	"github.com/treeline-edge/treeline/node-engine/usage"
	"github.com/treeline-edge/treeline/node-engine/volume"
)

const (
	// findTimeout is how long a start waits for a runtime that does not answer yet. It is short,
	// because until the node connects its cluster counts it as silent. Workloads of a runtime that
	// has not answered are unknown.
	findTimeout = time.Second
	// usageInterval is the interval of measuring usage, which is information for people only.
	usageInterval = time.Minute
)

type engine struct {
	cfg     Config
	dir     *os.Root
	log     *slog.Logger
	creds   clusterlink.Credentials
	keeper  *keeper.Keeper
	cluster *clusterlink.Cluster
	bus     bus.Bus
	dialer  *dialer
	core    *node.Core
	loop    *loop.Loop[node.Input]
	devices *devices.Devices
	pinger  *pinger.Pinger
	driver  *driver.Driver
	checks  *checks.Checks
	csi     *csi.Manager     // nil: no drivers are configured, or the runtime does not support volumes
	volumes *volume.Manager  // nil: the runtime does not support volumes
	load    *usage.Meter     // nil: the runtime does not support it
	net     *network.Network // nil: no overlay network
	ports   *ports.Ports     // nil if net is nil
	link    *clusterlink.Link
	empty   chan struct{} // signalled when the node may be purged and is empty
	meter   counters
}

// Run runs the node engine until ctx ends. Its workloads keep running. It fails with ErrNotFound if
// the node has not joined and has no token. It completes a purge that was interrupted, and carries
// out one that the cluster orders; then it returns ErrLeft.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	err := run(ctx, cfg, log)
	if errors.Is(err, errOrdered) {
		return Purge(ctx, cfg, log)
	}
	return err
}

func run(ctx context.Context, cfg Config, log *slog.Logger) error {
	dir, err := cfg.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	found, err := openDevices(cfg, log)
	if err != nil {
		return err
	}
	rt, err := openRuntime(cfg, found, log)
	if err != nil {
		return err
	}
	defer cfg.closeRuntime(rt)
	info, creds, err := cfg.join(ctx, dir, log)
	if err != nil {
		return err
	}
	if _, ok := rt.(runtime.Namespaced); ok {
		info.Network = cfg.network()
	} else {
		info.Network = api.NetworkHost
	}
	info.Features = features(rt)
	info.Address = cmp.Or(info.Address, ownAddress(ctx, creds))
	log = log.With("node", creds.ID)
	tracer, err := tracing.FromEnv("treeline-node", os.Getenv, log)
	if err != nil {
		return err
	}
	traces := tracing.NewRelay(tracer)
	log = traces.Logger(log)

	st, err := embedded.Open(filepath.Join(cfg.Data, storeFile))
	if err != nil {
		return err
	}
	defer st.Close()
	docs, err := store.Load(ctx, st)
	if err != nil {
		return err
	}
	core := node.New(node.Config{ID: creds.ID})
	if err := core.Restore(docs); err != nil {
		return fmt.Errorf("restore the node: %w", err)
	}
	e := &engine{cfg: cfg, dir: dir, log: log, creds: creds, core: core, devices: found, pinger: pinger.New(pinger.Options{}), empty: make(chan struct{}, 1)}
	if err := e.connect(); err != nil {
		return err
	}
	defer e.bus.Close()
	e.loop = loop.New(core, st, e.send, loop.Options[node.Input]{
		Tick: node.Tick{}, Log: log, Observe: e.meter.observe, Queue: 1024, Batch: 128, WhenFull: node.Volatile,
	})
	deliver := func(ctx context.Context, in node.Input) error { return e.loop.Do(ctx, in, nil) }
	provided := e.openFiles(rt)
	if provided != nil {
		info.Features = append(info.Features, api.FeatureFiles)
		slices.Sort(info.Features)
	}
	e.checks = checks.New(checks.Options{Runtime: rt, HostNetwork: info.Network == api.NetworkHost, Deliver: deliver, Log: log})
	orders := driver.Options{Runtime: rt, Traces: traces, Deliver: deliver, Info: info, Devices: found.List, Log: log}
	if provided != nil {
		orders.Files = provided
	}
	if e.volumes, err = cfg.openVolumes(ctx, log); err != nil {
		return err
	}
	if e.volumes != nil {
		orders.Volumes = e.volumes
	}
	if usage.Supported(rt) {
		e.load = usage.New(usage.Options{Runtime: rt, Post: func(in node.Input) { e.loop.Post(in) }, Log: log})
	}
	if e.csi, err = cfg.openCSI(csi.Options{Attach: e.cluster.AttachVolume, Detach: e.cluster.DetachVolume, Changed: func() { e.driver.Recheck() }, Log: log}); err != nil {
		return err
	}
	if e.csi != nil {
		orders.CSI = e.csi
	}
	if _, ok := rt.(runtime.Guarded); ok {
		g := guard.New(filepath.Join(cfg.Data, "guard"))
		defer g.Close()
		orders.Guard = g
	}
	reach := access.Options{Runtime: rt, Log: log}
	if e.volumes != nil {
		reach.Volumes = e.volumes
	}
	link := clusterlink.Options{
		DeleteVolume: e.deleteVolume,
		ID:           creds.ID, Bus: e.bus, Cluster: e.cluster, Renew: e.keeper.Renew,
		Post: e.loop.Post, Deliver: deliver, Logs: rt.Logs, Probe: e.pinger.Probe, Log: log,
		Access: e.volumeStreams(rt, provided, access.New(reach).Open), Metrics: e.openMetrics, Learned: e.learn,
		DiscardVolume: e.discardVolume, Traces: traces, Usage: usage.NewSampler(rt, log).Sample,
	}
	if lines, ok := rt.(runtime.LogReader); ok {
		link.LogLines = func(ctx context.Context, r wire.StreamRequest) (io.ReadCloser, error) {
			q := logs.Query{Tail: r.Tail, Since: r.Lines.Since, Timestamps: r.Lines.Timestamps, Previous: r.Lines.Previous}
			return lines.ReadLogs(ctx, wire.Key{Instance: r.Instance, Epoch: r.Epoch}, q, r.Follow)
		}
	}
	parts := []daemon.Part{
		{Name: "core", Run: e.loop.Run},
		{Name: "certificate", Run: e.keeper.Run},
		{Name: "status", Run: e.serveStatus},
		{Name: "node", Run: e.runNode},
		{Name: "purge", Run: e.awaitPurge},
		{Name: "memory", Run: daemon.TrimMemory},
	}
	if tracer != nil {
		parts = append(parts, daemon.Part{Name: "traces", Run: tracer.Run})
	}
	if e.load != nil {
		parts = append(parts, daemon.Part{Name: "load", Run: e.load.Run})
	}
	if provided != nil {
		parts = append(parts, daemon.Part{Name: "files", Run: provided.Run})
	}
	if e.csi != nil {
		parts = append(parts, daemon.Part{Name: "csi", Run: e.csi.Run})
	}
	if info.Network == api.NetworkOverlay {
		e.net = network.New(network.Options{
			Client: netsock.New(cfg.Netmanager.Socket), Log: log,
			Subscriptions: func(b []byte) { e.link.Subscriptions(b) },
			Changed:       func() { e.driver.Recheck() },
			Serves:        func(k wire.Key) { e.driver.ReadinessChanged(k) },
		})
		publish, err := api.ParsePortRanges(cfg.Publish)
		if err != nil {
			return err
		}
		e.ports = ports.New(ports.Options{Publish: publish, Own: hostports.Own, Log: log})
		orders.Network, orders.Ports, link.Net = e.net, e.ports.Get, e.net
		parts = append(parts, daemon.Part{Name: "network", Run: e.net.Run})
	}
	e.driver = driver.New(orders)
	e.link = clusterlink.New(link)
	return daemon.RunAll(ctx, parts...)
}

// filesDir returns the directory in memory for the files of this node's workloads.
func (c Config) filesDir() string {
	data := c.Data
	if abs, err := filepath.Abs(data); err == nil {
		data = abs
	}
	sum := sha256.Sum256([]byte(data)) // one directory for each engine on the machine
	return filepath.Join(c.FilesDir, hex.EncodeToString(sum[:8]))
}

// openFiles returns nil if the node cannot provide files: the runtime has none, or there is no
// directory in memory.
func (e *engine) openFiles(rt runtime.Runtime) *files.Files {
	signals, ok := rt.(runtime.Filer)
	if !ok || e.cfg.FilesDir == "" {
		return nil
	}
	f, err := files.Open(files.Options{Dir: e.cfg.filesDir(), Fetch: e.cluster.Value, Signal: signals.Signal, Log: e.log})
	if err != nil {
		e.log.Warn("this node provides no files of services: it gets no instance that has some", "err", err)
		return nil
	}
	return f
}

// deleteVolume deletes a local volume and reports this to the cluster.
func (e *engine) deleteVolume(ctx context.Context, id api.VolumeID) error {
	if e.volumes == nil {
		return nil
	}
	if err := e.volumes.Delete(id); err != nil {
		return err
	}
	e.log.Info("volume deleted", "volume", id)
	return e.reportVolumes(ctx)
}

// Join makes the machine a node of the token's cluster, if it is not one yet, and returns the
// node's id.
func Join(ctx context.Context, cfg Config, log *slog.Logger) (api.NodeID, error) {
	dir, err := cfg.open()
	if errors.Is(err, errOrdered) {
		return "", fmt.Errorf("this machine is being purged; complete that first with node-engine purge --yes: %w", api.ErrConflict)
	}
	if err != nil {
		return "", err
	}
	defer dir.Close()
	_, creds, err := cfg.join(ctx, dir, log)
	return creds.ID, err
}

// open opens the data directory and sets c.Runtime to the node's runtime. It fails with errOrdered
// if a purge was interrupted, and with ErrLeft if the node was purged.
func (c *Config) open() (*os.Root, error) {
	dir, err := daemon.OpenData(c.Data)
	if err != nil {
		return nil, err
	}
	_, purging, err := purgeBegun(dir)
	if err == nil && purging {
		err = errOrdered
	}
	if err == nil {
		err = c.mayJoin(dir)
	}
	if err == nil {
		c.Runtime, err = c.savedRuntime(dir)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// join returns the node's info and its credentials. It joins if necessary.
func (c Config) join(ctx context.Context, dir *os.Root, log *slog.Logger) (info api.NodeInfo, creds clusterlink.Credentials, err error) {
	if info, err = c.offer(log); err != nil {
		return info, creds, err
	}
	if creds, err = credentials(ctx, c, dir, info, log); err != nil {
		return info, creds, err
	}
	info.ID = creds.ID
	return info, creds, c.saveRuntime(dir)
}

// connect creates the keeper of the certificate and the connections to the cluster, which are
// established in the background.
func (e *engine) connect() (err error) {
	v := trust.New()
	v.Learn(e.creds.Pair.Chain)
	e.cluster = clusterlink.NewCluster(v, e.creds, func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return e.keeper.GetClientCertificate(r)
	}, e.cfg.Cluster...)
	e.keeper, err = keeper.New(keeper.Options{
		Pair: e.creds.Pair, Log: e.log, Renew: e.cluster.Renew,
		Save: func(p ca.Pair) error {
			err := clusterlink.SavePair(e.dir, p)
			if err == nil {
				v.Learn(p.Chain)
			}
			return err
		},
	})
	if err != nil {
		return err
	}
	if e.dialer, err = newDialer(e.creds); err != nil {
		return err
	}
	e.bus, err = mqtt.Dial(mqtt.Options{
		Endpoints: e.dialer.Endpoints, Hurry: e.dialer.Hurry, ClientID: string(e.creds.ID),
		TLS:  v.Client(identity.OfCluster(e.creds.Cluster), e.keeper.GetClientCertificate),
		Will: clusterlink.Will(e.creds.ID), Log: e.log, MaxBackoff: maxBackoff,
	})
	return err
}

// learn stores the URLs of the cluster's replicas. The link calls it from one goroutine.
func (e *engine) learn(urls []string) {
	if !e.cluster.Learn(urls) {
		return
	}
	e.log.Info("replicas of the cluster changed", "urls", urls)
	creds := e.creds
	if err := creds.SaveReplicas(e.dir, urls); err != nil {
		e.log.Warn("the URLs of the cluster's replicas are not saved", "err", err)
	}
}

// maxBackoff is the longest pause before the node dials its cluster again. A cluster that was away
// for a long time waits a little longer than that for its nodes before it counts one as lost
// (cluster.Config.Return).
const maxBackoff = 5 * time.Second

// send passes the core's messages to the adapters. The core's loop calls it, and it must not block.
func (e *engine) send(envs []wire.Envelope) {
	for _, env := range envs {
		switch env.To {
		case wire.ToCluster:
			e.link.Send(env.Msg.(wire.NodeToCluster))
		case wire.ToRuntime:
			e.driver.Order(env.Msg.(wire.WorkloadOrder))
		case node.ToChecker:
			switch o := env.Msg.(type) {
			case node.Check:
				e.checks.Check(o)
			case node.Uncheck:
				e.checks.Uncheck(o.Key)
			}
		case node.ToMeter:
			if o, ok := env.Msg.(node.Measure); ok && e.load != nil {
				e.load.Measure(o)
			}
		case node.ToDialer:
			if d, ok := env.Msg.(node.Dial); ok {
				e.dialer.set(d)
			}
		case node.ToPurger:
			select {
			case e.empty <- struct{}{}:
			default:
			}
		}
	}
}

// runNode starts the core with the runtime's workloads, and then connects it to its adapters.
func (e *engine) runNode(ctx context.Context) error {
	info, found := e.find(ctx)
	if err := e.loop.Do(ctx, node.Start{Info: info, Found: found}, nil); err != nil {
		return err
	}
	e.log.Info("node runs", "cluster", e.creds.Cluster, "runtimes", info.Runtimes, "capacity", info.Capacity, "found", len(found))
	daemon.NotifyReady(e.log)
	parts := []daemon.Part{
		{Name: "runtime", Run: e.driver.Run},
		{Name: "health checks", Run: e.checks.Run},
		{Name: "cluster", Run: e.link.Run},
		{Name: "broker", Run: e.findBroker},
		{Name: "usage", Run: e.measureUsage},
		{Name: "devices", Run: func(ctx context.Context) error { return e.devices.Run(ctx, e.driver.Recheck) }},
	}
	if e.ports != nil {
		parts = append(parts, daemon.Part{Name: "ports", Run: func(ctx context.Context) error { return e.ports.Run(ctx, e.driver.Recheck) }})
	}
	return daemon.RunAll(ctx, parts...)
}

func (e *engine) find(ctx context.Context) (api.NodeInfo, []wire.WorkloadEvent) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	for {
		info, found, err := e.driver.Find(ctx)
		if err == nil {
			return info, found
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			e.log.Error("runtime does not answer, starting without it", "err", err)
			return info, nil
		}
	}
}

func (e *engine) measureUsage(ctx context.Context) error {
	var m probe.Meter
	measure := func(context.Context) {
		cpu, mem, err := m.Usage()
		if err != nil {
			e.log.Warn("usage not measured", "err", err)
			return
		}
		e.loop.Post(node.Usage{CPU: cpu, Mem: mem})
	}
	measure(ctx)
	return daemon.Every(usageInterval, measure)(ctx)
}

// The pauses before a node that reaches no broker asks its cluster for the address: the first is
// after many attempts to dial.
const (
	firstBrokerQuery    = 10 * time.Second
	brokerQueryInterval = time.Minute
)

// findBroker asks the cluster for its broker while none is reachable: the node may have been off
// when a new one was announced.
func (e *engine) findBroker(ctx context.Context) error {
	jittered := func(d time.Duration) time.Duration { return d/2 + rand.N(d) }
	up := e.bus.Up()
	query := time.NewTimer(firstBrokerQuery)
	defer query.Stop()
	for {
		select {
		case isUp, open := <-up:
			if !open {
				<-ctx.Done() // a part that returns ends the daemon
				return nil
			}
			if query.Stop(); !isUp {
				query.Reset(jittered(firstBrokerQuery))
			}
		case <-query.C:
			brokers, err := e.cluster.Brokers(ctx)
			if err == nil {
				e.loop.Post(node.Brokers{URLs: brokers})
			} else if ctx.Err() == nil {
				e.log.Warn("cannot ask the cluster for its broker", "err", err)
			}
			query.Reset(jittered(brokerQueryInterval))
		case <-ctx.Done():
			return nil
		}
	}
}
