// Package mover copies volumes between nodes, for moves that the cluster's core has decided. The nodes dial out a stream
// each, and the mover relays between them: nodes need not reach one another.
//
//	m := mover.New(mover.Options{Nodes: nodes, Deliver: deliver})
//	g.Go(func() error { return m.Run(ctx) })
//	m.Set(tasks) // from the loop's send function
package mover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/treecopy"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Nodes connects the mover to nodes.
type Nodes interface {
	// Connect returns a stream to a node in both directions. Errors: those of the node.
	Connect(ctx context.Context, id api.NodeID, r wire.StreamRequest) (io.ReadWriteCloser, error)
	// Stream returns the node's answer. Errors: those of the node.
	Stream(ctx context.Context, id api.NodeID, r wire.StreamRequest) (io.ReadCloser, error)
}

type Options struct {
	Nodes   Nodes
	Deliver func(context.Context, moves.Result) error // to the core
	Log     *slog.Logger                              // default slog.Default

	// The pauses between attempts: 500 ms to 30 s.
	MinPause, MaxPause time.Duration
	Idle               time.Duration // a copy without progress ends after this time; default 1 min
}

// The bound of copies of volumes. Only first passes wait: in a last one the instance does not run.
var firstCopies = fairshare.Declare(fairshare.Bound{
	Resource: "first copies of moving volumes that wait at a cluster", Total: 1 << 12, Per: "tenant", Share: []int{1 << 10},
	Beyond: "8 at once, 4 of one tenant and 2 from one node, and tenants take turns; the instance runs at its node meanwhile",
	Attack: "TestMovesOfOneTenantLeaveRoomForOthers",
})

const (
	atOnce    = 8
	perTenant = 4
	perNode   = 2
)

// Mover carries out tasks.
type Mover struct {
	opt     Options
	turns   *fairshare.Turns
	changed chan struct{} // capacity 1

	mu    sync.Mutex // guards tasks
	tasks []moves.Task
}

// New returns a Mover. It does nothing before Run.
func New(o Options) *Mover {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.MinPause, o.MaxPause = cmp.Or(o.MinPause, 500*time.Millisecond), cmp.Or(o.MaxPause, 30*time.Second)
	o.Idle = cmp.Or(o.Idle, time.Minute)
	return &Mover{opt: o, changed: make(chan struct{}, 1), turns: fairshare.NewTurns(firstCopies, atOnce, perTenant).Each(perNode)}
}

// Set replaces all tasks. It does not block.
func (m *Mover) Set(all []moves.Task) {
	m.mu.Lock()
	m.tasks = all
	m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// key identifies a task.
type key struct {
	instance api.InstanceID
	epoch    api.Epoch
	phase    moves.Phase
	from, to api.NodeID
}

// Run carries out tasks until ctx ends.
func (m *Mover) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	running := map[key]context.CancelFunc{}
	for {
		m.mu.Lock()
		tasks := m.tasks
		m.mu.Unlock()
		wanted := map[key]bool{}
		for _, t := range tasks {
			k := key{t.Instance, t.Epoch, t.Phase, t.From, t.To}
			wanted[k] = true
			if running[k] != nil {
				continue
			}
			ctx, cancel := context.WithCancel(ctx)
			running[k] = cancel
			wg.Go(func() { m.carryOut(ctx, t) })
		}
		for k, cancel := range running {
			if !wanted[k] {
				cancel()
				delete(running, k)
			}
		}
		select {
		case <-ctx.Done():
			return nil //nolint:nilerr // the end is ordered
		case <-m.changed:
		}
	}
}

// carryOut attempts a task until it has succeeded or is no longer wanted.
func (m *Mover) carryOut(ctx context.Context, t moves.Task) {
	pause := m.opt.MinPause
	for failures := 0; ; {
		began := time.Now()
		bytes, err := m.attempt(ctx, t)
		if ctx.Err() != nil {
			return
		}
		r := moves.Result{Task: t, Bytes: bytes}
		log := m.opt.Log.With("instance", t.Instance, "phase", t.Phase, "from", t.From, "to", t.To)
		if err != nil {
			failures++
			r.Fault, r.Failures = withoutNames(err.Error(), t), failures
			log.Warn("volumes not copied", "failures", failures, "err", err)
		} else {
			log.Info("volumes copied", "bytes", bytes, "took", time.Since(began).Round(time.Millisecond))
		}
		if err := m.opt.Deliver(ctx, r); err != nil && ctx.Err() == nil {
			log.Warn("result of a copy not saved", "err", err)
		} else if r.Fault == "" {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, m.opt.MaxPause)
	}
}

// withoutNames removes the names of the nodes from an error, because the root receives it.
func withoutNames(text string, t moves.Task) string {
	for id, role := range map[api.NodeID]string{t.From: "the source", t.To: "the target"} {
		if id == "" {
			continue
		}
		for _, name := range []string{"node " + string(id), string(id.Addr()), string(id)} {
			text = strings.ReplaceAll(text, name, role)
		}
	}
	return text
}

func (m *Mover) attempt(ctx context.Context, t moves.Task) (bytes int64, err error) {
	if t.Phase == moves.Copying {
		leave, err := m.turns.Using(ctx, time.Now(), string(t.From), []string{string(t.Instance.Tenant().Top())}, false)
		if err != nil {
			return 0, err
		}
		defer leave()
	}
	for _, v := range t.Spec.LocalVolumes() {
		id := t.Instance.Volume(v.Name)
		if t.Phase == moves.Discarding {
			err = m.discard(ctx, t, id)
		} else {
			var sum treecopy.Sum
			sum, err = m.copy(ctx, t, id, v.SizeMB)
			bytes += sum.Sent
		}
		if err != nil {
			return bytes, fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return bytes, nil
}

func (m *Mover) request(t moves.Task, kind string, id api.VolumeID) wire.StreamRequest {
	return wire.StreamRequest{
		Kind: kind, Instance: t.Instance, Epoch: t.Epoch, Path: string(id), For: streams.For(t.Instance.Tenant(), "move "+string(t.Instance)),
	}
}

func (m *Mover) copy(ctx context.Context, t moves.Task, id api.VolumeID, sizeMB int64) (treecopy.Sum, error) {
	r := m.request(t, wire.StreamReceiveVolume, id)
	r.Copy = &wire.VolumeCopy{SizeMB: sizeMB, Final: t.Phase == moves.Finishing}
	if !r.Copy.Final {
		r.Copy.Code, r.Copy.Platform, r.Copy.Values = t.Spec.Code, t.Spec.Platform, t.Values
	}
	target, err := m.opt.Nodes.Connect(ctx, t.To, r)
	if err != nil {
		return treecopy.Sum{}, err
	}
	r = m.request(t, wire.StreamSendVolume, id)
	r.Copy = &wire.VolumeCopy{Final: t.Phase == moves.Finishing}
	source, err := m.opt.Nodes.Connect(ctx, t.From, r)
	if err != nil {
		return treecopy.Sum{}, errors.Join(err, target.Close())
	}
	return treecopy.Relay(ctx, source, target, m.opt.Idle, nil)
}

func (m *Mover) discard(ctx context.Context, t moves.Task, id api.VolumeID) error {
	s, err := m.opt.Nodes.Stream(ctx, t.To, m.request(t, wire.StreamDiscardVolume, id))
	if err != nil {
		return err
	}
	return s.Close()
}
