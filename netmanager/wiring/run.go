package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/host"
	"github.com/treeline-edge/treeline/netmanager/host/credentials"
	"github.com/treeline-edge/treeline/netmanager/host/kernel"
	"github.com/treeline-edge/treeline/netmanager/host/machine"
	"github.com/treeline-edge/treeline/netmanager/host/workloads"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/packetqueue"
	"github.com/treeline-edge/treeline/netmanager/resolver"
	"github.com/treeline-edge/treeline/netmanager/socket"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// Run runs the netmanager until ctx ends. The workloads' network stays in the kernel, works
// without a netmanager, and is taken over by the next start.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	data, err := daemon.OpenData(cfg.Data)
	if err != nil {
		return err
	}
	defer data.Close()
	if cfg.Remove {
		return remove(cfg, data, log)
	}
	key, err := credentials.OverlayKey(data)
	if err != nil {
		return err
	}
	st, err := openStore(cfg)
	if err != nil {
		return err
	}
	defer st.Close()
	creds, err := credentials.Await(ctx, cfg.Credentials, log)
	if err != nil {
		return err
	}
	log = log.With("node", creds.ID)
	public := api.PeerKey(key.PublicKey().Bytes())
	self, err := creds.Self(public)
	if err != nil {
		return err
	}
	verifier := creds.Verifier()

	meter, stream := &host.Meter{}, host.NewStream(log)
	located := make(chan struct{}, 1) // requests that the machine's addresses are read again
	core, err := openCore(ctx, cfg, st, log, func(s loop.Sample, leased bool) {
		meter.Observe(s)
		if stream.SetLeased(leased) { // addresses in the overlay's ranges are not the machine's
			select {
			case located <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return err
	}
	listen, err := cfg.listen()
	if err != nil {
		return err
	}
	transport, err := host.NewTransport(host.TransportOptions{
		Core: core, Credentials: creds, Self: self, Verifier: verifier, Key: key, Data: data, Listen: listen,
		Prefix: cfg.Prefix, Relay: cfg.Relay, Log: log,
	})
	if err != nil {
		return err
	}
	devices, err := kernel.NewDevices(cfg.Prefix, data, transport.UnencryptedAddress, log)
	if err != nil {
		return err
	}
	defer devices.Close()
	packets, err := openPackets(cfg, core, devices)
	if err != nil {
		return err
	}
	names, err := newResolver(cfg, core, devices, log)
	if err != nil {
		return err
	}
	planes := kernel.NewPlanes(cfg.Plane, cfg.Prefix, data, log)
	executor := kernel.NewExecutor(kernel.Options{
		Core: core, Open: planes.Open, Devices: devices, Packets: packets, Names: names, Peers: transport,
		Used: meter.Usage, Synced: stream.SetKernel, Log: log,
	})
	events := host.WorkloadEvents{Core: core, Stream: stream, Log: log}
	server := &host.Server{
		Core: core, Stream: stream, Peer: host.NewPeerCheck(verifier, log), Transport: transport, Devices: devices,
		Executor: executor, Planes: planes, Exits: workloads.NewExits(events.Exited), Listening: workloads.NewListening(events.Serves, log),
		Sampler: workloads.NewSampler(core.Attachments, devices.To4, core.Post, log),
		Meter:   meter, Credentials: creds, Key: public, VXLAN: cfg.VXLAN, Log: log,
	}
	ln, err := socket.Listen(cfg.Socket)
	if err != nil {
		return err
	}
	return daemon.RunAll(ctx,
		daemon.Part{Name: "core", Run: func(ctx context.Context) error { return core.Run(ctx, dispatch(stream, transport, executor)) }},
		daemon.Part{Name: "node", Run: func(ctx context.Context) error { return serve(ctx, cfg, server, ln, located) }},
		daemon.Part{Name: "tunnel", Run: transport.Run},
		daemon.Part{Name: "packets", Run: packets.Run},
		daemon.Part{Name: "names", Run: func(ctx context.Context) error {
			return names.Run(ctx, netip.AddrPortFrom(wire.ResolverAddr, 53))
		}},
		daemon.Part{Name: "status", Run: func(ctx context.Context) error { return server.ServeStatus(ctx, cfg.ListenStatus, cfg.Data) }},
		daemon.Part{Name: "memory", Run: daemon.TrimMemory},
	)
}

// openStore opens the store, which a running netmanager locks.
func openStore(cfg Config) (store.Store, error) {
	return embedded.Open(filepath.Join(cfg.Data, "net.db"))
}

func openCore(ctx context.Context, cfg Config, st store.Store, log *slog.Logger, observe func(loop.Sample, bool)) (*host.Core, error) {
	docs, err := store.Load(ctx, st)
	if err != nil {
		return nil, err
	}
	closed, err := prefixes(cfg.Closed)
	if err != nil {
		return nil, err
	}
	open, err := prefixes(cfg.Open)
	if err != nil {
		return nil, err
	}
	core := overlay.New(overlay.Config{Node: plane.Node{
		Prefix: cfg.Prefix, Tunnel: host.TunnelDevice(cfg.Prefix), Queue: queueDevice(cfg.Prefix), VXLAN: cfg.VXLAN, Closed: closed, Open: open,
	}})
	if err := core.Restore(docs); err != nil {
		return nil, fmt.Errorf("restore the network: %w", err)
	}
	return host.NewCore(core, st, log, observe), nil
}

func queueDevice(prefix string) string { return prefix + "hold" }

// queueMTU is the largest MTU of instances' devices, so that every packet fits into the packet
// queue.
const queueMTU = 1500

func openPackets(cfg Config, core *host.Core, devices *kernel.Devices) (*packetqueue.Queue, error) {
	dev, err := tun.Open(queueDevice(cfg.Prefix), queueMTU)
	if err != nil {
		return nil, err
	}
	return packetqueue.New(dev, packetqueue.Config{
		Local: devices.Local, To4: devices.To4,
		Miss: func(local, remote netip.Addr) { core.Post(overlay.Miss{Local: local, Remote: remote}) },
	}), nil
}

func newResolver(cfg Config, core *host.Core, devices *kernel.Devices, log *slog.Logger) (*resolver.Resolver, error) {
	var servers []netip.AddrPort
	for _, s := range cfg.Resolvers {
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			return nil, err
		}
		servers = append(servers, a)
	}
	return resolver.New(resolver.Config{Overlay: host.Names{Core: core, IsLocal: devices.Local}, Servers: servers, Log: log}), nil
}

// dispatch returns the function that passes the core's messages to its adapters. It runs on the core's
// goroutine and does not block. Messages to the tunnel do not wait for the kernel, so that after a start
// sessions begin while the kernel is still being synced.
func dispatch(stream *host.Stream, transport *host.Transport, executor *kernel.Executor) func([]wire.Envelope) {
	return func(all []wire.Envelope) {
		for _, e := range all {
			switch m := e.Msg.(type) {
			case wire.NetUp:
				stream.Send(m)
			case overlay.TunnelSelf:
				transport.SetLease(m.NetLease)
			case overlay.TunnelPeer:
				transport.SetPeer(m.Peer)
			case overlay.TunnelDrop:
				transport.DropPeer(m.Key)
			case overlay.TunnelMeasure:
				transport.Measure(m.Key)
			case overlay.TunnelCoord:
				transport.SetCoord(m.Coordinate)
			case overlay.TunnelAddresses:
				transport.SetLocal(m.Addresses)
			case overlay.TunnelNotice:
				transport.Send(m.Key, m.Notice, true)
			case overlay.TunnelSend:
				transport.Send(m.Key, m.Message, m.Connect)
			case plane.Change, overlay.Ask, overlay.Release, overlay.Hold, overlay.Refuse, overlay.Answered, overlay.Count, overlay.TunnelTerms, overlay.TunnelNoticeAck:
				executor.Order(m)
			default:
				panic(fmt.Sprintf("wiring: message %T of the core has no handler", m))
			}
		}
	}
}

// serve starts the core, keeps the kernel in sync with it, and serves the node engine.
func serve(ctx context.Context, cfg Config, s *host.Server, ln net.Listener, located <-chan struct{}) error {
	watch, err := machine.NewWatch(s.Log) // before the first Locate, so that no change is missed
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := s.Core.Start(ctx); err != nil {
		return err
	}
	if err := s.Core.Read(ctx, func(o overlay.View) {
		for _, a := range o.Unready() { // of an earlier start
			s.Listening.Watch(a)
		}
		for _, a := range o.Attachments() {
			s.Exits.Watch(a)
		}
	}); err != nil {
		return err
	}
	locate := func(networks bool) {
		if s.Transport.Locate(networks) {
			s.Executor.Resync()
		}
	}
	locate(false)
	s.Log.Info("netmanager started", "cluster", s.Credentials.Cluster, "key", s.Key, "listen", s.Transport.Local())
	daemon.NotifyReady(s.Log)
	return daemon.RunAll(ctx,
		daemon.Part{Name: "kernel", Run: s.Executor.Run},
		daemon.Part{Name: "listening", Run: s.Listening.Run},
		daemon.Part{Name: "exits", Run: s.Exits.Run},
		daemon.Part{Name: "sampling", Run: s.Sampler.Run},
		daemon.Part{Name: "socket", Run: func(ctx context.Context) error { return daemon.Serve(ctx, ln, socket.Handler(s), nil) }},
		daemon.Part{Name: "addresses", Run: func(ctx context.Context) error { return watch.Run(ctx, located, locate) }},
		daemon.Part{Name: "certificate", Run: func(ctx context.Context) error {
			credentials.Watch(ctx, cfg.Credentials, s.Credentials, s.Log, func(c credentials.Credentials) {
				s.Peer.Renewed(c.Pair.Chain)
				self, err := c.Self(s.Key)
				if err != nil {
					s.Log.Error("use the renewed certificate failed", "err", err)
					return
				}
				s.Log.Info("certificate renewed", "end", c.Pair.Chain[0].NotAfter)
				s.Transport.SetIdentity(self, c.Pair)
			})
			return nil
		}},
	)
}

func remove(cfg Config, data *os.Root, log *slog.Logger) error {
	st, err := openStore(cfg) // fails while a netmanager runs
	if err != nil {
		return err
	}
	if err := st.Close(); err != nil {
		return err
	}
	err = kernel.RemovePlanes(cfg.Prefix)
	devices, e := kernel.NewDevices(cfg.Prefix, data, func() netip.Addr { return netip.Addr{} }, log)
	if e != nil {
		return errors.Join(err, e)
	}
	defer devices.Close()
	err = errors.Join(err, devices.Remove(), tun.Remove(host.TunnelDevice(cfg.Prefix)), tun.Remove(queueDevice(cfg.Prefix)))
	if err == nil {
		log.Info("network removed", "prefix", cfg.Prefix)
	}
	return err
}
