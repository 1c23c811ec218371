package overlay

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus/parts"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestAllSubscriptionsFitIntoOneMessage checks the maximum number of subscriptions with the longest names.
func TestAllSubscriptionsFitIntoOneMessage(t *testing.T) {
	w := newWorld(t, Config{MaxOpen: 1 << 20})
	w.step(Link{true})
	w.step(Down{wire.NetDown{Rev: 1, Lease: theLease()}})
	tenant, name := api.Tenant(strings.Repeat("/"+strings.Repeat("x", 30), 8)[1:]), strings.Repeat("N", 30)
	caller := tenant.App(name, name).Service(name, name)
	if !api.ValidTenant(tenant) || api.ValidTenant(tenant+"x") || !api.ValidName(name) || api.ValidName(name+"N") {
		t.Fatal("these are not the longest names")
	}
	for n := range w.c.cfg.MaxSubscriptions + 10 {
		w.c.subscribe(wire.Subscription{Service: tenant.App(name, name).Service(name, fmt.Sprintf("%030d", n)), For: caller}, netip.Addr{})
	}
	w.c.subs.Requested(false, true)
	ups := messages(w.step(Tick{}))
	if len(ups) != 1 || len(ups[0].Subscribe) != w.c.cfg.MaxSubscriptions {
		t.Fatalf("%d messages, of %d wants", len(ups), len(ups[0].Subscribe))
	}
	text, err := json.Marshal(ups[0])
	if err != nil || len(text) > parts.Max-1<<18 { // leaves room for the rest of the message, mostly MaxNetPairs
		t.Errorf("it has %d bytes: %v", len(text), err)
	}
}

// TestChangesWhileDisconnectedAreBounded adds and drops subscriptions while the cluster is disconnected.
func TestChangesWhileDisconnectedAreBounded(t *testing.T) {
	const most = 40
	w := newWorld(t, Config{MaxSubscriptions: most, MaxOpen: 10})
	w.step(Link{true})
	w.step(Down{wire.NetDown{Rev: 1, Lease: theLease()}})
	w.step(attachOf("client", 0, 1))
	a, _ := w.c.View().Attached(attachOf("client", 0, 1).Key)
	w.answer(wire.NetDown{})
	w.step(Link{false})
	for n := range byte(200) {
		w.step(Miss{Local: a.Address, Remote: vip(n)})
		if queued := w.c.subs.Queued(); queued > most {
			t.Fatalf("after %d subscriptions %d changes are queued, want %d at most", n, queued, most)
		}
	}
	ups := messages(w.step(Link{true}))
	if len(ups) != 1 || !ups[0].Whole || len(ups[0].Subscribe) != w.c.subs.Len() || len(ups[0].Unsubscribe) > 0 {
		t.Errorf("said %+v, with %d wants", ups, w.c.subs.Len())
	}
	w.checkIndexes()
}
