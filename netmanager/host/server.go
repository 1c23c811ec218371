package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/hostports"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/capture"
	"github.com/treeline-edge/treeline/netmanager/host/credentials"
	"github.com/treeline-edge/treeline/netmanager/host/kernel"
	"github.com/treeline-edge/treeline/netmanager/host/workloads"
	"github.com/treeline-edge/treeline/netmanager/link"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/socket"
)

// Server serves the node engine and the operator. It implements socket.Overlay: the core decides,
// and an answer is sent when the kernel has applied the decision.
type Server struct {
	Core        *Core
	Stream      *Stream
	Peer        *PeerCheck
	Transport   *Transport
	Devices     *kernel.Devices
	Executor    *kernel.Executor
	Planes      *kernel.Planes
	Exits       *workloads.Watcher // calls Exited
	Listening   *workloads.Watcher // calls Serves
	Sampler     *workloads.Sampler
	Meter       *Meter
	Credentials credentials.Credentials // as of the start; the node's name does not change
	Key         api.PeerKey
	VXLAN       uint16 // UDP port
	Log         *slog.Logger
}

var _ socket.Overlay = (*Server)(nil)

// Attach implements socket.Overlay.
func (s *Server) Attach(ctx context.Context, a wire.Attach) (wire.Attached, error) {
	began := time.Now()
	var at wire.Attached
	err := checkNetNS(a.NetNS)
	if err == nil {
		err = s.checkPorts(ctx, a)
	}
	if err != nil {
		return at, fmt.Errorf("attach %s: %w", a.Key, err)
	}
	err = s.Core.Do(ctx, overlay.Attach{Attach: a}, func(o overlay.View) {
		ok := false
		if at, ok = o.Attached(a.Key); ok {
			s.Devices.Want(a, at) // before the core's orders are sent
		}
	})
	if err != nil {
		return at, err
	}
	if err := s.Executor.Connect(ctx, at.Address); err != nil {
		return at, fmt.Errorf("attach %s: %w", a.Key, err)
	}
	if !at.Ready && !a.Checked && !a.Early {
		s.Listening.Watch(a)
	}
	s.Exits.Watch(a)
	s.Meter.Attached(time.Since(began))
	s.Log.Info("attached", "instance", a.Instance, "epoch", a.Epoch, "address", at.Address)
	return at, nil
}

// checkNetNS refuses a network namespace that is missing or is the machine's own.
func checkNetNS(path string) error {
	a, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("network namespace %s does not exist: %w", path, api.ErrGone)
	case err != nil:
		return fmt.Errorf("stat network namespace %s: %w: %w", path, api.ErrInvalid, err)
	}
	b, err := os.Stat("/proc/self/ns/net")
	if err == nil && os.SameFile(a, b) {
		err = fmt.Errorf("%s is the machine's own network namespace: %w", path, api.ErrInvalid)
	}
	return err
}

// checkPorts refuses host ports on which the machine itself listens now. The cluster checks them
// too, but less often. A workload that is attached already keeps its ports.
func (s *Server) checkPorts(ctx context.Context, a wire.Attach) error {
	attached := false
	if len(a.Ports) == 0 {
		return nil
	}
	if err := s.Core.Read(ctx, func(o overlay.View) { _, attached = o.Attached(a.Key) }); err != nil || attached {
		return err
	}
	own, err := hostports.Own()
	if err != nil {
		return err
	}
	own = append(own, api.HostPort{Port: s.Transport.Local().Port(), Protocol: "udp"}, api.HostPort{Port: s.VXLAN, Protocol: "udp"})
	for _, p := range a.Ports {
		if slices.Contains(own, api.HostPort{Port: p.Host, Protocol: p.Protocol}) {
			return fmt.Errorf("port %d/%s is in use by the machine itself: publish another one: %w", p.Host, p.Protocol, api.ErrConflict)
		}
	}
	return nil
}

// followed waits until the executor has carried out the core's earlier orders.
func (s *Server) followed(ctx context.Context) error {
	if err := s.Executor.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the kernel: %w: %w", api.ErrTimeout, err)
	}
	return nil
}

