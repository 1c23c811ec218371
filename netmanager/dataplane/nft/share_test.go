package nft_test

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
)

// TestOneInstanceCannotFillConnectionTracking opens more flows from one instance than its share, and counts the flows in
// connection tracking.
func TestOneInstanceCannotFillConnectionTracking(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	share := most / 4
	programtest.Need(t, "conntrack")
	w := dataplanetest.NewWorld(t, open, api.PathRoute)
	w.C(4).Serve("c4", 80)
	to := netip.AddrPortFrom(w.C(4).Addr, 80)
	w.Flood(share * 3 / 2)
	h := w.Hosts[0]
	got, err := strconv.Atoi(strings.TrimSpace(h.Output("conntrack", "-C")))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d flows of %d that were begun, of a share of %d", got, share*3/2, share)
	if got < share*3/4 || got > share*5/4 {
		t.Errorf("%d flows where %d is a share", got, share)
	}
	w.C(1).Unreached("udp", to)
	if _, err := w.C(2).Ask("udp", to); err != nil {
		t.Error(err)
	}
	h.Output("conntrack", "-F") // as if they had ended
	if _, err := w.C(1).Ask("tcp", to); err != nil {
		t.Errorf("with room again: %v", err)
	}
	h.Output("nft", "list", "ruleset")
}
