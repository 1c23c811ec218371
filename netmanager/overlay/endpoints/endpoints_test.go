package endpoints_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
)

const quarantine = 2 * time.Minute

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// machine has a subnet with 13 addresses for instances.
func machine(t *testing.T) *endpoints.Machine {
	t.Helper()
	m := endpoints.New(quarantine)
	if err := m.SetSubnet(netip.MustParsePrefix("10.16.0.0/28")); err != nil {
		t.Fatal(err)
	}
	return m
}

func attach(n int, epoch api.Epoch) wire.Attach {
	return wire.Attach{Key: wire.Key{Instance: api.ServiceID("acme/shop.prod.web.eu").Instance(n), Epoch: epoch}, NetNS: "/ns/1"}
}

func TestAttachErrors(t *testing.T) {
	if _, _, err := endpoints.New(quarantine).Attach(start, attach(0, 1)); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("attach without a subnet: %v, want ErrUnavailable", err)
	}
	m := machine(t)
	first := attach(0, 2)
	first.Ports = []api.PortMap{{Host: 80, Instance: 8080, Protocol: "tcp"}}
	if _, _, err := m.Attach(start, first); err != nil {
		t.Fatal(err)
	}
	other := attach(1, 1)
	other.Ports = first.Ports
	for name, test := range map[string]struct {
		attach wire.Attach
		want   error
	}{
		"an invalid instance": {wire.Attach{Key: wire.Key{Instance: "web"}}, api.ErrInvalid},
		"an older placement":  {attach(0, 1), api.ErrConflict},
		"a taken host port":   {other, api.ErrConflict},
	} {
		if _, _, err := m.Attach(start, test.attach); !errors.Is(err, test.want) {
			t.Errorf("attach %s: %v, want %v", name, err, test.want)
		}
	}
}

func TestNewAttemptKeepsTheAddressAndNotTheState(t *testing.T) {
	m := machine(t)
	a := attach(0, 1)
	first, _, _ := m.Attach(start, a)
	m.Ready(a.Key, a.NetNS)
	if _, changed, err := m.Attach(start, a); changed || err != nil {
		t.Errorf("the same attachment again: changed %v, %v", changed, err)
	}
	a.NetNS = "/ns/2"
	second, changed, err := m.Attach(start, a)
	if err != nil || !changed || second.Address != first.Address || second.Ready {
		t.Errorf("a new attempt is %+v (changed %v, %v), want address %s and not ready", second, changed, err, first.Address)
	}
	if _, ok := m.Ready(a.Key, "/ns/1"); ok {
		t.Error("the earlier attempt made the attachment ready")
	}
}

func TestHealthChecksDecideWhetherACheckedAttachmentIsReady(t *testing.T) {
	m := machine(t)
	a, plain := attach(0, 1), attach(1, 1)
	a.Checked = true
	for _, x := range []wire.Attach{a, plain} {
		if _, _, err := m.Attach(start, x); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := m.Ready(a.Key, a.NetNS); ok {
		t.Error("it listens and became ready, want only its checks to decide")
	}
	if _, ok := m.SetReady(plain.Key, true); ok {
		t.Error("an attachment without checks was set ready, want no change")
	}
	for i, c := range []struct{ set, changed, accepts, unready bool }{
		{false, false, false, false}, {true, true, true, false}, {true, false, true, false}, {false, true, false, true}, {true, true, true, false},
	} {
		_, changed := m.SetReady(a.Key, c.set)
		at, _ := m.Get(a.Key)
		if changed != c.changed || at.Accepting() != c.accepts || at.Unready != c.unready {
			t.Errorf("step %d, set %t: changed %t, %+v, want %+v", i, c.set, changed, at, c)
		}
	}
	m.SetReady(a.Key, false)
	older := a
	older.Checked = false // a node engine of an earlier release
	if at, _, err := m.Attach(start, older); err != nil || !at.Accepting() {
		t.Errorf("without checks it is %+v (%v), want it to accept flows as before", at, err)
	}
	if _, _, err := m.Attach(start, a); err != nil {
		t.Fatal(err)
	}
	m.Drain(a.Key)
	m.SetReady(a.Key, false)
	m.SetReady(a.Key, true)
	if at, _ := m.Get(a.Key); at.Accepting() || !at.Serving() {
		t.Errorf("a draining attachment that is ready again is %+v, want it to drain", at)
	}
	a.NetNS = "/ns/2"
	if next, _, err := m.Attach(start, a); err != nil || next.Serving() || next.Draining {
		t.Errorf("the next attempt is %+v (%v), want neither ready nor draining", next, err)
	}
}

func TestFreedAddressesAreQuarantined(t *testing.T) {
	m := machine(t)
	n := m.Free(start)
	for i := range n {
		if _, _, err := m.Attach(start, attach(i, 1)); err != nil {
			t.Fatalf("attach %d of %d: %v", i, n, err)
		}
	}
	if _, _, err := m.Attach(start, attach(n, 1)); !errors.Is(err, api.ErrFull) {
		t.Errorf("attach to a full subnet: %v, want ErrFull", err)
	}
	gone, ok := m.Detach(start, attach(0, 1).Key)
	if !ok {
		t.Fatal("detach found nothing")
	}
	if _, _, err := m.Attach(start, attach(n, 1)); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("attach while the only address is in quarantine: %v, want ErrUnavailable", err)
	}
	got, _, err := m.Attach(start.Add(endpoints.MinQuarantine), attach(n, 1))
	if err != nil || got.Address != gone.Address {
		t.Errorf("after the least quarantine: %v, %v, want %s", got.Address, err, gone.Address)
	}
}

func TestQuarantineOutlivesARestart(t *testing.T) {
	m := machine(t)
	a, _, _ := m.Attach(start, attach(0, 1))
	m.Detach(start, a.Attach.Key)
	docs := m.Save()
	next := machine(t)
	for _, d := range docs {
		if d.Data == nil {
			continue
		}
		if _, err := next.Restore(d); err != nil {
			t.Fatal(err)
		}
	}
	if freed := next.Start(start); freed[a.Address] != a.Attach.Key {
		t.Errorf("addresses in quarantine after a restart: %v, want %s of %s", freed, a.Address, a.Attach.Key)
	}
	for i := range 3 {
		if b, _, err := next.Attach(start, attach(1+i, 1)); err != nil || b.Address == a.Address {
			t.Errorf("attach %d after a restart: %s, %v, want another address than %s", i, b.Address, err, a.Address)
		}
	}
	next.Save()
	next.Expire(next.Next())
	if docs := next.Save(); len(docs) != 1 || docs[0].Kind != endpoints.KindFreed || docs[0].Data != nil {
		t.Errorf("the end of a quarantine saved %+v, want the document's deletion", docs)
	}
}

func TestTwoAttachmentsWithOneAddressAreCorrupt(t *testing.T) {
	m := machine(t)
	for i, want := range []error{nil, store.ErrCorrupt} {
		d := store.Doc{Kind: endpoints.KindAttachment, Key: fmt.Sprint(i), Version: 1, Data: []byte(fmt.Sprintf(
			`{"attach":{"instance":"acme/shop.prod.web.eu#%d","epoch":1,"netns":""},"address":"10.16.0.2"}`, i))}
		if _, err := m.Restore(d); !errors.Is(err, want) {
			t.Errorf("restore %d: %v, want %v", i, err, want)
		}
	}
}