// Detach implements socket.Overlay.
func (s *Server) Detach(ctx context.Context, k wire.Key) error {
	s.Listening.Remove(k)
	s.Exits.Remove(k)
	attached := false
	if err := s.Core.Read(ctx, func(o overlay.View) { _, attached = o.Attached(k) }); err != nil || !attached {
		return err
	}
	if err := s.Core.Do(ctx, overlay.Detach{Key: k}, func(overlay.View) { s.Devices.Unwant(k) }); err != nil {
		return err
	}
	s.Log.Info("detached", "instance", k.Instance, "epoch", k.Epoch)
	return s.followed(ctx)
}

// Drain implements socket.Overlay. It returns when the kernel and the peers that answer send no new
// flows to the workload. If the drain cannot be saved it still takes effect, and Drain returns the
// error of the save.
func (s *Server) Drain(ctx context.Context, k wire.Key) error {
	saved := s.Core.Do(ctx, overlay.Drain{Key: k}, nil)
	if saved != nil {
		if !unsaved(saved) {
			return saved
		}
		if err := s.Core.Learn(ctx, overlay.Drain{Key: k}); err != nil {
			return err
		}
	}
	if err := s.followed(ctx); err != nil {
		return err
	}
	return cmp.Or(s.peersConfirmed(ctx), saved)
}

// SetReady implements socket.Overlay. It returns when the kernel has the new routes.
func (s *Server) SetReady(ctx context.Context, k wire.Key, ready bool) error {
	if err := s.Core.Learn(ctx, overlay.SetReady{Key: k, Ready: ready}); err != nil {
		return err
	}
	return s.followed(ctx)
}

// How long a drain waits for peers to confirm it, and how often it checks.
const (
	confirmTimeout  = time.Second
	confirmInterval = 10 * time.Millisecond
)

