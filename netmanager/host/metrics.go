package host

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
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Meter counts for the netmanager's metrics. It writes Prometheus' text format itself,
// because the Prometheus library would cost a node more memory than its core.
type Meter struct {
	steps, docs, failed, saveMicros atomic.Uint64
	denied, forged                  atomic.Uint64
	attaches                        histogram
}

// Observe counts a batch of the core.
func (m *Meter) Observe(s loop.Sample) {
	m.steps.Add(uint64(s.Steps))
	m.docs.Add(uint64(s.Docs))
	m.failed.Add(uint64(s.Failed))
	m.saveMicros.Add(uint64(s.Saving.Microseconds()))
}

// Usage sets the counters of packets that the kernel dropped.
func (m *Meter) Usage(u plane.Usage) {
	m.denied.Store(u.Denied)
	m.forged.Store(u.Forged)
}

// Attached counts an attachment that took d.
func (m *Meter) Attached(d time.Duration) { m.attaches.add(d) }

var buckets = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second,
}

type histogram struct {
	mu     sync.Mutex // guards the fields below
	counts [len(buckets)]uint64
	count  uint64
	sum    time.Duration
}

func (h *histogram) add(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	h.sum += d
	for i, b := range buckets {
		if d <= b {
			h.counts[i]++
		}
	}
}

func (h *histogram) write(w io.Writer, name, help string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	head(w, "histogram", name, help)
	for i, b := range buckets {
		_, _ = fmt.Fprintf(w, "%s_bucket{le=\"%g\"} %d\n", name, b.Seconds(), h.counts[i])
	}
	_, _ = fmt.Fprintf(w, "%[1]s_bucket{le=\"+Inf\"} %[2]d\n%[1]s_sum %[3]g\n%[1]s_count %[2]d\n", name, h.count, h.sum.Seconds())
}

func head(w io.Writer, kind, name, help string) {
	_, _ = fmt.Fprintf(w, "# HELP %[2]s %[3]s\n# TYPE %[2]s %[1]s\n", kind, name, help)
}

