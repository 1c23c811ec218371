package wiring

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/hostports"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/driver"
	"github.com/treeline-edge/treeline/node-engine/network"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/pinger"
	"github.com/treeline-edge/treeline/node-engine/ports"
	"github.com/treeline-edge/treeline/node-engine/probe"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

const (
	// patience is how long a start waits for a runtime that does not answer yet.
	// It is short: until the node speaks its cluster counts it as silent, and while
	// the runtime has not answered the core knows its workloads as unknown.
	patience = time.Second
	// measureEvery is how often usage is measured. It informs people; placing
	// goes by what is reserved.
	measureEvery = time.Minute
)

// engine is what Run puts together.
type engine struct {
	cfg     Config
	log     *slog.Logger
	creds   clusterlink.Credentials
	keeper  *keeper.Keeper
	client  *http.Client // to the cluster
	bus     bus.Bus
	dialer  *dialer
	core    *node.Core
	loop    *loop.Loop[node.Input]
	devices *devices.Devices
	pinger  *pinger.Pinger
	driver  *driver.Driver
	net     *network.Network // nil: no overlay network
	ports   *ports.Ports     // nil: the same
	link    *clusterlink.Link
	empty   chan struct{} // signalled when the node may be purged and is empty
	meter   counters
}

// Run is the node engine until ctx ends. Its workloads live on. What fails
// before it serves says what is missing; a node that has not joined and has no
// token is ErrNotFound.
// A purge that had begun is completed, and one that the cluster orders is carried out;
// then Run returns ErrLeft.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	err := run(ctx, cfg, log)
	if errors.Is(err, errOrdered) {
		return Purge(ctx, cfg, log)
	}
	return err
}

func run(ctx context.Context, cfg Config, log *slog.Logger) error {
	dir, err := openData(cfg)
	if err != nil {
		return err
	}
	defer dir.Close()
	switch _, purging, err := begun(dir); {
	case err != nil:
		return err
	case purging:
		return errOrdered
	}
	if err := cfg.mayJoin(dir); err != nil {
		return err
	}
	if cfg.Runtime, err = cfg.keptRuntime(dir); err != nil {
		return err
	}
	found, err := openDevices(cfg, log)
	if err != nil {
		return err
	}
	rt, closeRuntime, err := runtimeOf(cfg, found, log)
	if err != nil {
		return err
	}
	defer closeRuntime()
	info, err := infoOf(cfg, log)
	if err != nil {
		return err
	}
	creds, err := credentials(ctx, cfg, dir, info, log)
	if err != nil {
		return err
	}
	if err := cfg.keepRuntime(dir); err != nil {
		return err
	}
	info.ID = creds.ID
	info.Network = networkOf(cfg, rt)
	log = log.With("node", creds.ID)

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
	e := &engine{cfg: cfg, log: log, creds: creds, core: core, devices: found, pinger: pinger.New(pinger.Options{}), empty: make(chan struct{}, 1)}
	if err := e.connect(dir); err != nil {
		return err
	}
	defer e.bus.Close()
	e.loop = loop.New(core, st, e.send, loop.Options[node.Input]{
		Tick: node.Tick{}, Log: log, Observe: e.meter.observe, Queue: 1024, Batch: 128, WhenFull: node.Volatile,
	})
	deliver := func(ctx context.Context, in node.Input) error { return e.loop.Do(ctx, in, nil) }
	orders := driver.Options{Runtime: rt, Deliver: deliver, Info: info, Devices: found.List, Log: log}
	if _, ok := rt.(runtime.Guarded); ok {
		g := &lateGuard{dir: filepath.Join(cfg.Data, "guard")}
		defer g.Close()
		orders.Guard = g
	}
	link := clusterlink.Options{
		ID: creds.ID, Bus: e.bus, Client: e.client, URL: creds.URL,
		Post: e.loop.Post, Deliver: deliver, Logs: rt.Logs, Probe: e.pinger.Probe, Log: log,
	}
	if info.Network == api.NetworkOverlay {
		e.net = network.New(network.Options{
			Client:   netsock.New(cfg.Netmanager.Socket),
			Interest: func(b []byte) { e.link.Interest(b) }, Changed: func() { e.driver.Recheck() },
			Serves: func(k wire.Key) { e.driver.Serves(k) }, Log: log,
		})
		publish, err := api.ParsePortRanges(cfg.Publish)
		if err != nil {
			return err
		}
		e.ports = ports.New(ports.Options{Publish: publish, Own: hostports.Own, Log: log})
		orders.Network, orders.Ports, link.Net = e.net, e.ports.Says, e.net
	}
	e.driver = driver.New(orders)
	e.link = clusterlink.New(link)
	return daemon.RunAll(ctx,
		daemon.Part{Name: "core", Run: e.loop.Run},
		daemon.Part{Name: "certificate", Run: e.keeper.Run},
		daemon.Part{Name: "status", Run: e.serveStatus},
		daemon.Part{Name: "network", Run: e.network},
		daemon.Part{Name: "node", Run: e.live},
		daemon.Part{Name: "purge", Run: func(ctx context.Context) error { return e.awaitPurge(ctx, dir) }},
		daemon.Part{Name: "memory", Run: daemon.Slim},
	)
}

