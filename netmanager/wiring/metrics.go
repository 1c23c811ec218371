package wiring

import (
	"context"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	tunnels "github.com/treeline-edge/treeline/netmanager/tunnel"
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
	head(w, "histogram", name, help)
	for i, b := range bounds {
		_, _ = fmt.Fprintf(w, "%s_bucket{le=\"%g\"} %d\n", name, b.Seconds(), h.buckets[i])
	}
	_, _ = fmt.Fprintf(w, "%[1]s_bucket{le=\"+Inf\"} %[2]d\n%[1]s_sum %[3]g\n%[1]s_count %[2]d\n", name, h.count, h.sum.Seconds())
}

// head begins a metric in Prometheus' text format.
func head(w io.Writer, kind, name, help string) {
	_, _ = fmt.Fprintf(w, "# HELP %[2]s %[3]s\n# TYPE %[2]s %[1]s\n", kind, name, help)
}

// seen is what there is to observe at one time.
type seen struct {
	peers           []api.PeerStatus
	tunnel          tunnels.Total
	pairs           []api.PairStatus
	attached        int
	routes, refused int
}

func (m *manager) observed(ctx context.Context) (s seen, err error) {
	if s.peers, err = m.Peers(ctx); err != nil {
		return s, err
	}
	s.tunnel = m.tunnel.engine.Total()
	err = m.loop.Read(ctx, func() {
		s.pairs, s.attached = m.core.Pairs(), len(m.core.Attachments())
		for _, r := range m.core.Routes() {
			if r.Refused != "" {
				s.refused++
			} else {
				s.routes++
			}
		}
	})
	return s, err
}

// metrics are listed in docs/operator.md.
func (m *manager) metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	s, err := m.observed(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	ready := 0
	if m.uplink.isReady().Ready {
		ready = 1
	}
	var mem goruntime.MemStats
	goruntime.ReadMemStats(&mem)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	line := func(kind, name, help string, value any) {
		head(w, kind, name, help)
		_, _ = fmt.Fprintf(w, "%s %v\n", name, value)
	}
	line("gauge", "treeline_net_ready", "Whether workloads can be attached.", ready)
	line("gauge", "treeline_net_attachments", "Workloads that are attached.", s.attached)
	line("gauge", "treeline_net_routes", "Services that the node holds a route to.", s.routes)
	line("gauge", "treeline_net_wants_unmet", "Wants that were refused or are not answered.", s.refused)
	peerMetrics(w, m.creds.Cluster, s.peers)
	tunnelMetrics(w, s.tunnel)
	pairMetrics(w, s.pairs)
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

// peerMetrics are of the peers that the node has records of, and so at most as many
// series. The node of a peer is named within the own cluster alone; its key, which is
// nobody's to choose twice, tells the others apart.
func peerMetrics(w io.Writer, own api.ClusterID, peers []api.PeerStatus) {
	paths := map[api.PathKind]int{}
	for _, p := range peers {
		paths[p.Path]++
	}
	each := func(kind, name, help string, sample func(p api.PeerStatus, say func(value any, more string))) {
		head(w, kind, name, help)
		for _, p := range peers {
			if p.Cluster != own {
				p.Node = ""
			}
			sample(p, func(value any, more string) {
				_, _ = fmt.Fprintf(w, "%s{peer=%q,node=%q,cluster=%q%s} %v\n", name, p.Key, p.Node, p.Cluster, more, value)
			})
		}
	}
	head(w, "gauge", "treeline_net_peers", "Peers by path.")
	for _, k := range []api.PathKind{api.PathNone, api.PathRoute, api.PathVXLAN, api.PathDirect, api.PathRelay, api.PathRelayTLS} {
		_, _ = fmt.Fprintf(w, "treeline_net_peers{path=%q} %d\n", k, paths[k])
	}
	path := func(p api.PeerStatus) string { return fmt.Sprintf(",path=%q", p.Path) }
	each("gauge", "treeline_net_peer_rtt_seconds", "Round trip to a peer by the tunnel's probes, smoothed.", func(p api.PeerStatus, say func(any, string)) {
		if p.RTT > 0 {
			say(p.RTT.Seconds(), path(p))
		}
	})
	each("gauge", "treeline_net_peer_loss_ratio", "Share of the tunnel's last probes to a peer that were lost.", func(p api.PeerStatus, say func(any, string)) {
		if p.RTT > 0 || p.Loss > 0 {
			say(p.Loss, path(p))
		}
	})
	for _, c := range []struct {
		name, help string
		part       func(api.Carried) uint64
	}{
		{"treeline_net_peer_sent_bytes_total", "Bytes of packets to a peer, by what carried them.", func(c api.Carried) uint64 { return c.Sent }},
		{"treeline_net_peer_received_bytes_total", "Bytes of packets from a peer, by what carried them.", func(c api.Carried) uint64 { return c.Received }},
	} {
		each("counter", c.name, c.help, func(p api.PeerStatus, say func(any, string)) {
			say(c.part(p.Tunnel), `,by="tunnel"`)
			if p.Kernel != nil {
				say(c.part(*p.Kernel), `,by="kernel"`)
			}
		})
	}
	each("counter", "treeline_net_peer_dropped_packets_total", "Packets to and from a peer that the tunnel dropped.", func(p api.PeerStatus, say func(any, string)) {
		say(p.Dropped, "")
	})
}

// tunnelMetrics are of all peers that there ever were, for a counter must not fall
// when one goes.
func tunnelMetrics(w io.Writer, all tunnels.Total) {
	for _, c := range []struct {
		name, help string
		value      uint64
	}{
		{"treeline_net_tunnel_sent_bytes_total", "Bytes of packets sent to peers by the tunnel, gone ones too.", all.SentBytes},
		{"treeline_net_tunnel_received_bytes_total", "Bytes of packets received from peers by the tunnel, gone ones too.", all.ReceivedBytes},
		{"treeline_net_tunnel_dropped_packets_total", "Packets to and from peers, gone ones too, that the tunnel dropped.", all.Dropped},
	} {
		head(w, "counter", c.name, c.help)
		_, _ = fmt.Fprintf(w, "%s %d\n", c.name, c.value)
	}
}

// pairMetrics are of the pairs of services that the core keeps, which are bounded.
func pairMetrics(w io.Writer, pairs []api.PairStatus) {
	for _, g := range []struct {
		name, help string
		value      func(api.PairStatus) any
	}{
		{"treeline_net_service_rtt_seconds", "Smoothed round trip of TCP connections between a service here and another.", func(p api.PairStatus) any { return p.RTT.Seconds() }},
		{"treeline_net_service_least_rtt_seconds", "Least round trip of these in the last minutes.", func(p api.PairStatus) any { return p.Least.Seconds() }},
		{"treeline_net_service_retransmit_ratio", "Share of segments that they sent again.", func(p api.PairStatus) any { return p.Again }},
		{"treeline_net_service_connections", "Connections that were looked at, of what may be more.", func(p api.PairStatus) any { return p.Connections }},
	} {
		head(w, "gauge", g.name, g.help)
		for _, p := range pairs {
			_, _ = fmt.Fprintf(w, "%s{local=%q,remote=%q} %v\n", g.name, p.Local, p.Remote, g.value(p))
		}
	}
}
