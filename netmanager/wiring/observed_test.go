package wiring

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/netmanager/link"
)

// shown is what the netmanager shows at a path.
func shown[T any](h *host, path string) (v T) {
	t := h.w.t
	t.Helper()
	body := must[io.ReadCloser](t)(h.sock.Open(t.Context(), path))
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// observed holds what a host shows of a kernel path to what passes by it: bytes both
// ways, the round trip that the tunnel measures there, and what TCP knows of the two
// services, in routes, traces and metrics.
func observed(t *testing.T, client, server *container) {
	t.Helper()
	conn := must[net.Conn](t)(client.dial(vip(2), 80))
	defer conn.Close()
	h := client.host
	var peer api.PeerStatus
	var pair []api.PairStatus
	said := make([]byte, 1000)
	for end := time.Now().Add(testTime); ; time.Sleep(50 * time.Millisecond) {
		_ = conn.SetDeadline(time.Now().Add(testTime))
		if _, err := conn.Write(said); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, said); err != nil {
			t.Fatal(err)
		}
		peer = shown[api.Page[api.PeerStatus]](h, netsock.Peers).Items[0]
		pair = nil
		for _, r := range shown[api.Page[api.RouteStatus]](h, netsock.Routes).Items {
			if r.Service == server.key.Instance.Service() {
				pair = r.Pairs
			}
		}
		if peer.Kernel != nil && min(peer.Kernel.Sent, peer.Kernel.Received) > 5000 && peer.RTT > 0 && len(pair) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, pairs %+v", peer, pair)
		}
	}
	if time.Since(peer.Measured) > testTime || peer.Loss < 0 || peer.Loss > 1 {
		t.Errorf("%+v", peer)
	}
	p := pair[0]
	if len(pair) != 1 || p.Local != client.key.Instance.Service() || p.Least <= 0 || p.RTT < p.Least || p.RTT > time.Second || p.Connections == 0 {
		t.Errorf("%+v", pair)
	}
	t.Logf("round trip %s by probes, %s by TCP (%s at least)", peer.RTT, p.RTT, p.Least)
	// Who is called sees the caller's own address, and has no route to it.
	if text := asked(server.host); !regexp.MustCompile(`(?m)^treeline_net_service_rtt_seconds\{local="` + string(p.Remote) + `",remote="` + string(p.Local) + `"\} [0-9]`).MatchString(text) {
		t.Errorf("the other end says\n%s", text)
	}
	trace := shown[api.NetTrace](h, netsock.Trace+"?"+url.Values{"from": {string(client.key.Instance)}, "to": {vip(2).String()}}.Encode())
	if !slices.ContainsFunc(trace.Steps, func(s api.TraceStep) bool { return s.What == "latency" && s.OK }) {
		t.Errorf("%+v", trace.Steps)
	}
	text := exposed(h)
	node := string(server.host.id)
	for _, want := range []string{
		`treeline_net_peer_rtt_seconds\{peer="` + peer.Key.String() + `",node="` + node + `",cluster="munich",path="route"\} [0-9.e-]+`,
		`treeline_net_peer_loss_ratio\{.*path="route"\} [0-9.e-]+`,
		`treeline_net_peer_sent_bytes_total\{.*by="kernel"\} [1-9][0-9]+`,
		`treeline_net_peer_received_bytes_total\{.*by="kernel"\} [1-9][0-9]+`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	documented(t, text)
}

// asked is what the netmanager exposes once its connections were looked at anew.
func asked(h *host) string {
	shown[api.Page[api.RouteStatus]](h, netsock.Routes)
	return exposed(h)
}

// exposed are the netmanager's metrics.
func exposed(h *host) string {
	t := h.w.t
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(h.dir, "net", "status.sock"))
	}}}
	resp := must[*http.Response](t)(c.Get("http://netmanager/metrics"))
	defer resp.Body.Close()
	return string(must[[]byte](t)(io.ReadAll(resp.Body)))
}

// documented holds the metrics to what docs/operator.md says of them, both ways.
func documented(t *testing.T, text string) {
	t.Helper()
	doc := string(must[[]byte](t)(os.ReadFile("../../docs/operator.md")))
	_, doc, _ = strings.Cut(doc, "| Metric of the netmanager |")
	doc, _, _ = strings.Cut(doc, "\n\n")
	listed := regexp.MustCompile("`((?:treeline|go)_[a-z_]+)").FindAllStringSubmatch(doc, -1)
	there := regexp.MustCompile(`(?m)^# TYPE ([a-z_]+) `).FindAllStringSubmatch(text, -1)
	names := func(all [][]string) (out []string) {
		for _, m := range all {
			out = append(out, m[1])
		}
		slices.Sort(out)
		return out
	}
	if a, b := names(listed), names(there); !slices.Equal(a, b) {
		t.Errorf("documented are %q,\nexposed %q", a, b)
	}
}

// A cluster says of its nodes what it likes: their names are shown where they are
// ours alone, and two of them never make one series.
func TestPeersOfOtherClustersHaveNoNames(t *testing.T) {
	var b strings.Builder
	peerMetrics(&b, "munich", []api.PeerStatus{
		{Key: api.PeerKey{1}, Cluster: "munich", Node: "n1", Path: api.PathDirect, RTT: time.Millisecond},
		{Key: api.PeerKey{2}, Cluster: "osaka", Node: "inner", Path: api.PathRelay, RTT: time.Second, Loss: 0.25, Tunnel: api.Carried{Sent: 7}},
		{Key: api.PeerKey{3}, Cluster: "osaka", Node: "inner", Path: api.PathNone},
		{Key: api.PeerKey{4}, Cluster: "munich", Path: api.PathRoute},
	})
	text := b.String()
	if strings.Contains(text, "inner") || !strings.Contains(text, `node="n1"`) {
		t.Error(text)
	}
	series := map[string]bool{}
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, "} ")
		if series[name] && !strings.HasPrefix(line, "#") {
			t.Errorf("twice: %s", line)
		}
		series[name] = true
	}
	for key, wants := range map[string]int{"rtt_seconds": 2, "loss_ratio": 2, "sent_bytes_total": 4} {
		if n := strings.Count(text, "\ntreeline_net_peer_"+key+"{"); n != wants { // absent where it is not known
			t.Errorf("%s of %d peers, want %d", key, n, wants)
		}
	}
}

// BenchmarkLook is a look at the connections of one workload.
func BenchmarkLook(b *testing.B) {
	s := newSampler(nil, func(a netip.Addr) netip.Addr { return a }, nil, slog.Default())
	s.conns = link.NewConnections()
	var spent time.Duration
	for b.Loop() {
		_, took := s.look([]api.Attach{{NetNS: "/proc/self/ns/net"}})
		spent += took
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "cpu-µs/op")
}
