package overlay

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/demand"
)

// asleep is the route of a service that sleeps, apart from instances on these nodes.
func asleep(rev uint64, nodes ...byte) wire.NetDown {
	r := route("web", rev, 1, nodes...)
	r.Asleep = true
	return wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}}
}

func demands(ups []wire.NetUp) (n int) {
	for _, up := range ups {
		n += len(up.Demand)
	}
	return n
}

func TestPacketsToASleepingServiceWaitAndWakeIt(t *testing.T) {
	w, client := ready(t)
	miss := Miss{Local: client, Remote: vip(1)}
	w.step(miss)
	eff := w.answer(asleep(1)) // no other packet is needed: the sender repeats it after a second only
	if _, ok := w.plane.Services[vip(1)]; ok {
		t.Fatal("the plane has the address, so the kernel refuses its packets")
	}
	up := messages(eff)
	if holds := orders[Hold](eff); len(holds) != 1 || holds[0] != (Hold{vip(1), demand.Wait}) || len(up) != 1 ||
		len(up[0].Demand) != 1 || up[0].Demand[0] != (wire.Subscription{Address: vip(1), For: svc("client")}) {
		t.Fatalf("the answer for the packet led to %+v, want it held and one demand", eff.Send)
	}
	if again := w.step(miss); len(messages(again)) > 0 {
		t.Error("the next packet led to another message at once")
	}
	if n := demands(w.pass(4 * time.Second)); n < 3 || n > 6 {
		t.Errorf("the demand was repeated %d times in 4 s", n)
	}
	eff = w.answer(asleep(2, 1))
	if got := orders[Release](eff); len(got) != 1 || got[0].Remote != vip(1) || w.backendsOf(vip(1)) == "none" {
		t.Fatalf("the instance that woke led to %+v, want the packets released to it", eff.Send)
	}
	if n := demands(w.pass(time.Minute)); n > 0 {
		t.Errorf("%d demands for a service that is awake", n)
	}
	w.checkIndexes()
}

// A packet that arrives while the last instance stops is for the next one.
func TestPacketsDoNotGoToAnInstanceThatFallsAsleep(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(asleep(1, 1))
	d := asleep(2, 1)
	d.Routes[0].Backends[0].State = api.BackendDraining
	w.answer(d)
	eff := w.step(Miss{Local: client, Remote: vip(1)})
	if len(orders[Hold](eff)) != 1 || w.backendsOf(vip(1)) != "none" {
		t.Errorf("the plane has %q and the packet led to %+v", w.backendsOf(vip(1)), eff.Send)
	}
}

func TestAServiceThatDoesNotWakeIsRefusedInTheEnd(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(asleep(1))
	w.step(Miss{Local: client, Remote: vip(1)})
	end := w.now.Add(demand.Wait)
	for w.now.Before(end) {
		if len(orders[Refuse](w.last)) > 0 {
			t.Fatalf("refused %v before the wait was over", end.Sub(w.now))
		}
		w.pass(min(w.last.Wake.Sub(w.now), end.Sub(w.now)))
	}
	w.pass(time.Millisecond)
	if w.c.demands.Len() > 0 {
		t.Error("the demand did not end")
	}
}

func TestARouteThatIsNoLongerAsleepRefusesAtOnce(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(asleep(1))
	w.step(Miss{Local: client, Remote: vip(1)})
	eff := w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 2, 1)}}})
	if len(orders[Release](eff)) != 1 || w.backendsOf(vip(1)) != "" {
		t.Errorf("the plane has %q, the packets %+v, want an address without backends", w.backendsOf(vip(1)), eff.Send)
	}
}

func TestADemandMayNotBeSentByWhomTheServiceRefuses(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	d := asleep(1)
	d.Routes[0].Access = api.Access{Closed: true}
	w.answer(d)
	eff := w.step(Miss{Local: client, Remote: vip(1)})
	if demands(messages(eff)) > 0 || len(orders[Hold](eff)) > 0 {
		t.Errorf("a packet that policy denies led to %+v", eff.Send)
	}
}
