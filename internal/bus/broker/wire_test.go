package broker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
)

// TestMessagesHaveTheExpectedBytes measures the traffic of an idle node, including TLS but not TCP/IP. The budget is
// 2 KiB per minute.
func TestMessagesHaveTheExpectedBytes(t *testing.T) {
	s := start(t)
	const id = "n-4f2a9c1b"
	l := &bustest.Link{Addr: s.Addr}
	b, err := mqtt.Dial(mqtt.Options{
		ClientID: id, TLS: s.CA.Client(t, id), Dialer: l.Dial, Log: bustest.Quiet(), KeepAlive: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	alive, leases := make(chan bus.Message, 8), make(chan bus.Message, 8)
	for c := b.Up(); !<-c; {
	}
	if err := s.Bus().Subscribe(t.Context(), topic.Alive.Every(), 0, func(m bus.Message) { alive <- m }); err != nil {
		t.Fatal(err)
	}
	if err := b.Subscribe(t.Context(), topic.Lease.Of(id), 0, func(m bus.Message) { leases <- m }); err != nil {
		t.Fatal(err)
	}
	connect, connectBack := l.Sent.Load(), l.Received.Load()

	// On a busy machine a ping may add to a measurement: use the least of three.
	var aliveBytes, aliveWrites, leaseBytes []int64
	for range 3 {
		sent, writes := l.Sent.Load(), l.Writes.Load()
		if err := b.Publish(t.Context(), bus.Message{Topic: topic.Alive.Of(id), Payload: make([]byte, 26)}); err != nil {
			t.Fatal(err)
		}
		<-alive
		aliveBytes, aliveWrites = append(aliveBytes, l.Sent.Load()-sent), append(aliveWrites, l.Writes.Load()-writes)

		received := l.Received.Load()
		if err := s.Bus().Publish(t.Context(), bus.Message{Topic: topic.Lease.Of(id), Payload: make([]byte, 8)}); err != nil {
			t.Fatal(err)
		}
		<-leases
		leaseBytes = append(leaseBytes, l.Received.Load()-received)
	}
	each := slices.Min(aliveBytes)
	if n := slices.Min(aliveWrites); n != 1 {
		t.Errorf("one alive took %d writes, so as many packets", n)
	}

	sent, received := l.Sent.Load(), l.Received.Load()
	deadline := time.After(time.Minute)
	for l.Received.Load() == received { // the ping's answer, after a second of silence
		select {
		case <-deadline:
			t.Fatal("no ping")
		case <-time.After(10 * time.Millisecond):
		}
	}
	ping, pong := l.Sent.Load()-sent, l.Received.Load()-received

	const perMinute = 60 / 2.5
	total := perMinute*float64(each) + float64(ping+pong)
	t.Logf("connect and subscribe %d + %d back; alive %d; lease of 8 bytes %d; ping %d + %d back; an alive each 2.5 s and a ping a minute: %.0f bytes",
		connect, connectBack, each, slices.Min(leaseBytes), ping, pong, total)
	if each > 80 || total > 2048 {
		t.Errorf("an alive of 26 bytes costs %d bytes, an idle minute %.0f", each, total)
	}
}