// networkOf is what the node's workloads are on: the overlay is for those that
// have network namespaces of their own.
func networkOf(cfg Config, rt runtime.Runtime) string {
	if _, ok := rt.(runtime.Namespaced); !ok {
		return api.NetworkHost
	}
	return cfg.network()
}

func (e *engine) network(ctx context.Context) error {
	if e.net == nil {
		<-ctx.Done()
		return nil
	}
	return e.net.Run(ctx)
}

func (e *engine) watchPorts(ctx context.Context) error {
	if e.ports == nil {
		<-ctx.Done()
		return nil
	}
	return e.ports.Run(ctx, e.driver.Recheck)
}

// Join makes the node a member of the token's cluster, if it is not yet, and
// returns its id.
func Join(ctx context.Context, cfg Config, log *slog.Logger) (api.NodeID, error) {
	dir, err := openData(cfg)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	switch _, purging, err := begun(dir); {
	case err != nil:
		return "", err
	case purging:
		return "", fmt.Errorf("this machine is being purged; complete that first with node-engine purge --yes: %w", api.ErrConflict)
	}
	if err := cfg.mayJoin(dir); err != nil {
		return "", err
	}
	if cfg.Runtime, err = cfg.keptRuntime(dir); err != nil {
		return "", err
	}
	info, err := infoOf(cfg, log)
	if err != nil {
		return "", err
	}
	creds, err := credentials(ctx, cfg, dir, info, log)
	if err != nil {
		return "", err
	}
	return creds.ID, cfg.keepRuntime(dir)
}

func openData(cfg Config) (*os.Root, error) {
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	dir, err := os.OpenRoot(cfg.Data)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	return dir, nil
}

func runtimeOf(cfg Config, found *devices.Devices, log *slog.Logger) (runtime.Runtime, func(), error) {
	if cfg.Fake != nil {
		return cfg.Fake, func() {}, nil
	}
	rt, err := openRuntime(cfg, found, log)
	if err != nil {
		return nil, nil, err
	}
	return rt, func() { _ = rt.Close() }, nil
}

func infoOf(cfg Config, log *slog.Logger) (api.NodeInfo, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return api.NodeInfo{}, fmt.Errorf("ask for the machine's name: %w", err)
	}
	info := cfg.info(hostname)
	err = cfg.offered(log, &info)
	return info, err
}

