// Package bustest is the test suite of buses:
//
//	bustest.Run(t, bustest.Deviations{}, func(t *testing.T) bustest.System { … })
//
// It has a CA for tests, links that can be cut, and Mosquitto with the configuration in
// deploy/.
package bustest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/leaktest"
)

// System is one broker with its clients. The suite closes the buses.
type System interface {
	Cluster(t testing.TB) bus.Bus // the cluster's bus, with all rights
	Node(t testing.TB, n Node) bus.Bus
	Cut(id api.NodeID) // resets a node's connections and refuses new ones until Mend
	Mend(id api.NodeID)
	Stop(t testing.TB) // stops the broker, which ends every connection
	Start(t testing.TB)
	Close()
}

// Node describes a node's client.
type Node struct {
	ID   api.NodeID
	Will *bus.Message
}

// Deviations are the differences between brokers that the contract allows.
type Deviations struct {
	ForgetsRetained bool // a restarted broker has no retained messages
	SilentRefusal   bool // a forbidden subscription returns no error and delivers nothing
	ClusterGoes     bool // the cluster's bus ends with the broker
}

const patience = time.Minute // long enough for a busy machine

// Run runs the suite. It calls make once for each test.
func Run(t *testing.T, d Deviations, make func(t *testing.T) System) {
	for _, c := range []struct {
		name string
		test func(*testing.T, System, Deviations)
	}{
		{"a message reaches its subscribers at either QoS", delivers},
		{"messages of one publisher on one topic keep their order", keepsOrder},
		{"retained messages reach later subscribers until cleared", retains},
		{"retained messages come again after a reconnect", retainsOverReconnect},
		{"every leaf passes, up from its node and down to it", everyLeaf},
		{"a node reads and writes its own leaves only", guards},
		{"the will is published when the connection is lost, never on Close", wills},
		{"publishing fails at once while there is no connection", failsWhileDown},
		{"subscriptions survive a restart of the broker", survivesRestart},
		{"a message over the limit is refused, one at the limit passes", limits},
		{"a second connection of a client takes over", takesOver},
		{"up reports the present state, then changes, then ends", reportsUp},
		{"a closed bus refuses and stays silent", closes},
	} {
		t.Run(c.name, func(t *testing.T) {
			left := leaktest.Since(t)
			s := make(t)
			c.test(t, s, d)
			if t.Failed() {
				return
			}
			s.Close()
			left()
		})
	}
}

// received collects the messages of a subscription.
type received chan bus.Message

func subscribe(t testing.TB, b bus.Bus, filter string, qos byte) received {
	t.Helper()
	h := make(received, 4096)
	if err := b.Subscribe(context.Background(), filter, qos, func(m bus.Message) { h <- m }); err != nil {
		t.Fatalf("subscribe to %s: %v", filter, err)
	}
	return h
}

func (h received) next(t testing.TB) bus.Message {
	t.Helper()
	select {
	case m := <-h:
		return m
	case <-time.After(patience):
		t.Fatal("no message came")
		return bus.Message{}
	}
}

// until drops messages, such as duplicates, until one has the payload.
func (h received) until(t testing.TB, payload string) bus.Message {
	t.Helper()
	for {
		if m := h.next(t); string(m.Payload) == payload {
			return m
		}
	}
}

