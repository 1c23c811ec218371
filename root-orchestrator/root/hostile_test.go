package root

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestAddressesSaidAgainCountOnce: a cluster names what it has with each whole.
func TestAddressesSaidAgainCountOnce(t *testing.T) {
	w := newWorld(t, "a")
	var used []api.ServiceAddress
	for i := range 100 {
		used = append(used, api.ServiceAddress{Address: netip.AddrFrom4([4]byte{10, 30, 9, byte(i + 1)}), Service: api.ServiceID(fmt.Sprintf("acme/old.prod.s%d.prod", i))})
	}
	for range 11 {
		w.net("a", api.ClusterNet{Whole: true, Subnets: 1, InUse: used})
	}
	rests := func(a netip.Addr) bool { _, ok := w.c.net.addresses.Resting(a); return ok }
	late := api.ServiceAddress{Address: netip.MustParseAddr("10.30.77.7"), Service: "acme/old.prod.late.prod"}
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1, InUse: append(used, late)})
	if !rests(late.Address) {
		t.Error("an address that is in use is not kept from others")
	}
	many := used[:0:0]
	for i := range 2 * mostQuoted {
		many = append(many, api.ServiceAddress{Address: netip.AddrFrom4([4]byte{10, 30, byte(100 + i/250), byte(1 + i%250)}), Service: "acme/x.x.x.x"})
	}
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1, InUse: many})
	n := 0
	for _, u := range many {
		if rests(u.Address) {
			n++
		}
	}
	if n != mostQuoted-101 {
		t.Errorf("%d more rest because one cluster says so", n)
	}
}