// credentials are those that the node has, or gets for its token. A cluster that
// cannot be reached is asked again until ctx ends. A new token of the cluster that the
// node has joined is used to join again; one that is refused changes nothing.
func credentials(ctx context.Context, cfg Config, dir *os.Root, info api.NodeInfo, log *slog.Logger) (clusterlink.Credentials, error) {
	creds, err := clusterlink.Load(dir)
	line := cfg.Token.Reveal()
	switch {
	case err == nil && line != "":
		return renewed(ctx, cfg, dir, creds, info, log)
	case err == nil || !errors.Is(err, api.ErrNotFound):
		return creds, err
	case line == "":
		return creds, fmt.Errorf("this machine has not joined a cluster: run node-engine join --token-file FILE (its operator makes a token with treeline token create --node): %w", err)
	}
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		creds, err = clusterlink.Join(ctx, dir, line, info)
		if err == nil {
			log.Info("joined", "cluster", creds.Cluster, "node", creds.ID)
			return creds, nil
		}
		if !errors.Is(err, api.ErrUnavailable) || ctx.Err() != nil {
			return creds, err
		}
		wait := pause/2 + rand.N(pause)
		log.Warn("the cluster cannot be reached; joining again", "retry_in", wait.Round(time.Millisecond), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return creds, err
		}
	}
}

// connect makes the certificate's keeper and the connection to the broker, which
// come up by themselves.
func (e *engine) connect(dir *os.Root) error {
	v := trust.New(e.creds.Pair.Root())
	e.client = clusterlink.Client(v, e.creds, func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return e.keeper.GetClientCertificate(r)
	})
	var err error
	e.keeper, err = keeper.New(keeper.Options{
		Pair: e.creds.Pair, Log: e.log,
		Renew: clusterlink.Renew(e.client, e.creds.URL),
		Save:  func(p ca.Pair) error { return clusterlink.SavePair(dir, p) },
	})
	if err != nil {
		return err
	}
	if e.dialer, err = newDialer(e.creds); err != nil {
		return err
	}
	conf := v.Client(identity.OfCluster(e.creds.Cluster), e.keeper.GetClientCertificate)
	e.bus, err = mqtt.Dial(mqtt.Options{
		Endpoints: e.dialer.Endpoints, Hurry: e.dialer.Hurry, ClientID: string(e.creds.ID), TLS: conf, Will: clusterlink.Will(e.creds.ID), Log: e.log,
		MaxBackoff: maxBackoff,
	})
	return err
}

// maxBackoff is the longest pause before the node tries to reach its cluster
// again. A cluster that was away for long waits a little longer than that for its
// nodes before it counts one as lost (cluster.Config.Return).
const maxBackoff = 5 * time.Second

// brokerOf is where the node's broker is: on the cluster's own port, told apart
// by ALPN, or elsewhere.
func brokerOf(c clusterlink.Credentials) (addr string, alpn []string, err error) {
	at, want, port := c.MQTT, "mqtts", "8883"
	if at == "" {
		at, want, port, alpn = c.URL, "https", "443", []string{"mqtt"}
	}
	u, err := url.Parse(at)
	if err != nil || u.Scheme != want || u.Hostname() == "" {
		return "", nil, fmt.Errorf("the broker's URL %q is not %s://host:port: %w", at, want, api.ErrInvalid)
	}
	if u.Port() != "" {
		port = u.Port()
	}
	return net.JoinHostPort(u.Hostname(), port), alpn, nil
}

