package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Network gives workloads their place on the overlay network. Everything may be
// repeated. A network that cannot do it now is ErrUnavailable, one that has no room
// for more ErrFull.
type Network interface {
	Attach(ctx context.Context, a wire.Attach) (wire.Attached, error)
	Detach(ctx context.Context, k wire.Key) error
	// Drain has new flows avoid the workload from now on.
	Drain(ctx context.Context, k wire.Key) error
	Attachments(ctx context.Context) ([]wire.Attached, error)
	// Ready is nil while workloads can be attached, and else says why not.
	Ready() error
}

const (
	netTime = 15 * time.Second // for one exchange with the network
	// drainTime is what the network gets to tell those who send to a workload that
	// will be stopped: what they begin meanwhile is still served.
	drainTime = 300 * time.Millisecond
)

// settle is an order of the driver itself: it attaches the workload to the network, or
// detaches it, as the runtime's state of it demands at that time.
type settle struct{ wire.Key }

// Deliver implements wire.WorkloadOrder.
func (o settle) Deliver(h wire.WorkloadOrderHandler) {
	x := h.(execution)
	x.settle(x.ctx, o.Key)
}

// avoid is an order of the driver itself: new flows avoid a workload that has exited
// until its next attempt is attached.
type avoid struct{ wire.Key }

// Deliver implements wire.WorkloadOrder.
func (o avoid) Deliver(h wire.WorkloadOrderHandler) {
	if x := h.(execution); x.opt.Network.Ready() == nil {
		x.avoid(x.ctx, o.Key)
	}
}

// Serves reports to the core that a workload is ready for flows. It does not block.
func (d *Driver) Serves(k wire.Key) { d.Order(settle{k}) }

// namespaced is the runtime, if its workloads are put on the network.
func (d *Driver) namespaced() runtime.Namespaced {
	n, _ := d.opt.Runtime.(runtime.Namespaced)
	if d.opt.Network == nil {
		return nil
	}
	return n
}

// hasNetworkFor refuses what needs the overlay where there is none.
func (d *Driver) hasNetworkFor(m api.Microservice) error {
	if !m.NeedsNetwork() || d.namespaced() != nil {
		return nil
	}
	return &runtime.Error{Reason: api.ReasonNoNetwork, Err: fmt.Errorf(
		"its SLA needs the overlay network, which this node does not have (a service that needs neither an address nor other services' names opts out with network: any): %w", api.ErrUnavailable)}
}

// attach puts a created workload on the network. The zero address says that the
// workload is not for it.
func (d *Driver) attach(ctx context.Context, k wire.Key) (at wire.Attached, err error) {
	n := d.namespaced()
	if n == nil {
		return at, nil
	}
	path, w, err := n.Namespace(ctx, k)
	if err != nil || path == "" {
		return at, err
	}
	if err := d.opt.Network.Ready(); err != nil {
		return at, &runtime.Error{Reason: api.ReasonNetworkDown, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, netTime)
	defer cancel()
	at, err = d.opt.Network.Attach(ctx, wire.Attach{
		Key: k, NetNS: path, Ports: w.Spec.Ports(), BandwidthIn: w.Spec.BandwidthIn, BandwidthOut: w.Spec.BandwidthOut,
		Access: w.Spec.Access(), Addresses: w.Addresses,
	})
	if err == nil {
		return at, nil
	}
	reason := api.ReasonStartFailed // a port is taken, say: its own affair
	switch {
	case errors.Is(err, api.ErrFull):
		reason = api.ReasonNetworkFull
	case errors.Is(err, api.ErrUnavailable), errors.Is(err, api.ErrTimeout), ctx.Err() != nil:
		reason = api.ReasonNetworkDown
	}
	return wire.Attached{}, &runtime.Error{Reason: reason, Err: fmt.Errorf("attach %s to the network: %w", k, err)}
}

// drain has new flows go elsewhere before a workload is asked to end.
func (d *Driver) drain(ctx context.Context, o wire.StopWorkload) {
	if d.namespaced() == nil || o.Grace <= 0 || d.opt.Network.Ready() != nil {
		return
	}
	if d.avoid(ctx, o.Key) {
		sleep(ctx, drainTime)
	}
}

func (d *Driver) avoid(ctx context.Context, k wire.Key) bool {
	ctx, cancel := context.WithTimeout(ctx, netTime)
	defer cancel()
	err := d.opt.Network.Drain(ctx, k)
	if err != nil {
		d.opt.Log.Warn("new flows may reach a workload that ends", "instance", k.Instance, "epoch", k.Epoch, "err", err)
	}
	return err == nil
}

// detach takes what is gone, or has ended, off the network. If that fails, the next
// comparison finds it.
func (d *Driver) detach(ctx context.Context, k wire.Key) error {
	if d.namespaced() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, netTime)
	defer cancel()
	err := d.opt.Network.Detach(ctx, k)
	if err != nil {
		d.opt.Log.Warn("workload is still on the network", "instance", k.Instance, "epoch", k.Epoch, "err", err)
	}
	return err
}

// compare gives the workloads their addresses, and says which of them lack one and
// what is attached without a workload.
func (d *Driver) compare(ctx context.Context, found []wire.WorkloadEvent) (unsettled []wire.Key) {
	if d.namespaced() == nil || d.opt.Network.Ready() != nil {
		return nil // when it is ready we are asked again
	}
	ctx, cancel := context.WithTimeout(ctx, netTime)
	defer cancel()
	all, err := d.opt.Network.Attachments(ctx)
	if err != nil {
		d.opt.Log.Warn("the network's attachments are not known", "err", err)
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
			unsettled = append(unsettled, e.Key)
		}
		delete(attached, e.Key)
	}
	for _, a := range all {
		if _, stray := attached[a.Key]; stray {
			unsettled = append(unsettled, a.Key)
		}
	}
	return unsettled
}

func (d *Driver) settle(ctx context.Context, k wire.Key) {
	n := d.namespaced()
	ask, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	_, w, err := n.Namespace(ask, k)
	if errors.Is(err, api.ErrNotFound) {
		d.detach(ask, k)
		return
	}
	var at wire.Attached
	if err == nil {
		at, err = d.attach(ask, k)
	}
	if err != nil {
		d.opt.Log.Warn("workload is not on the network", "instance", k.Instance, "epoch", k.Epoch, "err", err)
		return
	}
	if at.Address.IsValid() {
		d.deliver(ctx, node.Workload{WorkloadEvent: wire.WorkloadEvent{Key: k, Attempt: w.Attempt, Address: at.Address, Ready: at.Ready}})
	}
}
