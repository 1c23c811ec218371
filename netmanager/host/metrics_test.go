package host

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Another cluster may choose any names for its nodes: the metrics name only nodes of the own
// cluster, and no two peers share a series.
func TestMetricsNameOnlyNodesOfTheOwnCluster(t *testing.T) {
	var b strings.Builder
	peerMetrics(&b, "munich", []api.PeerStatus{
		{Key: api.PeerKey{1}, Cluster: "munich", Node: "n1", Path: api.PathDirect, RTT: time.Millisecond},
		{Key: api.PeerKey{2}, Cluster: "osaka", Node: "inner", Path: api.PathRelay, RTT: time.Second, Loss: 0.25, Tunnel: api.Carried{Sent: 7}},
		{Key: api.PeerKey{3}, Cluster: "osaka", Node: "inner", Path: api.PathNone},
		{Key: api.PeerKey{4}, Cluster: "munich", Path: api.PathRoute},
	})
	text := b.String()
	if strings.Contains(text, "inner") || !strings.Contains(text, `node="n1"`) {
		t.Errorf("metrics name a node of another cluster, or not the own one:\n%s", text)
	}
	series := map[string]bool{}
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, "} ")
		if series[name] && !strings.HasPrefix(line, "#") {
			t.Errorf("series written twice: %s", line)
		}
		series[name] = true
	}
	for key, wants := range map[string]int{"rtt_seconds": 2, "loss_ratio": 2, "sent_bytes_total": 4} {
		if n := strings.Count(text, "\ntreeline_net_peer_"+key+"{"); n != wants { // absent if the value is unknown
			t.Errorf("%d series of %s, want %d", n, key, wants)
		}
	}
}
