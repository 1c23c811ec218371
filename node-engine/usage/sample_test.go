package usage_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/usage"
)

// listed is a runtime whose workloads have no control groups and run in this process.
type listed struct {
	runtime.Runtime
	lists atomic.Int32
}

func (l *listed) List(context.Context) ([]runtime.Status, error) {
	l.lists.Add(1)
	return []runtime.Status{
		{Key: wire.Key{Instance: "acme/shop.prod.web.v1#0", Epoch: 7}, Phase: wire.WorkloadRunning, PID: os.Getpid()},
		{Key: wire.Key{Instance: "acme/shop.prod.web.v1#1", Epoch: 7}, Phase: wire.WorkloadExited},
	}, nil
}

// TestThoseWhoAskAtTheSameTimeShareAMeasurement: many people who watch cost a node no more than one.
func TestThoseWhoAskAtTheSameTimeShareAMeasurement(t *testing.T) {
	rt := &listed{}
	s := usage.NewSampler(rt, slog.New(slog.DiscardHandler))
	began := time.Now()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			got, err := s.Sample(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if got.Machine.MilliCPU < 0 || got.Machine.Memory <= 0 {
				t.Errorf("the machine uses %+v, want its processor and memory", got.Machine)
			}
			if len(got.Workloads) != 1 || got.Workloads[0].Instance != "acme/shop.prod.web.v1#0" || got.Workloads[0].Usage != api.UnknownUsage {
				t.Errorf("workloads use %+v, want one that runs, with nothing known: it has no control group and no network of its own", got.Workloads)
			}
		})
	}
	all.Wait()
	if n := rt.lists.Load(); n > 2+int32(time.Since(began)/time.Second) {
		t.Errorf("20 people made the node list its workloads %d times in %s, want twice for the first measurement and once a second", n, time.Since(began))
	}
	// Who does not wait does not keep others from measuring.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = usage.NewSampler(rt, slog.New(slog.DiscardHandler)).Sample(ctx)
	if _, err := s.Sample(t.Context()); err != nil {
		t.Error(err)
	}
}