// Metrics serves the metrics, which docs/how-to/operator.md lists.
func (s *Server) Metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	peers, err := s.Peers(ctx)
	var pairs []api.PairStatus
	attached, routes, refused := 0, 0, 0
	if err == nil {
		err = s.Core.Read(ctx, func(o overlay.View) {
			pairs, attached = o.Pairs(), len(o.Attachments())
			for _, r := range o.Routes() {
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
	ready := 0
	if s.Stream.Ready().Ready {
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
	line("gauge", "treeline_net_attachments", "Workloads that are attached.", attached)
	line("gauge", "treeline_net_routes", "Services that the node has a route to.", routes)
	for _, name := range []string{"treeline_net_subscriptions_open", "treeline_net_wants_unmet"} { // the latter is the former name
		line("gauge", name, "Subscriptions that were refused or are not answered.", refused)
	}
	peerMetrics(w, s.Credentials.Cluster, peers)
	all := s.Transport.engine.Total() // a counter must not decrease when a peer is removed
	line("counter", "treeline_net_tunnel_sent_bytes_total", "Bytes of packets that the tunnel sent to peers, including removed ones.", all.SentBytes)
	line("counter", "treeline_net_tunnel_received_bytes_total", "Bytes of packets that the tunnel received from peers, including removed ones.", all.ReceivedBytes)
	line("counter", "treeline_net_tunnel_dropped_packets_total", "Packets to and from peers, including removed ones, that the tunnel dropped.", all.Dropped)
	pairMetrics(w, pairs)
	line("counter", "treeline_net_denied_packets_total", "Packets that policy dropped, as of the last sample.", s.Meter.denied.Load())
	line("counter", "treeline_net_forged_packets_total", "Packets with a source address that is not the sender's, as of the last sample.", s.Meter.forged.Load())
	line("counter", "treeline_net_peers_refused_total", "Records of peers that were refused because their key was not proven.", s.Peer.Refused())
	s.Meter.attaches.write(w, "treeline_net_attach_seconds", "Time that attachments took.")
	line("counter", "treeline_core_steps_total", "Steps of the core.", s.Meter.steps.Load())
	line("counter", "treeline_core_inputs_dropped_total", "Inputs that were dropped because the queue was full.", s.Core.loop.Dropped())
	line("counter", "treeline_store_documents_saved_total", "Documents saved.", s.Meter.docs.Load())
	line("counter", "treeline_store_saves_failed_total", "Saves that failed and were repeated.", s.Meter.failed.Load())
	line("counter", "treeline_store_save_seconds_total", "Time spent in saves.", float64(s.Meter.saveMicros.Load())/1e6)
	line("gauge", "go_goroutines", "Goroutines that exist.", goruntime.NumGoroutine())
	line("gauge", "go_memstats_heap_alloc_bytes", "Bytes of the heap in use.", mem.HeapAlloc)
	line("gauge", "go_memstats_sys_bytes", "Bytes obtained from the system.", mem.Sys)
}

// peerMetrics writes the metrics of the peers that the node has records of, which bounds the
// series. Only nodes of the own cluster are named: the names in other clusters may collide,
// and a peer's key identifies it.
func peerMetrics(w io.Writer, own api.ClusterID, peers []api.PeerStatus) {
	paths := map[api.PathKind]int{}
	for _, p := range peers {
		paths[p.Path]++
	}
	each := func(kind, name, help string, sample func(p api.PeerStatus, write func(value any, labels string))) {
		head(w, kind, name, help)
		for _, p := range peers {
			if p.Cluster != own {
				p.Node = ""
			}
			sample(p, func(value any, labels string) {
				_, _ = fmt.Fprintf(w, "%s{peer=%q,node=%q,cluster=%q%s} %v\n", name, p.Key, p.Node, p.Cluster, labels, value)
			})
		}
	}
	head(w, "gauge", "treeline_net_peers", "Peers by path.")
	for _, k := range []api.PathKind{api.PathNone, api.PathRoute, api.PathVXLAN, api.PathDirect, api.PathRelay, api.PathRelayTLS} {
		_, _ = fmt.Fprintf(w, "treeline_net_peers{path=%q} %d\n", k, paths[k])
	}
	path := func(p api.PeerStatus) string { return fmt.Sprintf(",path=%q", p.Path) }
	each("gauge", "treeline_net_peer_rtt_seconds", "Round trip to a peer by the tunnel's probes, smoothed.", func(p api.PeerStatus, write func(any, string)) {
		if p.RTT > 0 {
			write(p.RTT.Seconds(), path(p))
		}
	})
	each("gauge", "treeline_net_peer_loss_ratio", "Share of the tunnel's last probes to a peer that were lost.", func(p api.PeerStatus, write func(any, string)) {
		if p.RTT > 0 || p.Loss > 0 {
			write(p.Loss, path(p))
		}
	})
	for _, c := range []struct {
		name, help string
		part       func(api.Carried) uint64
	}{
		{"treeline_net_peer_sent_bytes_total", "Bytes of packets to a peer, by what carried them.", func(c api.Carried) uint64 { return c.Sent }},
		{"treeline_net_peer_received_bytes_total", "Bytes of packets from a peer, by what carried them.", func(c api.Carried) uint64 { return c.Received }},
	} {
		each("counter", c.name, c.help, func(p api.PeerStatus, write func(any, string)) {
			write(c.part(p.Tunnel), `,by="tunnel"`)
			if p.Kernel != nil {
				write(c.part(*p.Kernel), `,by="kernel"`)
			}
		})
	}
	each("counter", "treeline_net_peer_dropped_packets_total", "Packets to and from a peer that the tunnel dropped.", func(p api.PeerStatus, write func(any, string)) {
		write(p.Dropped, "")
	})
}

// pairMetrics writes the metrics of the pairs of services that the core keeps, which are
// bounded.
func pairMetrics(w io.Writer, pairs []api.PairStatus) {
	for _, g := range []struct {
		name, help string
		value      func(api.PairStatus) any
	}{
		{"treeline_net_service_rtt_seconds", "Smoothed round trip of TCP connections between a service here and another.", func(p api.PairStatus) any { return p.RTT.Seconds() }},
		{"treeline_net_service_least_rtt_seconds", "Smallest round trip of these connections in the last minutes.", func(p api.PairStatus) any { return p.Least.Seconds() }},
		{"treeline_net_service_retransmit_ratio", "Share of segments that were retransmitted.", func(p api.PairStatus) any { return p.Again }},
		{"treeline_net_service_connections", "Connections that were sampled; there may be more.", func(p api.PairStatus) any { return p.Connections }},
	} {
		head(w, "gauge", g.name, g.help)
		for _, p := range pairs {
			_, _ = fmt.Fprintf(w, "%s{local=%q,remote=%q} %v\n", g.name, p.Local, p.Remote, g.value(p))
		}
	}
}
