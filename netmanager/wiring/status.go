package wiring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// counters are the netmanager's metrics, written by hand: the Prometheus library
// would cost a node more memory than its core.
type counters struct {
	steps, docs, failed, saveMicros atomic.Uint64
	denied, forged                  atomic.Uint64
	attaches                        histogram
}

func (c *counters) observe(s loop.Sample) {
	c.steps.Add(uint64(s.Steps))
	c.docs.Add(uint64(s.Docs))
	c.failed.Add(uint64(s.Failed))
	c.saveMicros.Add(uint64(s.Saving.Microseconds()))
}

func (c *counters) usage(u plane.Usage) {
	c.denied.Store(u.Denied)
	c.forged.Store(u.Forged)
}

func (c *counters) attached(d time.Duration) { c.attaches.add(d) }

// bounds are the histogram's buckets.
var bounds = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second,
}

// histogram counts durations as Prometheus reads them.
type histogram struct {
	mu      sync.Mutex // guards the fields below
	buckets [len(bounds)]uint64
	count   uint64
	sum     time.Duration
}

func (h *histogram) add(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	h.sum += d
	for i, b := range bounds {
		if d <= b {
			h.buckets[i]++
		}
	}
}

func (h *histogram) write(w io.Writer, name, help string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, _ = fmt.Fprintf(w, "# HELP %[1]s %[2]s\n# TYPE %[1]s histogram\n", name, help)
	for i, b := range bounds {
		_, _ = fmt.Fprintf(w, "%s_bucket{le=\"%g\"} %d\n", name, b.Seconds(), h.buckets[i])
	}
	_, _ = fmt.Fprintf(w, "%[1]s_bucket{le=\"+Inf\"} %[2]d\n%[1]s_sum %[3]g\n%[1]s_count %[2]d\n", name, h.count, h.sum.Seconds())
}

// serveStatus serves the daemon's health on this machine alone.
func (m *manager) serveStatus(ctx context.Context) error {
	var health daemon.Health
	health.Require("store", func(context.Context) error { return m.loop.Stalled() })
	health.Require("core", func(ctx context.Context) error { return m.loop.Read(ctx, func() {}) })
	health.Watch("network", func(context.Context) error {
		if r := m.uplink.isReady(); !r.Ready {
			return errors.New(r.Error)
		}
		return nil
	})
	return daemon.ServeStatus(ctx, m.cfg.ListenStatus, m.cfg.Data, health.Handler(http.HandlerFunc(m.metrics)))
}

func (m *manager) metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	peers, err := m.Peers(ctx)
	var attached, routes, refused int
	if err == nil {
		err = m.loop.Read(ctx, func() {
			attached = len(m.core.Attachments())
			for _, r := range m.core.Routes() {
				if r.Refused != "" {
					refused++
				} else {
					routes++
				}
			}
		})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	paths := map[api.PathKind]int{}
	var sent, received, dropped uint64
	for _, p := range peers {
		paths[p.Path]++
		sent, received, dropped = sent+p.Sent, received+p.Received, dropped+p.Dropped
	}
	ready := 0
	if m.uplink.isReady().Ready {
		ready = 1
	}
	var mem goruntime.MemStats
	goruntime.ReadMemStats(&mem)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	line := func(kind, name, help string, value any) {
		_, _ = fmt.Fprintf(w, "# HELP %[2]s %[3]s\n# TYPE %[2]s %[1]s\n%[2]s %[4]v\n", kind, name, help, value)
	}
	line("gauge", "treeline_net_ready", "Whether workloads can be attached.", ready)
	line("gauge", "treeline_net_attachments", "Workloads that are attached.", attached)
	line("gauge", "treeline_net_routes", "Services that the node holds a route to.", routes)
	line("gauge", "treeline_net_wants_unmet", "Wants that were refused or are not answered.", refused)
	_, _ = fmt.Fprint(w, "# HELP treeline_net_peers Peers by path.\n# TYPE treeline_net_peers gauge\n")
	for _, k := range []api.PathKind{api.PathNone, api.PathRoute, api.PathVXLAN, api.PathDirect, api.PathRelay, api.PathRelayTLS} {
		_, _ = fmt.Fprintf(w, "treeline_net_peers{path=%q} %d\n", k, paths[k])
	}
	line("counter", "treeline_net_tunnel_sent_bytes_total", "Bytes of packets sent to present peers by the tunnel.", sent)
	line("counter", "treeline_net_tunnel_received_bytes_total", "Bytes of packets received from present peers by the tunnel.", received)
	line("counter", "treeline_net_tunnel_dropped_packets_total", "Packets to and from present peers that the tunnel dropped.", dropped)
	line("counter", "treeline_net_denied_packets_total", "Packets that policy dropped, as of the last look.", m.meter.denied.Load())
	line("counter", "treeline_net_forged_packets_total", "Packets whose source was not the sender's, as of the last look.", m.meter.forged.Load())
	line("counter", "treeline_net_peers_refused_total", "Records of peers whose key was not proven.", m.checker.refused.Load())
	m.meter.attaches.write(w, "treeline_net_attach_seconds", "Time that attachments took.")
	line("counter", "treeline_core_steps_total", "Steps of the core.", m.meter.steps.Load())
	line("counter", "treeline_core_inputs_dropped_total", "Inputs that found the queue full.", m.loop.Dropped())
	line("counter", "treeline_store_documents_saved_total", "Documents saved.", m.meter.docs.Load())
	line("counter", "treeline_store_saves_failed_total", "Saves that failed and were repeated.", m.meter.failed.Load())
	line("counter", "treeline_store_save_seconds_total", "Time spent in saves.", float64(m.meter.saveMicros.Load())/1e6)
	line("gauge", "go_goroutines", "Goroutines that exist.", goruntime.NumGoroutine())
	line("gauge", "go_memstats_heap_alloc_bytes", "Bytes of the heap in use.", mem.HeapAlloc)
	line("gauge", "go_memstats_sys_bytes", "Bytes obtained from the system.", mem.Sys)
}
