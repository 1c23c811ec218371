package wiring

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/hostports"
	"github.com/treeline-edge/treeline/netmanager/capture"
	"github.com/treeline-edge/treeline/netmanager/link"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/socket"
)

// The manager is the socket's Overlay: the core decides and remembers, and an
// answer waits until the kernel has followed.

// Attach is socket.Overlay's.
func (m *manager) Attach(ctx context.Context, a api.Attach) (api.Attached, error) {
	began := time.Now()
	var at api.Attached
	own, err := ownNetwork(a.NetNS)
	if err == nil && own {
		err = fmt.Errorf("%s is the machine's own network: %w", a.NetNS, api.ErrInvalid)
	}
	if err == nil {
		err = m.mayPublish(ctx, a)
	}
	if err != nil {
		return at, fmt.Errorf("attach %s: %w", a.Key, err)
	}
	err = m.loop.Do(ctx, overlay.Attach{Attach: a}, func() {
		ok := false
		if at, ok = m.core.Attached(a.Key); ok {
			m.links.want(a, at) // before its orders go out
		}
	})
	if err != nil {
		return at, err
	}
	c := connect{at.Address, make(chan error, 1)}
	m.orders.order(c)
	select {
	case err = <-c.done:
	case <-ctx.Done():
		err = fmt.Errorf("wait for the kernel: %w: %w", api.ErrTimeout, ctx.Err())
	}
	if err != nil {
		return at, fmt.Errorf("attach %s: %w", a.Key, err)
	}
	if !at.Ready {
		m.listening.watch(a)
	}
	m.exits.watch(a)
	m.meter.attached(time.Since(began))
	m.log.Info("attached", "instance", a.Instance, "epoch", a.Epoch, "address", at.Address)
	return at, nil
}

// mayPublish refuses ports on which the machine itself is to be reached now: its
// cluster looks at them too, and seldom. What is attached keeps its ports.
func (m *manager) mayPublish(ctx context.Context, a api.Attach) error {
	there := false
	if len(a.Ports) == 0 {
		return nil
	}
	if err := m.loop.Read(ctx, func() { _, there = m.core.Attached(a.Key) }); err != nil || there {
		return err
	}
	own, err := hostports.Own()
	if err != nil {
		return err
	}
	own = append(own, api.HostPort{Port: m.tunnel.engine.Local().Port(), Protocol: "udp"}, api.HostPort{Port: m.cfg.VXLAN, Protocol: "udp"})
	for _, p := range a.Ports {
		if slices.Contains(own, api.HostPort{Port: p.Host, Protocol: p.Protocol}) {
			return fmt.Errorf("port %d/%s is the node's own, which listens there: publish another one: %w", p.Host, p.Protocol, api.ErrConflict)
		}
	}
	return nil
}

// followed returns when the kernel is what the core wanted before.
func (m *manager) followed(ctx context.Context) error {
	if err := m.orders.wait(ctx); err != nil {
		return fmt.Errorf("wait for the kernel: %w: %w", api.ErrTimeout, err)
	}
	return nil
}

// serves has flows go to a workload that listens, and tells the node engine.
func (m *manager) serves(ctx context.Context, a api.Attach) {
	err := m.learn(ctx, overlay.Ready{Key: a.Key, NetNS: a.NetNS})
	if err != nil {
		if ctx.Err() == nil {
			m.log.Error("workload gets no flows", "instance", a.Instance, "epoch", a.Epoch, "err", err)
		}
		return
	}
	m.uplink.serves(a.Key)
}

// exited has flows avoid a workload whose process has ended: the node engine will say
// so, too, and later.
func (m *manager) exited(ctx context.Context, a api.Attach) {
	if err := m.learn(ctx, overlay.Exited{Key: a.Key, NetNS: a.NetNS}); err != nil {
		if ctx.Err() == nil {
			m.log.Warn("flows are still sent to a workload that has exited", "instance", a.Instance, "epoch", a.Epoch, "err", err)
		}
		return
	}
	m.log.Debug("workload has exited", "instance", a.Instance, "epoch", a.Epoch)
}

// Detach is socket.Overlay's.
func (m *manager) Detach(ctx context.Context, k api.Key) error {
	m.listening.forget(k)
	m.exits.forget(k)
	there := false
	if err := m.loop.Read(ctx, func() { _, there = m.core.Attached(k) }); err != nil || !there {
		return err
	}
	if err := m.loop.Do(ctx, overlay.Detach{Key: k}, func() { m.links.unwant(k) }); err != nil {
		return err
	}
	m.log.Info("detached", "instance", k.Instance, "epoch", k.Epoch)
	return m.followed(ctx)
}

// Drain is socket.Overlay's. It returns when the kernel and the peers, as far as they
// answer, send no new flows to the workload. So it does where that cannot be saved, and
// says that it is not.
func (m *manager) Drain(ctx context.Context, k api.Key) error {
	saved := m.loop.Do(ctx, overlay.Drain{Key: k}, nil)
	if saved != nil {
		if !unsaved(saved) {
			return saved
		}
		if err := m.learn(ctx, overlay.Drain{Key: k}); err != nil {
			return err
		}
	}
	if err := m.followed(ctx); err != nil {
		return err
	}
	return cmp.Or(m.heeded(ctx), saved)
}