// peersConfirmed returns when all peers that can be reached have acknowledged their notices, or
// after confirmTimeout, because a peer that does not answer may be dead.
func (s *Server) peersConfirmed(ctx context.Context) error {
	end := time.Now().Add(confirmTimeout)
	for {
		ok := false
		if err := s.Core.Read(ctx, func(o overlay.View) { ok = o.NoticesAcked() }); err != nil || ok || !time.Now().Before(end) {
			return err
		}
		select {
		case <-time.After(confirmInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// Attachments implements socket.Overlay.
func (s *Server) Attachments(ctx context.Context) (all []wire.Attached, err error) {
	err = s.Core.Read(ctx, func(o overlay.View) { all = o.List() })
	for i, a := range all {
		if err := s.Devices.Missing(a.Address); err != nil {
			all[i].Error = err.Error()
		}
	}
	return all, err
}

// View implements socket.Overlay.
func (s *Server) View(ctx context.Context, path string) (any, error) {
	switch path {
	case netsock.Status:
		return s.Status(ctx)
	case netsock.Routes:
		return s.Routes(ctx)
	case netsock.Peers:
		return s.Peers(ctx)
	}
	return nil, fmt.Errorf("view %s: %w", path, api.ErrNotFound)
}

// Status returns the state of the netmanager.
func (s *Server) Status(ctx context.Context) (st api.NetStatus, err error) {
	if err := s.Core.Read(ctx, func(o overlay.View) { st = o.Status() }); err != nil {
		return st, err
	}
	if r := s.Stream.Ready(); !r.Ready {
		st.Ready, st.Error = false, r.Error
	}
	st.Node, st.Cluster, st.Key, st.Plane, st.Listen = s.Credentials.ID, s.Credentials.Cluster, s.Key, s.Planes.Name(), s.Transport.Local()
	return st, nil
}

// Routes returns the state of the node's routes and of its refused requests for routes.
func (s *Server) Routes(ctx context.Context) (all []api.RouteStatus, err error) {
	s.Sampler.Refresh(ctx)
	err = s.Core.Read(ctx, func(o overlay.View) { all = o.Routes() })
	return all, err
}

// Peers returns the state of the node's peers.
func (s *Server) Peers(ctx context.Context) (all []api.PeerStatus, err error) {
	if err := s.Core.Read(ctx, func(o overlay.View) { all = o.Peers() }); err != nil {
		return nil, err
	}
	s.Transport.Describe(all)
	return all, nil
}

// How long a trace waits for the answers that its flow would wait for, and how often it
// checks.
const (
	traceTimeout  = 2 * time.Second
	traceInterval = 50 * time.Millisecond
)

// Trace implements socket.Overlay. It sends the requests to the cluster that the flow would cause.
func (s *Server) Trace(ctx context.Context, from api.InstanceID, to string) (t api.NetTrace, err error) {
	s.Sampler.Refresh(ctx)
	var ask overlay.Input
	var refused error
	look := func(o overlay.View) { t, ask, refused = o.Trace(from, to) }
	if err := s.Core.Read(ctx, look); err != nil {
		return t, err
	}
	for end := time.Now().Add(traceTimeout); refused == nil && ask != nil && time.Now().Before(end); {
		if err := s.Core.Learn(ctx, ask); err != nil {
			return t, err
		}
		select {
		case <-time.After(traceInterval):
		case <-ctx.Done():
			return t, ctx.Err()
		}
		if err := s.Core.Read(ctx, look); err != nil {
			return t, err
		}
	}
	return t, refused
}

// Capture implements socket.Overlay.
func (s *Server) Capture(ctx context.Context, what socket.Capture, w io.Writer) error {
	var newest wire.Attach // of several placements
	var mac net.HardwareAddr
	if err := s.Core.Read(ctx, func(o overlay.View) {
		for _, a := range o.Attachments() {
			if a.Instance == what.Instance && (mac == nil || a.Epoch > newest.Epoch) {
				at, _ := o.Attached(a.Key)
				newest, mac = a, link.MAC(at.Address)
			}
		}
	}); err != nil {
		return err
	}
	if mac == nil {
		return fmt.Errorf("instance %s is not on this node's network: %w", what.Instance, api.ErrNotFound)
	}
	s.Log.Info("packet capture started", "instance", what.Instance, "for", what.For, "bytes", what.Bytes)
	return capture.Run(ctx, newest.NetNS, mac, w, capture.Limits{For: what.For, Bytes: what.Bytes})
}

// Events implements socket.Overlay. When its reader ends, the link to the cluster is down.
func (s *Server) Events(ctx context.Context, write func(wire.NetEvent) error) error {
	return s.Stream.Read(ctx, write, func() { s.Core.Post(overlay.Link{Up: false}) })
}

// Down implements socket.Overlay.
func (s *Server) Down(ctx context.Context, d wire.NetDown) error {
	s.Peer.Clean(&d)
	return s.Core.Learn(ctx, overlay.Down{NetDown: d})
}

// Link implements socket.Overlay.
func (s *Server) Link(ctx context.Context, up bool) error {
	if up { // the relay runs in the cluster, which may have restarted
		s.Transport.Rebind()
	}
	return s.Core.LearnInOrder(ctx, overlay.Link{Up: up})
}

// WorkloadEvents passes the events of the workloads' watchers to the core.
type WorkloadEvents struct {
	Core   *Core
	Stream *Stream
	Log    *slog.Logger
}

// Serves lets flows go to a workload that listens, and informs the node engine.
func (e WorkloadEvents) Serves(ctx context.Context, a wire.Attach) {
	switch err := e.Core.Learn(ctx, overlay.Ready{Key: a.Key, NetNS: a.NetNS}); {
	case err == nil:
		e.Stream.Serves(a.Key)
	case ctx.Err() == nil:
		e.Log.Error("workload listens but gets no flows", "instance", a.Instance, "epoch", a.Epoch, "err", err)
	}
}

// Exited keeps flows away from a workload whose process has ended. The node engine reports the same
// later.
func (e WorkloadEvents) Exited(ctx context.Context, a wire.Attach) {
	switch err := e.Core.Learn(ctx, overlay.Exited{Key: a.Key, NetNS: a.NetNS}); {
	case err == nil:
		e.Log.Debug("workload exited", "instance", a.Instance, "epoch", a.Epoch)
	case ctx.Err() == nil:
		e.Log.Warn("workload exited but still gets flows", "instance", a.Instance, "epoch", a.Epoch, "err", err)
	}
}

// ServeStatus serves health and metrics at listen on this machine until ctx ends.
func (s *Server) ServeStatus(ctx context.Context, listen, data string) error {
	var health daemon.Health
	health.Require("store", func(context.Context) error { return s.Core.loop.Stalled() })
	health.Require("core", func(ctx context.Context) error { return s.Core.Read(ctx, func(overlay.View) {}) })
	health.Watch("network", func(context.Context) error {
		if r := s.Stream.Ready(); !r.Ready {
			return errors.New(r.Error)
		}
		return nil
	})
	return daemon.ServeStatus(ctx, listen, data, health.Handler(http.HandlerFunc(s.Metrics)))
}