// publish publishes a message of a leaf. If the machine stalls so that the connection is lost, it publishes again.
func publish(t testing.TB, b bus.Bus, l topic.Leaf, n api.NodeID, payload string) {
	t.Helper()
	m := bus.Message{Topic: l.Of(n), Payload: []byte(payload), QoS: l.QoS, Retain: l.Retain}
	ctx := within(t)
	err := b.Publish(ctx, m)
	for errors.Is(err, bus.ErrDown) && ctx.Err() == nil {
		await(t, b, true)
		err = b.Publish(ctx, m)
	}
	if err != nil {
		t.Fatalf("publish to %s: %v", m.Topic, err)
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func await(t testing.TB, b bus.Bus, up bool) {
	t.Helper()
	deadline := time.After(patience)
	for ch := b.Up(); ; {
		select {
		case got, ok := <-ch:
			if !ok {
				t.Fatal("the bus closed")
			}
			if got == up {
				return
			}
		case <-deadline:
			t.Fatalf("the bus did not become up=%v", up)
		}
	}
}

func cluster(t testing.TB, s System) bus.Bus {
	t.Helper()
	b := s.Cluster(t)
	t.Cleanup(func() { b.Close() })
	await(t, b, true)
	return b
}

func node(t testing.TB, s System, n Node) bus.Bus {
	t.Helper()
	b := s.Node(t, n)
	t.Cleanup(func() { b.Close() })
	await(t, b, true)
	return b
}

func closeAll(t testing.TB, all ...bus.Bus) {
	t.Helper()
	for _, b := range all {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func delivers(t *testing.T, s System, _ Deviations) {
	c, n1, n2 := cluster(t, s), node(t, s, Node{ID: "n1"}), node(t, s, Node{ID: "n2"})
	observed, alive := subscribe(t, c, topic.Observed.Every(), 1), subscribe(t, c, topic.Alive.Every(), 0)
	down1, down2 := subscribe(t, n1, topic.Delta.Of("n1"), 1), subscribe(t, n2, topic.Delta.Of("n2"), 1)

	publish(t, n1, topic.Observed, "n1", "one")
	if m := observed.next(t); m.Topic != "nodes/n1/observed" || string(m.Payload) != "one" || m.QoS != 1 || m.Retain {
		t.Errorf("observed came as %+v", m)
	}
	publish(t, n2, topic.Alive, "n2", "two")
	if m := alive.next(t); m.Topic != "nodes/n2/alive" || string(m.Payload) != "two" || m.QoS != 0 {
		t.Errorf("alive came as %+v", m)
	}
	publish(t, c, topic.Delta, "n1", "for n1")
	publish(t, c, topic.Delta, "n2", "for n2")
	if m := down1.next(t); string(m.Payload) != "for n1" || m.QoS != 1 {
		t.Errorf("n1 got %+v", m)
	}
	if m := down2.next(t); string(m.Payload) != "for n2" {
		t.Errorf("n2 got %+v", m)
	}
	closeAll(t, n1, n2, c)
}

func keepsOrder(t *testing.T, s System, _ Deviations) {
	c, n := cluster(t, s), node(t, s, Node{ID: "n1"})
	up, down := subscribe(t, c, topic.Observed.Every(), 1), subscribe(t, n, topic.Delta.Of("n1"), 1)
	const count = 200
	for i := range count {
		publish(t, n, topic.Observed, "n1", fmt.Sprint(i))
		publish(t, c, topic.Delta, "n1", fmt.Sprint(i))
	}
	for i := range count {
		if got, want := string(up.next(t).Payload), fmt.Sprint(i); got != want {
			t.Fatalf("upwards came %s, want %s", got, want)
		}
		if got, want := string(down.next(t).Payload), fmt.Sprint(i); got != want {
			t.Fatalf("downwards came %s, want %s", got, want)
		}
	}
	closeAll(t, n, c)
}

func retains(t *testing.T, s System, _ Deviations) {
	c, n := cluster(t, s), node(t, s, Node{ID: "n1"})
	publish(t, c, topic.Desired, "n1", "old")
	publish(t, c, topic.Desired, "n1", "kept")
	got := subscribe(t, n, topic.Desired.Of("n1"), 1)
	if m := got.next(t); string(m.Payload) != "kept" || !m.Retain || m.QoS != 1 {
		t.Errorf("the retained message came as %+v", m)
	}
	publish(t, c, topic.Desired, "n1", "live")
	if m := got.next(t); string(m.Payload) != "live" || m.Retain {
		t.Errorf("the live message came as %+v", m)
	}
	publish(t, c, topic.Desired, "n1", "") // clears
	if m := got.next(t); len(m.Payload) != 0 {
		t.Errorf("the clearing message came as %+v", m)
	}
	all := subscribe(t, c, topic.Desired.Every(), 1)
	publish(t, c, topic.Desired, "n2", "marker")
	if m := all.next(t); string(m.Payload) != "marker" {
		t.Errorf("after clearing came %+v", m)
	}
	closeAll(t, n, c)
}

func retainsOverReconnect(t *testing.T, s System, _ Deviations) {
	c, n := cluster(t, s), node(t, s, Node{ID: "n1"})
	got := subscribe(t, n, topic.Desired.Of("n1"), 1)
	publish(t, c, topic.Desired, "n1", "first")
	got.until(t, "first")
	s.Cut("n1")
	await(t, n, false)
	publish(t, c, topic.Desired, "n1", "while away")
	s.Mend("n1")
	if m := got.until(t, "while away"); !m.Retain {
		t.Errorf("it came as %+v", m)
	}
	closeAll(t, n, c)
}

// everyLeaf sends one message on each leaf of api/topic in its direction.
func everyLeaf(t *testing.T, s System, _ Deviations) {
	c, n := cluster(t, s), node(t, s, Node{ID: "n1"})
	for _, l := range topic.All {
		from, to := c, n
		if l.Up {
			from, to = n, c
		}
		got := subscribe(t, to, l.Of("n1"), l.QoS)
		for tries := 1; ; tries++ {
			publish(t, from, l, "n1", l.Name)
			wait := patience / 2
			if l.QoS == 0 { // it may be lost
				wait /= 10
			}
			select {
			case m := <-got:
				if string(m.Payload) != l.Name {
					t.Errorf("%s arrived as %q", l.Name, m.Payload)
				}
			case <-time.After(wait):
				if l.QoS == 0 && tries < 10 {
					continue
				}
				t.Errorf("%s does not arrive: the broker's access list may lack it", l.Name)
			}
			break
		}
	}
	closeAll(t, n, c)
}

// guards tries every leaf of every node with every kind of filter.
func guards(t *testing.T, s System, d Deviations) {
	c := cluster(t, s)
	all := subscribe(t, c, "nodes/#", 1)
	ids := []api.NodeID{"n1", "n2", "n1-2"} // the first is a prefix of the last

	// Reading: each node subscribes to everything that it may not read.
	type ear struct {
		id       api.NodeID
		filter   string
		received received
	}
	var ears []ear
	own := map[api.NodeID]received{}
	for _, id := range ids {
		filters := []string{"#", "+/+/+", "nodes/#", "nodes/+/desired", "nodes/" + string(id) + "/#", "nodes/" + string(id) + "/+", "$SYS/#", "$share/g/nodes/n1/desired"}
		for _, other := range ids {
			for _, l := range topic.All {
				if !topic.MaySubscribe(id, l.Of(other)) {
					filters = append(filters, l.Of(other))
				}
			}
		}
		for _, f := range filters {
			b := node(t, s, Node{ID: id}) // a connection of its own: some brokers end it on a refusal
			h := make(received, 64)
			err := b.Subscribe(within(t), f, 1, func(m bus.Message) { h <- m })
			if !d.SilentRefusal {
				if !errors.Is(err, bus.ErrRefused) {
					t.Errorf("%s subscribing to %s got %v, want ErrRefused", id, f, err)
				}
				closeAll(t, b)
				continue
			}
			ears = append(ears, ear{id, f, h})
			// One connection delivers in order: when a later message arrives, the forbidden ones
			// were not delivered.
			probe := subscribe(t, b, topic.Lease.Of(id), 0)
			for _, other := range ids {
				for _, l := range topic.All {
					_ = c.Publish(within(t), bus.Message{Topic: l.Of(other), Payload: []byte("secret of " + string(other)), QoS: 1})
				}
			}
			publish(t, c, topic.Lease, id, "probe")
			probe.until(t, "probe")
			closeAll(t, b)
		}
	}
	for _, e := range ears {
		for len(e.received) > 0 {
			if m := <-e.received; !topic.MaySubscribe(e.id, m.Topic) {
				t.Errorf("%s received %s through %s", e.id, m.Topic, e.filter)
			}
		}
	}

	// Writing: every leaf of every node, at both QoS, retained or not.
	for len(all) > 0 {
		<-all
	}
	for _, id := range ids {
		names := []string{"nodes", "nodes/" + string(id), "nodes/" + string(id) + "/observed/more", "nodes/" + string(id) + "/other", "elsewhere", "$SYS/broker/version"}
		for _, other := range ids {
			for _, l := range topic.All {
				if !topic.MayPublish(id, l.Of(other)) {
					names = append(names, l.Of(other))
				}
			}
		}
		b := node(t, s, Node{ID: id})
		for _, name := range names {
			_ = b.Publish(within(t), bus.Message{Topic: name, Payload: []byte("forged"), Retain: true})
		}
		closeAll(t, b)
		for _, name := range names[:4] { // only a few: each may end the connection
			b := node(t, s, Node{ID: id})
			_ = b.Publish(within(t), bus.Message{Topic: name, Payload: []byte("forged"), QoS: 1})
			closeAll(t, b)
		}
		b = node(t, s, Node{ID: id})
		h, ok := own[id]
		if !ok {
			h = subscribe(t, b, topic.Desired.Of(id), 1)
		}
		publish(t, b, topic.Observed, id, "honest")
		publish(t, c, topic.Desired, id, "honest")
		if m := h.next(t); string(m.Payload) != "honest" {
			t.Errorf("%s reads %q on its own topic", id, m.Payload)
		}
		for honest := 0; honest < 2; {
			m := all.next(t)
			switch string(m.Payload) {
			case "honest":
				honest++
			case "forged":
				t.Errorf("%s wrote to %s", id, m.Topic)
			}
		}
		closeAll(t, b)
	}
	closeAll(t, c)
}

func wills(t *testing.T, s System, _ Deviations) {
	c := cluster(t, s)
	got := subscribe(t, c, topic.Will.Every(), 1)
	will := func(id api.NodeID) *bus.Message { return &bus.Message{Topic: topic.Will.Of(id), QoS: 1} }
	n1, n2 := node(t, s, Node{ID: "n1", Will: will("n1")}), node(t, s, Node{ID: "n2", Will: will("n2")})
	closeAll(t, n1)
	s.Cut("n2")
	if m := got.next(t); m.Topic != topic.Will.Of("n2") {
		t.Errorf("the will of %s came first", m.Topic)
	}
	s.Mend("n2")
	await(t, n2, true)
	closeAll(t, n2, c)
	if len(got) > 0 {
		t.Errorf("one will too many: %+v", <-got)
	}
}

func failsWhileDown(t *testing.T, s System, _ Deviations) {
	c, n := cluster(t, s), node(t, s, Node{ID: "n1"})
	got := subscribe(t, c, topic.Observed.Every(), 1)
	s.Cut("n1")
	await(t, n, false)
	for range 100 {
		err := n.Publish(context.Background(), bus.Message{Topic: topic.Observed.Of("n1"), Payload: []byte("lost"), QoS: 1})
		if !errors.Is(err, bus.ErrDown) {
			t.Fatalf("got %v, want ErrDown", err)
		}
	}
	// A subscription made now takes effect with the next connection.
	late := subscribe(t, n, topic.Delta.Of("n1"), 1)
	s.Mend("n1")
	await(t, n, true)
	publish(t, n, topic.Observed, "n1", "after")
	if m := got.next(t); string(m.Payload) != "after" {
		t.Errorf("%q was stored and sent later", m.Payload)
	}
	publish(t, c, topic.Delta, "n1", "late")
	late.until(t, "late")
	closeAll(t, n, c)
}

func survivesRestart(t *testing.T, s System, d Deviations) {
	c, n := cluster(t, s), node(t, s, Node{ID: "n1"})
	got := subscribe(t, n, topic.Desired.Of("n1"), 1)
	up := subscribe(t, c, topic.Observed.Every(), 1)
	publish(t, c, topic.Desired, "n1", "before")
	got.until(t, "before")
	s.Stop(t)
	await(t, n, false)
	s.Start(t)
	await(t, n, true)
	if d.ClusterGoes {
		c = cluster(t, s)
		up = subscribe(t, c, topic.Observed.Every(), 1)
	}
	await(t, c, true)
	if d.ForgetsRetained {
		publish(t, c, topic.Desired, "n1", "before")
	}
	got.until(t, "before")
	publish(t, c, topic.Desired, "n1", "after")
	got.until(t, "after")
	publish(t, n, topic.Observed, "n1", "seen")
	up.until(t, "seen")
	closeAll(t, n, c)
}

func limits(t *testing.T, s System, _ Deviations) {
	c, n := cluster(t, s), node(t, s, Node{ID: "n1"})
	got := subscribe(t, n, topic.Desired.Of("n1"), 1)
	up := subscribe(t, c, topic.Observed.Every(), 1)
	whole := bytes.Repeat([]byte{'x'}, bus.MaxPayload)
	for _, side := range []struct {
		from  bus.Bus
		topic string
		to    received
	}{{c, topic.Desired.Of("n1"), got}, {n, topic.Observed.Of("n1"), up}} {
		err := side.from.Publish(within(t), bus.Message{Topic: side.topic, Payload: append(whole, 'x'), QoS: 1})
		if !errors.Is(err, bus.ErrTooBig) {
			t.Errorf("%s: one byte over the limit got %v", side.topic, err)
		}
		if err := side.from.Publish(within(t), bus.Message{Topic: side.topic, Payload: whole, QoS: 1}); err != nil {
			t.Fatalf("%s: a message at the limit got %v", side.topic, err)
		}
		if m := side.to.next(t); !bytes.Equal(m.Payload, whole) {
			t.Errorf("%s: %d bytes came", side.topic, len(m.Payload))
		}
	}
	closeAll(t, n, c)
}

func takesOver(t *testing.T, s System, _ Deviations) {
	c, n1 := cluster(t, s), node(t, s, Node{ID: "n1"})
	old := subscribe(t, n1, topic.Delta.Of("n1"), 1)
	publish(t, c, topic.Delta, "n1", "to the first")
	old.until(t, "to the first")
	lost := n1.Up()
	<-lost
	second := node(t, s, Node{ID: "n1"})
	select {
	case <-lost: // down, or already up again: only the latest state is kept
	case <-time.After(patience):
		t.Fatal("the first connection was left alone")
	}
	closeAll(t, n1) // else the two clients would disconnect each other forever
	await(t, second, true)
	got := subscribe(t, second, topic.Delta.Of("n1"), 1)
	for end := time.Now().Add(patience); ; { // the second may be between two connections
		if time.Now().After(end) {
			t.Fatal("the second connection hears nothing")
		}
		if err := c.Publish(within(t), bus.Message{Topic: topic.Delta.Of("n1"), Payload: []byte("to the second"), QoS: 1}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-got:
			closeAll(t, second, c)
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func reportsUp(t *testing.T, s System, _ Deviations) {
	n := node(t, s, Node{ID: "n1"})
	ch := n.Up()
	if !<-ch {
		t.Fatal("the present state of a connected bus is down")
	}
	s.Cut("n1")
	if <-ch {
		t.Fatal("up after the cut")
	}
	s.Mend("n1")
	if !<-ch {
		t.Fatal("down after mending")
	}
	closeAll(t, n)
	for range ch { // ends
	}
}

func closes(t *testing.T, s System, _ Deviations) {
	c, n := cluster(t, s), node(t, s, Node{ID: "n1"})
	closed := false
	if err := n.Subscribe(within(t), topic.Delta.Of("n1"), 1, func(bus.Message) {
		if closed {
			t.Error("a handler ran after Close")
		}
	}); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		publish(t, c, topic.Delta, "n1", "x")
	}
	closeAll(t, n)
	closed = true
	publish(t, c, topic.Delta, "n1", "unheard")
	if err := n.Publish(within(t), bus.Message{Topic: topic.Alive.Of("n1")}); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("publishing on a closed bus got %v", err)
	}
	if err := n.Subscribe(within(t), topic.Delta.Of("n1"), 1, nil); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("subscribing on a closed bus got %v", err)
	}
	closeAll(t, n, c)
}
