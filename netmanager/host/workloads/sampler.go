package workloads

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/link"
	"github.com/treeline-edge/treeline/netmanager/overlay"
)

// The bounds of a sample. For the connections of one namespace the kernel walks all connections of
// the machine, so the pause after a sample is at least a multiple of the processor time that the
// sample took.
const (
	sampleInterval  = 15 * time.Second
	sampleShare     = 4000
	refreshInterval = time.Second // on request
	refreshShare    = 50
	maxInstances    = 64 // in one sample; the others are in the next
	maxConnections  = 256
	maxFlows        = 4096
	maxIdle         = time.Minute // older measurements are ignored
)

// Sampler samples the TCP measurements of the workloads' connections.
type Sampler struct {
	attached func(context.Context) ([]wire.Attach, error)
	to4      func(netip.Addr) netip.Addr
	post     func(overlay.Input)
	log      *slog.Logger

	requests chan chan struct{}

	conns *link.Connections // used by Run only, like next
	next  int               // index of the first workload in the next sample
}

// NewSampler returns a sampler that posts overlay.Sampled. to4 is wire.NetRanges.To4.
func NewSampler(attached func(context.Context) ([]wire.Attach, error), to4 func(netip.Addr) netip.Addr, post func(overlay.Input), log *slog.Logger) *Sampler {
	return &Sampler{attached: attached, to4: to4, post: post, log: log, requests: make(chan chan struct{})}
}

// Refresh takes a sample, unless the last one is recent, and returns when it is posted.
func (s *Sampler) Refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	done := make(chan struct{})
	select {
	case s.requests <- done:
		<-done
	case <-ctx.Done():
	}
}

// Run samples until ctx ends.
func (s *Sampler) Run(ctx context.Context) error {
	s.conns = link.NewConnections()
	timer := time.NewTimer(sampleInterval)
	defer timer.Stop()
	var earliest time.Time // of the next sample on request
	for {
		var done chan struct{}
		select {
		case <-timer.C:
		case done = <-s.requests:
		case <-ctx.Done():
			return nil
		}
		if now := time.Now(); done == nil || !now.Before(earliest) {
			all, err := s.attached(ctx)
			if err != nil {
				timer.Reset(sampleInterval)
			} else {
				flows, took := s.sample(all)
				earliest = now.Add(max(refreshInterval, refreshShare*took))
				timer.Reset(max(sampleInterval, sampleShare*took))
				s.post(overlay.Sampled{Flows: flows})
			}
		}
		if done != nil {
			close(done)
		}
	}
}

// sample sums up the connections of the next workloads by the addresses at both ends, and
// returns the processor time that it took.
func (s *Sampler) sample(all []wire.Attach) (flows []overlay.Flow, took time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	at := map[[2]netip.Addr]int{}
	n := min(len(all), maxInstances)
	for i := range n {
		a := all[(s.next+i)%len(all)]
		err := s.conns.Each(a.NetNS, maxConnections, func(x link.Connection) {
			ends := [2]netip.Addr{s.to4(x.Local), s.to4(x.Remote)}
			if x.Idle > maxIdle || !ends[0].IsValid() || !ends[1].IsValid() {
				return
			}
			k, known := at[ends]
			if !known {
				if len(flows) == maxFlows {
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
			f.Sent, f.Retransmitted = f.Sent+uint64(x.Sent), f.Retransmitted+uint64(x.Retransmitted)
		})
		if err != nil && !errors.Is(err, api.ErrGone) {
			s.log.Debug("sample a workload's connections failed", "instance", a.Instance, "epoch", a.Epoch, "err", err)
		}
	}
	if len(all) > 0 {
		s.next = (s.next + n) % len(all)
	}
	return flows, threadTime() - began
}

// threadTime returns the processor time of the thread. On a busy machine the clock would
// include the time of other processes.
func threadTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
