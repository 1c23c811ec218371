package wiring

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/link"
	"github.com/treeline-edge/treeline/netmanager/overlay"
)

// What a look at the workloads' connections may cost. The kernel looks through all
// connections of the machine for those of one namespace: where that takes long it is
// looked at less often, so that it takes at most one part in so many of a processor.
const (
	sampleEvery       = 15 * time.Second
	sampleShare       = 4000
	askedEvery        = time.Second // where somebody asks
	askedShare        = 50
	sampleInstances   = 64 // of a node, at a time; the others the next time
	sampleConnections = 256
	sampleFlows       = 4096
	// sampleFresh is how long ago the other end must have been heard at most: what a
	// connection measured before that says nothing of now.
	sampleFresh = time.Minute
)

// sampler looks at what TCP knows of the workloads' connections.
type sampler struct {
	attached func(context.Context) ([]api.Attach, error)
	untwin   func(netip.Addr) netip.Addr
	post     func(overlay.Input)
	log      *slog.Logger

	asked chan chan struct{}

	conns *link.Connections // Run's, as what follows
	from  int               // whose turn it is
}

func newSampler(attached func(context.Context) ([]api.Attach, error), untwin func(netip.Addr) netip.Addr, post func(overlay.Input), log *slog.Logger) *sampler {
	return &sampler{attached: attached, untwin: untwin, post: post, log: log, asked: make(chan chan struct{})}
}

// refresh has a look taken for somebody who asks, unless the last one was just now,
// and returns when the core was told.
func (s *sampler) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	done := make(chan struct{})
	select {
	case s.asked <- done:
		<-done
	case <-ctx.Done():
	}
}

// Run looks until ctx ends.
func (s *sampler) Run(ctx context.Context) error {
	s.conns = link.NewConnections()
	timer := time.NewTimer(sampleEvery)
	defer timer.Stop()
	var next time.Time // when one may be taken for who asks
	for {
		var done chan struct{}
		select {
		case <-timer.C:
		case done = <-s.asked:
		case <-ctx.Done():
			return nil
		}
		if now := time.Now(); done == nil || !now.Before(next) {
			all, err := s.attached(ctx)
			if err == nil {
				flows, took := s.look(all)
				next = now.Add(max(askedEvery, askedShare*took))
				timer.Reset(max(sampleEvery, sampleShare*took))
				s.post(overlay.Sampled{Flows: flows})
			}
		}
		if done != nil {
			close(done)
		}
	}
}

// look sums up, by the addresses at both ends, what the next of the workloads have,
// and says how much of a processor that took.
func (s *sampler) look(all []api.Attach) (flows []overlay.Flow, took time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	at := map[[2]netip.Addr]int{}
	n := min(len(all), sampleInstances)
	for i := range n {
		a := all[(s.from+i)%len(all)]
		err := s.conns.Each(a.NetNS, sampleConnections, func(x link.Connection) {
			ends := [2]netip.Addr{s.untwin(x.Local), s.untwin(x.Remote)}
			if x.Idle > sampleFresh || !ends[0].IsValid() || !ends[1].IsValid() {
				return
			}
			k, known := at[ends]
			if !known {
				if len(flows) == sampleFlows {
					return
				}
				k = len(flows)
				at[ends] = k
				flows = append(flows, overlay.Flow{Local: ends[0], Remote: ends[1], Least: x.Least})
			}
			f := &flows[k]
			f.RTT = (f.RTT*time.Duration(f.Sockets) + x.RTT) / time.Duration(f.Sockets+1)
			f.Least = min(f.Least, x.Least)
			f.Sockets++
			f.Sent, f.Again = f.Sent+uint64(x.Sent), f.Again+uint64(x.Again)
		})
		if err != nil && !errors.Is(err, api.ErrGone) {
			s.log.Debug("what a workload's connections measure is not known", "instance", a.Instance, "epoch", a.Epoch, "err", err)
		}
	}
	if len(all) > 0 {
		s.from = (s.from + n) % len(all)
	}
	return flows, threadTime() - began
}

// threadTime is what the thread has had of processors: on a busy machine the clock
// tells of others.
func threadTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
