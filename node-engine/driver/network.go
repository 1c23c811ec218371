package driver

import (
	"context"
	"errors"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Network attaches workloads to the overlay network. Its methods are idempotent. They fail with
// ErrUnavailable while the network is down, and with ErrFull if it has no addresses left.
type Network interface {
	Attach(ctx context.Context, a wire.Attach) (wire.Attached, error)
	Detach(ctx context.Context, k wire.Key) error
	// Drain keeps new flows away from the workload.
	Drain(ctx context.Context, k wire.Key) error
	// SetReady sets whether a workload that was attached as Checked gets new flows.
	SetReady(ctx context.Context, k wire.Key, ready bool) error
	Attachments(ctx context.Context) ([]wire.Attached, error)
	// Ready returns nil while workloads can be attached, otherwise an error.
	Ready() error
}

const (
	networkTimeout = 15 * time.Second // of one call of the network
	// drainTime is the time for the network to announce that a workload will be stopped. The
	// workload serves flows that begin meanwhile.
	drainTime = 300 * time.Millisecond
)

// syncNetwork is an order of the driver itself: it attaches the workload to the network, or detaches
// it if it does not exist.
type syncNetwork struct{ wire.Key }

func (o syncNetwork) Deliver(h wire.WorkloadOrderHandler) {
	x := h.(execution)
	x.syncNetwork(x.ctx, o.Key)
}

// drainExited is an order of the driver itself: it keeps new flows away from a workload that has
// exited, until its next attempt is attached.
type drainExited struct{ wire.Key }

func (o drainExited) Deliver(h wire.WorkloadOrderHandler) {
	if x := h.(execution); x.opt.Network.Ready() == nil {
		x.drain(x.ctx, o.Key)
	}
}

// ReadinessChanged reads the address and readiness of a workload again and reports them to the core, after its
// readiness changed. It does not block.
func (d *Driver) ReadinessChanged(k wire.Key) { d.Order(syncNetwork{k}) }

// namespaced returns the runtime if its workloads have network namespaces, otherwise nil.
func (d *Driver) namespaced() runtime.Namespaced {
	n, _ := d.opt.Runtime.(runtime.Namespaced)
	return n
}

// runnable returns the health checks of an image, unless the runtime cannot run their commands.
func (d *Driver) runnable(h *api.Health) *api.Health {
	if _, ok := d.opt.Runtime.(runtime.Executor); !ok {
		return nil
	}
	return h
}

// onNetwork reports whether workloads are attached to the network.
func (d *Driver) onNetwork() bool { return d.opt.Network != nil && d.namespaced() != nil }

// checkNetwork fails for a service that needs the overlay network if the node has none.
func (d *Driver) checkNetwork(m api.Microservice) error {
	if !m.NeedsNetwork() || d.onNetwork() {
		return nil
	}
	return runtime.Errorf(api.ReasonNoNetwork, "its SLA needs the overlay network, which this node does not have (a service that needs neither an address nor other services' names opts out with network: any): %w", api.ErrUnavailable)
}

// attach attaches a created workload to the network. It returns no address if the workload does not
// use the network. w is the workload as it was created, if the runtime returns that.
func (d *Driver) attach(ctx context.Context, k wire.Key) (at wire.Attached, w runtime.Workload, err error) {
	n := d.namespaced()
	if n == nil {
		return at, w, nil
	}
	path, w, err := n.Namespace(ctx, k)
	w.ImageHealth = d.runnable(w.ImageHealth)
	if err != nil || path == "" || d.opt.Network == nil {
		return at, w, err
	}
	if err := d.opt.Network.Ready(); err != nil {
		return at, w, &runtime.Error{Reason: api.ReasonNetworkDown, Err: err}
	}
	at, err = d.attachTo(ctx, path, w, false)
	return at, w, err
}

// connectEarly returns a function that attaches a workload to the network while its runtime creates it,
// because both take long. Start attaches it again, with the namespace of its process, and reports errors.
func (d *Driver) connectEarly() func(context.Context, string, runtime.Workload) {
	if !d.onNetwork() || d.opt.Network.Ready() != nil {
		return nil
	}
	return func(ctx context.Context, path string, w runtime.Workload) {
		w.ImageHealth = d.runnable(w.ImageHealth)
		if _, err := d.attachTo(ctx, path, w, true); err != nil {
			d.opt.Log.Debug("workload not attached to the network during its creation", "instance", w.Instance, "epoch", w.Epoch, "err", err)
		}
	}
}

// errNoChecks is the error of a netmanager that would send flows to a workload that is not ready.
var errNoChecks = errors.New("the netmanager of this node is of an earlier release, which does not support health checks: upgrade it")

func (d *Driver) attachTo(ctx context.Context, path string, w runtime.Workload, early bool) (at wire.Attached, err error) {
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	checked := w.Health().Gates()
	at, err = d.opt.Network.Attach(ctx, wire.Attach{
		Key: w.Key, NetNS: path, Ports: w.Spec.Ports(), BandwidthIn: w.Spec.BandwidthIn, BandwidthOut: w.Spec.BandwidthOut,
		Access: w.Spec.Access(), Addresses: w.Addresses, Checked: checked, Early: early,
	})
	if err == nil && at.Checked == checked {
		return at, nil
	}
	if err == nil {
		return wire.Attached{}, &runtime.Error{Reason: api.ReasonNetworkDown, Err: errNoChecks}
	}
	reason := api.ReasonStartFailed // for example, a port is taken
	switch {
	case errors.Is(err, api.ErrFull):
		reason = api.ReasonNetworkFull
	case errors.Is(err, api.ErrUnavailable), errors.Is(err, api.ErrTimeout), ctx.Err() != nil:
		reason = api.ReasonNetworkDown
	}
	return wire.Attached{}, runtime.Errorf(reason, "attach %s to the network: %w", w.Key, err)
}

// drain keeps new flows away from the workload, and reports whether that succeeded.
func (d *Driver) drain(ctx context.Context, k wire.Key) bool {
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	err := d.opt.Network.Drain(ctx, k)
	if err != nil {
		d.opt.Log.Warn("workload not drained, new flows may reach it while it ends", "instance", k.Instance, "epoch", k.Epoch, "err", err)
	}
	return err == nil
}

// detach detaches a workload from the network. If that fails, the next comparison finds it.
func (d *Driver) detach(ctx context.Context, k wire.Key) error {
	if !d.onNetwork() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	err := d.opt.Network.Detach(ctx, k)
	if err != nil {
		d.opt.Log.Warn("workload not detached from the network", "instance", k.Instance, "epoch", k.Epoch, "err", err)
	}
	return err
}

// compareNetwork sets the addresses of the workloads. It returns those that are not attached, and
// attachments without a workload.
func (d *Driver) compareNetwork(ctx context.Context, found []wire.WorkloadEvent) (differ []wire.Key) {
	if !d.onNetwork() || d.opt.Network.Ready() != nil {
		return nil // Recheck is called when the network is ready
	}
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	all, err := d.opt.Network.Attachments(ctx)
	if err != nil {
		d.opt.Log.Warn("attachments to the network not listed", "err", err)
		return nil
	}
	attached := make(map[wire.Key]wire.Attached, len(all))
	for _, a := range all {
		attached[a.Key] = a
	}
	for i, e := range found {
		a, ok := attached[e.Key]
		found[i].Address, found[i].Ready = a.Address, a.Ready && a.Error == ""
		if e.Phase == wire.WorkloadRunning && (!ok || a.Error != "") {
			differ = append(differ, e.Key)
		}
		delete(attached, e.Key)
	}
	for _, a := range all {
		if _, left := attached[a.Key]; left {
			differ = append(differ, a.Key)
		}
	}
	return differ
}

func (d *Driver) syncNetwork(ctx context.Context, k wire.Key) {
	call, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if _, _, err := d.namespaced().Namespace(call, k); errors.Is(err, api.ErrNotFound) {
		_ = d.detach(call, k)
		return
	}
	at, w, err := d.attach(call, k)
	if err != nil {
		d.opt.Log.Warn("workload not attached to the network", "instance", k.Instance, "epoch", k.Epoch, "err", err)
		return
	}
	if at.Address.IsValid() {
		d.deliver(ctx, node.Workload{WorkloadEvent: wire.WorkloadEvent{
			Key: k, Attempt: w.Attempt, Address: at.Address, Ready: at.Ready, ImageHealth: w.ImageHealth,
		}})
	}
}
