package wiring

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// linksIn has fn do with the devices of a host of its own, and gives that.
func linksIn(t *testing.T, data *os.Root, fn func(*links)) *dataplanetest.Space {
	t.Helper()
	host := dataplanetest.NewSpace(t, "links")
	host.Do(func() {
		l, err := newLinks("tl", data, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Error(err)
			return
		}
		defer l.link.Close()
		l.node = plane.Node{Ranges: api.DefaultNetRanges(), Prefix: "tl", Hold: "tlhold"}
		fn(l)
	})
	return host
}

// An address is another placement's by the time that the kernel is told that the first
// has gone: it was busy.
func TestALateDropLeavesWhoHasTheAddressNow(t *testing.T) {
	inside := dataplanetest.NewSpace(t, "inside")
	address := netip.MustParseAddr("10.16.0.2")
	attach := func(epoch api.Epoch) (api.Attach, api.Attached) {
		k := api.Key{Instance: "web.prod.shop.prod.0", Epoch: epoch}
		return api.Attach{Key: k, NetNS: inside.Path()}, api.Attached{Key: k, Address: address, MTU: 1400}
	}
	linksIn(t, nil, func(l *links) {
		first, at := attach(1)
		l.want(first, at)
		if _, err := l.connect(address); err != nil {
			t.Error(err)
		}
		l.unwant(first.Key)
		l.want(attach(2))
		if err := l.Tidy(t.Context(), plane.Change{DropEndpoints: []netip.Addr{address}}); err != nil {
			t.Error(err)
		}
		l.unwant(first.Key) // once more
		if _, err := l.connect(address); err != nil || l.missing(address) != nil {
			t.Errorf("the second placement gets no device: %v", err)
		}
	})
}

// How the host was is written down before it is changed: a crash between would have it
// forward for ever.
func TestForwardingIsNotedBeforeItIsChanged(t *testing.T) {
	dir := t.TempDir()
	data := must[*os.Root](t)(os.OpenRoot(dir))
	defer data.Close()
	if err := os.Remove(dir); err != nil { // nothing can be written down
		t.Fatal(err)
	}
	var err error
	host := linksIn(t, data, func(l *links) {
		dev, e := tun.Open("tlhold", holdMTU)
		if e != nil {
			t.Error(e)
			return
		}
		defer dev.Close()
		err = l.setup()
	})
	if now := strings.TrimSpace(host.Output("cat", "/proc/sys/net/ipv4/ip_forward")); err == nil || now != "0" {
		t.Errorf("the host forwards: %s, %v", now, err)
	}
}
