package overlay

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Replaces all workloads of a node twice, faster than their addresses leave quarantine.
func TestARollingUpdateFindsAddresses(t *testing.T) {
	w := newWorld(t, Config{})
	w.step(Down{wire.NetDown{Rev: 1, Lease: theLease()}})
	const many = 60
	given := map[netip.Addr]time.Time{} // when each address was freed
	in := map[netip.Addr]wire.Key{}
	attach := func(i int, e api.Epoch) error {
		a := attachOf("web", i, e)
		if eff := w.step(a); eff.Err != nil {
			return eff.Err
		}
		at, _ := w.c.View().Attached(a.Key)
		if k, taken := in[at.Address]; taken {
			t.Fatalf("%s has the address of %s", a.Key, k)
		}
		if since, was := given[at.Address]; was && w.now.Sub(since) < endpoints.MinQuarantine {
			t.Fatalf("%s has rested for %s", at.Address, w.now.Sub(since))
		}
		in[at.Address] = a.Key
		return nil
	}
	for i := range many {
		if err := attach(i, 1); err != nil {
			t.Fatal(err)
		}
	}
	for e := api.Epoch(2); e < 4; e++ {
		for i := range many {
			old := attachOf("web", i, e-1).Key
			at, _ := w.c.View().Attached(old)
			eff := w.step(Detach{old})
			if ch := orders[plane.Change](eff); len(ch) != 1 || len(ch[0].End) != 1 || ch[0].End[0] != at.Address {
				t.Fatalf("the flows of %s do not end: %+v", old, ch)
			}
			delete(in, at.Address)
			given[at.Address] = w.now
			for tries := 0; ; tries++ {
				err := attach(i, e)
				if err == nil {
					break
				}
				if !errors.Is(err, api.ErrUnavailable) || tries > 10 {
					t.Fatal(err)
				}
				w.now = w.now.Add(time.Second)
			}
			w.now = w.now.Add(100 * time.Millisecond)
		}
	}
	w.restart()
	w.checkIndexes()
	if got := len(w.c.View().Attachments()); got != many {
		t.Fatalf("%d are attached after a restart", got)
	}
	for _, a := range w.c.View().List() {
		if in[a.Address] != a.Key {
			t.Errorf("%s has %s after a restart", a.Key, a.Address)
		}
	}
	w.pass(5 * time.Minute)
	for d := range w.docs {
		if d[0] == endpoints.KindFreed {
			t.Errorf("%s rests for ever", d[1])
		}
	}
}
