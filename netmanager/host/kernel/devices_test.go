package kernel

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// devicesIn runs fn with the devices of a new host, and returns the host.
func devicesIn(t *testing.T, data *os.Root, fn func(*Devices)) *dataplanetest.Space {
	t.Helper()
	host := dataplanetest.NewSpace(t, "devices")
	host.Do(func() {
		d, err := NewDevices("tl", data, func() netip.Addr { return netip.Addr{} }, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Error(err)
			return
		}
		defer d.Close()
		d.node = plane.Node{Ranges: wire.DefaultNetRanges(), Prefix: "tl", Queue: "tlhold"}
		fn(d)
	})
	return host
}

// An address may belong to another placement when the kernel removes the first.
func TestALateRemovalKeepsTheNewOwnerOfTheAddress(t *testing.T) {
	inside := dataplanetest.NewSpace(t, "inside")
	address := netip.MustParseAddr("10.16.0.2")
	attach := func(epoch api.Epoch) (wire.Attach, wire.Attached) {
		k := wire.Key{Instance: "web.prod.shop.prod.0", Epoch: epoch}
		return wire.Attach{Key: k, NetNS: inside.Path()}, wire.Attached{Key: k, Address: address, MTU: 1400}
	}
	devicesIn(t, nil, func(d *Devices) {
		first, at := attach(1)
		d.Want(first, at)
		if _, err := d.connect(address); err != nil {
			t.Error(err)
		}
		d.Unwant(first.Key)
		d.Want(attach(2))
		if err := d.tidy(plane.Change{DropEndpoints: []netip.Addr{address}}); err != nil {
			t.Error(err)
		}
		d.Unwant(first.Key) // once more
		if _, err := d.connect(address); err != nil || d.Missing(address) != nil {
			t.Errorf("connect of the second placement = %v, want a device", err)
		}
	})
}

// The forwarding setting is saved before it is changed: after a crash in between, the machine
// would forward for ever.
func TestForwardingIsSavedBeforeItIsChanged(t *testing.T) {
	dir := t.TempDir()
	data := must[*os.Root](t)(os.OpenRoot(dir))
	defer data.Close()
	if err := os.Remove(dir); err != nil { // nothing can be saved
		t.Fatal(err)
	}
	var err error
	host := devicesIn(t, data, func(d *Devices) {
		dev, e := tun.Open("tlhold", 1500)
		if e != nil {
			t.Error(e)
			return
		}
		defer dev.Close()
		err = d.setup()
	})
	if now := strings.TrimSpace(host.Output("cat", "/proc/sys/net/ipv4/ip_forward")); err == nil || now != "0" {
		t.Errorf("setup() = %v and ip_forward = %s, want an error and 0", err, now)
	}
}
