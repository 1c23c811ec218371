package wiring

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
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
)

// view returns what the netmanager serves at a path of its socket.
func view[T any](h *testHost, path string) (v T) {
	t := h.w.t
	t.Helper()
	body := must[io.ReadCloser](t)(h.sock.Open(t.Context(), path))
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// observed checks what a host reports about a kernel path: bytes in both directions, the round
// trip that the tunnel measures, and TCP's measurements between the two services, in routes,
// traces and metrics.
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
		peer = view[api.Page[api.PeerStatus]](h, netsock.Peers).Items[0]
		pair = nil
		for _, r := range view[api.Page[api.RouteStatus]](h, netsock.Routes).Items {
			if r.Service == server.key.Instance.Service() {
				pair = r.Pairs
			}
		}
		if peer.Kernel != nil && min(peer.Kernel.Sent, peer.Kernel.Received) > 5000 && peer.RTT > 0 && len(pair) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after %v peer %+v, pairs %+v, want traffic of the kernel, a round trip and a pair", testTime, peer, pair)
		}
	}
	if time.Since(peer.Measured) > testTime || peer.Loss < 0 || peer.Loss > 1 {
		t.Errorf("peer %+v, want a recent measurement and a loss from 0 to 1", peer)
	}
	p := pair[0]
	if len(pair) != 1 || p.Local != client.key.Instance.Service() || p.Least <= 0 || p.RTT < p.Least || p.RTT > time.Second || p.Connections == 0 {
		t.Errorf("pairs %+v, want one of the two services with plausible round trips", pair)
	}
	t.Logf("round trip %s by probes, %s by TCP (%s at least)", peer.RTT, p.RTT, p.Least)
	// The called side sees the caller's own address, and has no route to it.
	if text := asked(server.host); !regexp.MustCompile(`(?m)^treeline_net_service_rtt_seconds\{local="` + string(p.Remote) + `",remote="` + string(p.Local) + `"\} [0-9]`).MatchString(text) {
		t.Errorf("metrics of the other end lack the pair of services:\n%s", text)
	}
	trace := view[api.NetTrace](h, netsock.Trace+"?"+url.Values{"from": {string(client.key.Instance)}, "to": {vip(2).String()}}.Encode())
	if !slices.ContainsFunc(trace.Steps, func(s api.TraceStep) bool { return s.What == "latency" && s.OK }) {
		t.Errorf("steps of the trace %+v, want a latency step that is OK", trace.Steps)
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
			t.Errorf("no metric %s in\n%s", want, text)
		}
	}
	documented(t, text)
}

// asked returns the metrics after a new sample of the connections.
func asked(h *testHost) string {
	view[api.Page[api.RouteStatus]](h, netsock.Routes)
	return exposed(h)
}

// exposed returns the netmanager's metrics.
func exposed(h *testHost) string {
	t := h.w.t
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(h.dir, "net", "status.sock"))
	}}}
	resp := must[*http.Response](t)(c.Get("http://netmanager/metrics"))
	defer resp.Body.Close()
	return string(must[[]byte](t)(io.ReadAll(resp.Body)))
}

// documented compares the metrics with docs/reference/metrics.md: the section of the netmanager has no others, and
// the page has all.
func documented(t *testing.T, text string) {
	t.Helper()
	doc := string(must[[]byte](t)(os.ReadFile("../../docs/reference/metrics.md")))
	_, own, _ := strings.Cut(doc, "\n## Netmanager\n")
	listed := regexp.MustCompile("`(treeline_[a-z_]+)").FindAllStringSubmatch(own, -1)
	there := regexp.MustCompile(`(?m)^# TYPE ([a-z_]+) `).FindAllStringSubmatch(text, -1)
	exposed := map[string]bool{}
	for _, m := range there {
		exposed[m[1]] = true
		if !strings.HasPrefix(m[1], "go_") && !strings.Contains(doc, "`"+m[1]) {
			t.Errorf("docs/reference/metrics.md does not have %s", m[1])
		}
	}
	for _, m := range listed {
		if !exposed[m[1]] {
			t.Errorf("docs/reference/metrics.md has %s, which the netmanager does not expose", m[1])
		}
	}
	if len(listed) < 20 {
		t.Errorf("docs/reference/metrics.md lists %d metrics of the netmanager", len(listed))
	}
}
