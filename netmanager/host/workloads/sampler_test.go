package workloads

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/link"
)

// BenchmarkSample samples the connections of one workload.
func BenchmarkSample(b *testing.B) {
	s := NewSampler(nil, func(a netip.Addr) netip.Addr { return a }, nil, slog.Default())
	s.conns = link.NewConnections()
	var spent time.Duration
	for b.Loop() {
		_, took := s.sample([]wire.Attach{{NetNS: "/proc/self/ns/net"}})
		spent += took
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "cpu-µs/op")
}