// How long a drain waits for peers to confirm that they avoid the workload, and how
// often it looks.
const (
	heedWait = time.Second
	heedLook = 10 * time.Millisecond
)

// heeded returns when all peers that can be told have confirmed what they were
// told, or soon: who does not answer may be dead.
func (m *manager) heeded(ctx context.Context) error {
	end := time.Now().Add(heedWait)
	for {
		ok := false
		if err := m.loop.Read(ctx, func() { ok = m.core.Heeded() }); err != nil || ok || !time.Now().Before(end) {
			return err
		}
		select {
		case <-time.After(heedLook):
		case <-ctx.Done():
			return nil
		}
	}
}

// Attachments is socket.Overlay's.
func (m *manager) Attachments(ctx context.Context) (all []api.Attached, err error) {
	err = m.loop.Read(ctx, func() { all = m.core.List() })
	for i, a := range all {
		if why := m.links.missing(a.Address); why != nil {
			all[i].Error = why.Error()
		}
	}
	return all, err
}

// attached is what is attached, with where it lives.
func (m *manager) attached(ctx context.Context) (all []api.Attach, err error) {
	err = m.loop.Read(ctx, func() { all = m.core.Attachments() })
	return all, err
}

// Status is socket.Overlay's.
func (m *manager) Status(ctx context.Context) (s api.NetStatus, err error) {
	if err := m.loop.Read(ctx, func() { s = m.core.Status() }); err != nil {
		return s, err
	}
	if r := m.uplink.isReady(); !r.Ready {
		s.Ready, s.Error = false, r.Error
	}
	s.Node, s.Cluster, s.Key, s.Plane, s.Listen = m.creds.ID, m.creds.Cluster, m.key, m.chooser.name(), m.tunnel.engine.Local()
	return s, nil
}

// Routes is socket.Overlay's.
func (m *manager) Routes(ctx context.Context) (all []api.RouteStatus, err error) {
	m.sampling.refresh(ctx)
	err = m.loop.Read(ctx, func() { all = m.core.Routes() })
	return all, err
}

// How long a trace waits for what the flow that it follows would wait for, and how
// often it looks.
const (
	traceWait = 2 * time.Second
	traceLook = 50 * time.Millisecond
)

// Trace is socket.Overlay's. It asks the cluster what the flow would ask.
func (m *manager) Trace(ctx context.Context, from api.InstanceID, to string) (t api.NetTrace, err error) {
	m.sampling.refresh(ctx)
	var ask overlay.Input
	var refused error
	look := func() { t, ask, refused = m.core.Trace(from, to) }
	if err := m.loop.Read(ctx, look); err != nil {
		return t, err
	}
	for end := time.Now().Add(traceWait); refused == nil && ask != nil && time.Now().Before(end); {
		if err := m.learn(ctx, ask); err != nil {
			return t, err
		}
		select {
		case <-time.After(traceLook):
		case <-ctx.Done():
			return t, ctx.Err()
		}
		if err := m.loop.Read(ctx, look); err != nil {
			return t, err
		}
	}
	return t, refused
}

// Capture is socket.Overlay's.
func (m *manager) Capture(ctx context.Context, what socket.Capture, w io.Writer) error {
	var newest api.Attach // of several placements
	var mac net.HardwareAddr
	if err := m.loop.Read(ctx, func() {
		for _, a := range m.core.Attachments() {
			if a.Instance == what.Instance && (mac == nil || a.Epoch > newest.Epoch) {
				at, _ := m.core.Attached(a.Key)
				newest, mac = a, link.MAC(at.Address)
			}
		}
	}); err != nil {
		return err
	}
	if mac == nil {
		return fmt.Errorf("instance %s is not on this node's network: %w", what.Instance, api.ErrNotFound)
	}
	m.log.Info("packets are captured", "instance", what.Instance, "for", what.For, "bytes", what.Bytes)
	return capture.Run(ctx, newest.NetNS, mac, w, capture.Limits{For: what.For, Bytes: what.Bytes})
}

// Events is socket.Overlay's. The cluster is away as soon as nobody reads.
func (m *manager) Events(ctx context.Context, write func(api.NetEvent) error) error {
	return m.uplink.read(ctx, write, func() { m.post(overlay.Link{Up: false}) })
}

// Down is socket.Overlay's.
func (m *manager) Down(ctx context.Context, d api.NetDown) error {
	m.checker.down(&d)
	return m.learn(ctx, overlay.Down{NetDown: d})
}

// Link is socket.Overlay's.
func (m *manager) Link(ctx context.Context, up bool) error {
	if up { // the relay lives with the cluster, which may have been restarted
		m.tunnel.rebind()
	}
	if !m.repost() { // an earlier link's end must not come after
		return m.behind()
	}
	return m.learn(ctx, overlay.Link{Up: up})
}