// send hands out what the core says. It runs on the core's owner and must not block.
func (e *engine) send(envs []wire.Envelope) {
	for _, env := range envs {
		switch env.To {
		case wire.ToCluster:
			e.link.Send(env.Msg.(wire.NodeToCluster))
		case wire.ToRuntime:
			e.driver.Order(env.Msg.(wire.WorkloadOrder))
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

// live begins the core's life with what the runtime has, and then lets the world in.
func (e *engine) live(ctx context.Context) error {
	info, found := e.find(ctx)
	if err := e.loop.Do(ctx, node.Start{Info: info, Found: found}, nil); err != nil {
		return err
	}
	e.log.Info("node runs", "cluster", e.creds.Cluster, "runtimes", info.Runtimes, "capacity", info.Capacity, "found", len(found))
	if err := daemon.Notify(daemon.Ready); err != nil {
		e.log.Warn("systemd not told", "err", err)
	}
	return daemon.RunAll(ctx,
		daemon.Part{Name: "runtime", Run: e.driver.Run},
		daemon.Part{Name: "cluster", Run: e.link.Run},
		daemon.Part{Name: "broker", Run: e.findBroker},
		daemon.Part{Name: "probe", Run: e.measure},
		daemon.Part{Name: "ports", Run: e.watchPorts},
		daemon.Part{Name: "devices", Run: func(ctx context.Context) error { return e.devices.Run(ctx, e.driver.Recheck) }},
	)
}

func (e *engine) find(ctx context.Context) (api.NodeInfo, []wire.WorkloadEvent) {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		info, found, err := e.driver.Find(patient)
		if err == nil {
			return info, found
		}
		select {
		case <-time.After(pause):
		case <-patient.Done():
			e.log.Error("starting without the runtime, which does not answer", "err", err)
			return info, nil
		}
	}
}

func (e *engine) measure(ctx context.Context) error {
	var m probe.Meter
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for {
		cpu, mem, err := m.Usage()
		if err != nil {
			e.log.Warn("usage not measured", "err", err)
			return nil
		}
		e.loop.Post(node.Usage{CPU: cpu, Mem: mem})
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// rejoinTime bounds how long a start waits for the cluster to take a new token.
const rejoinTime = 30 * time.Second

// renewed returns the credentials of a node that has joined and is given a token.
func renewed(ctx context.Context, cfg Config, dir *os.Root, had clusterlink.Credentials, info api.NodeInfo, log *slog.Logger) (clusterlink.Credentials, error) {
	t, err := jointoken.Parse(cfg.Token.Reveal())
	if err != nil {
		return had, err
	}
	log = log.With("cluster", had.Cluster, "node", had.ID, "token", t.ID())
	if err := had.Fits(t); err != nil {
		return had, fmt.Errorf("give the new node a data directory of its own, or remove %s: %w", cfg.Data, err)
	}
	switch {
	case t.ID() == had.Token:
		return had, nil
	case had.Token == "": // it joined with a release that did not note its token
		log.Info("assuming that this node joined with the configured token; a different token will join it again")
		return had, had.Note(dir, t.ID())
	}
	ctx, cancel := context.WithTimeout(ctx, rejoinTime)
	defer cancel()
	now, err := clusterlink.Rejoin(ctx, dir, had, cfg.Token.Reveal(), info)
	if err != nil {
		log.Error("joining again with the new token failed; the node keeps its credentials", "err", err,
			"fix", "remove the token from the configuration, or make another: treeline token create --node")
		return had, nil
	}
	log.Info("joined again with the new token", "url", now.URL)
	return now, nil
}

// The pauses before a node that finds no broker asks its cluster where it is: the
// first after many attempts to dial.
const (
	askBrokerAfter = 10 * time.Second
	askBrokerAgain = time.Minute
)

// findBroker asks the cluster for its broker whenever none was reachable for a while: the
// node may have been off when a new one was announced.
func (e *engine) findBroker(ctx context.Context) error {
	up := e.bus.Up()
	ask := time.NewTimer(askBrokerAfter)
	defer ask.Stop()
	for {
		select {
		case isUp, open := <-up:
			if !open {
				<-ctx.Done() // a part that returns ends the daemon
				return nil
			}
			if ask.Stop(); !isUp {
				ask.Reset(askBrokerAfter/2 + rand.N(askBrokerAfter))
			}
		case <-ask.C:
			brokers, err := clusterlink.Brokers(ctx, e.client, e.creds.URL)
			if err == nil {
				e.loop.Post(node.Brokers{URLs: brokers})
			} else if ctx.Err() == nil {
				e.log.Warn("cannot ask the cluster for its broker", "err", err)
			}
			ask.Reset(askBrokerAgain/2 + rand.N(askBrokerAgain))
		case <-ctx.Done():
			return nil
		}
	}
}
