package broker_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/broker"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// raw is a TLS connection as a node, before any MQTT.
func raw(t testing.TB, s *system, name string) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", s.Addr, s.CA.Client(t, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

func str(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

func packet(first byte, parts ...[]byte) []byte {
	var body []byte
	for _, p := range parts {
		body = append(body, p...)
	}
	out := []byte{first}
	n := len(body)
	for {
		b := byte(n & 0x7f)
		if n >>= 7; n > 0 {
			b |= 0x80
		}
		out = append(out, b)
		if n == 0 {
			return append(out, body...)
		}
	}
}

func connectPacket(version byte, clientID string) []byte {
	parts := [][]byte{str("MQTT"), {version, 0x02, 0, 60}}
	if version == 5 {
		parts = append(parts, []byte{0})
	}
	return packet(0x10, append(parts, str(clientID))...)
}

// expect reads exactly these bytes.
func expect(t testing.TB, c net.Conn, want ...byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != string(want) {
		t.Fatalf("got % x, %v; want % x", got, err, want)
	}
}

// expectClosed reads to the end.
func expectClosed(t testing.TB, c net.Conn) {
	t.Helper()
	n, err := io.Copy(io.Discard, c)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Fatal("the connection stays open")
	}
	if n > 0 {
		t.Fatalf("%d bytes came", n)
	}
}

func connected(t testing.TB, s *system, name string) *tls.Conn {
	t.Helper()
	c := raw(t, s, name)
	if _, err := c.Write(connectPacket(4, name)); err != nil {
		t.Fatal(err)
	}
	expect(t, c, 0x20, 2, 0, 0)
	return c
}

func TestDeclaredLengthIsRefusedBeforeItIsAllocated(t *testing.T) {
	s := start(t)
	const most = 1 << 20
	allocated := func(do func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	huge := []byte{0xff, 0xff, 0xff, 0x7f} // 256 MiB less one
	for name, first := range map[string]byte{"as CONNECT": 0x10, "as PUBLISH": 0x30} {
		c := raw(t, s, "n1")
		if n := allocated(func() {
			_, _ = c.Write(append([]byte{first}, huge...))
			expectClosed(t, c)
		}); n > most {
			t.Errorf("%s: %d bytes were allocated", name, n)
		}
	}
	c := connected(t, s, "n1")
	if n := allocated(func() {
		_, _ = c.Write(append([]byte{0x30}, huge...))
		expectClosed(t, c)
	}); n > most {
		t.Errorf("after CONNECT: %d bytes were allocated", n)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	s := start(t)
	t.Run("without a certificate", func(t *testing.T) {
		conf := s.CA.Client(t, "n1")
		conf.GetClientCertificate = nil
		c, err := tls.Dial("tcp", s.Addr, conf)
		if err == nil { // with TLS 1.3 the first read returns the error
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if err == nil {
			t.Error("it was let in")
		}
	})
	t.Run("of another CA", func(t *testing.T) {
		conf := bustest.NewCA(t).Client(t, "n1")
		conf.RootCAs = s.CA.Client(t, "n1").RootCAs
		c, err := tls.Dial("tcp", s.Addr, conf)
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if err == nil {
			t.Error("it was let in")
		}
	})
	for name, p := range map[string][]byte{
		"with another's client id":          connectPacket(4, "n2"),
		"with a longer name":                connectPacket(4, "n10"),
		"without a client id":               connectPacket(4, ""),
		"with another's will":               packet(0x10, str("MQTT"), []byte{4, 0x06, 0, 60}, str("n1"), str("nodes/n2/will"), str("x")),
		"with a will that pretends desired": packet(0x10, str("MQTT"), []byte{4, 0x06, 0, 60}, str("n1"), str("nodes/n1/desired"), str("x")),
	} {
		t.Run(name, func(t *testing.T) {
			c := raw(t, s, "n1")
			_, _ = c.Write(p)
			expect(t, c, 0x20, 2, 0, 5)
			expectClosed(t, c)
		})
	}
	t.Run("who is revoked", func(t *testing.T) {
		s.mu.Lock()
		s.revoked["n9"] = true
		s.mu.Unlock()
		c := raw(t, s, "n9")
		_, _ = c.Write(connectPacket(4, "n9"))
		expectClosed(t, c)
	})
	if s.Stats().Connects.Load() != 0 || s.Stats().Refusals.Load() == 0 {
		t.Errorf("%d connects, %d refusals", s.Stats().Connects.Load(), s.Stats().Refusals.Load())
	}
}

func TestSilentConnectionsAreClosedSoon(t *testing.T) {
	const wait = time.Second
	s := startWith(t, wait)
	began := time.Now()
	c, err := tls.Dial("tcp", s.Addr, s.CA.Client(t, "n1"))
	if err != nil && time.Since(began) >= wait {
		return // the machine paused; the broker still did not wait
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	expectClosed(t, c)
}

// mochi-mqtt panics on a truncated MQTT 5 SUBSCRIBE, and does not recover:
// https://github.com/mochi-mqtt/server/issues/501.
func TestMQTT5IsRefusedBeforeItIsParsed(t *testing.T) {
	s := start(t)
	c := raw(t, s, "n1")
	_, _ = c.Write(connectPacket(5, "n1"))
	_, _ = c.Write(packet(0x82, []byte{0, 1, 0}, str("nodes/n1/desired")))
	expect(t, c, 0x20, 2, 0, 1)
	expectClosed(t, c)
	connected(t, s, "n1")
	if n := s.Stats().Panics.Load(); n != 0 {
		t.Errorf("%d panics", n)
	}
}

// Malformed packets after CONNECT end their connection only. The advisory GO-2024-3307
// (CVE-2024-50948) names no packet; these kinds have crashed brokers.
func TestMalformedPacketsEndOnlyTheirConnection(t *testing.T) {
	s := start(t)
	witness := connected(t, s, "n2")
	for name, p := range map[string][]byte{
		"second CONNECT":              connectPacket(4, "n1"),
		"SUBSCRIBE without QoS":       packet(0x82, []byte{0, 1}, str("nodes/n1/desired")),
		"SUBSCRIBE without filters":   packet(0x82, []byte{0, 1}),
		"SUBSCRIBE with QoS 3":        packet(0x82, []byte{0, 1}, str("nodes/n1/desired"), []byte{3}),
		"UNSUBSCRIBE cut off":         packet(0xa2, []byte{0, 1, 0, 200, 'n'}),
		"PUBLISH of QoS 3":            packet(0x36, str("nodes/n1/alive"), []byte{0, 1}),
		"PUBLISH without topic":       packet(0x30, str("")),
		"PUBLISH with a wildcard":     packet(0x32, str("nodes/+/alive"), []byte{0, 1}, []byte("x")),
		"PUBLISH cut off":             packet(0x32, []byte{0, 200, 'n'}),
		"PUBLISH without packet id":   packet(0x32, str("nodes/n1/observed")),
		"PUBACK without packet id":    packet(0x40),
		"PUBREL without packet id":    packet(0x62),
		"AUTH":                        packet(0xf0),
		"reserved type":               packet(0x00),
		"length that never ends":      {0x30, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01},
		"topic that is not UTF-8":     packet(0x30, str("nodes/n1/\xff\xfe")),
		"shared subscription, no end": packet(0x82, []byte{0, 1}, str("$share/"), []byte{0}),
	} {
		t.Run(name, func(t *testing.T) {
			c := connected(t, s, "n1")
			_, _ = c.Write(p)
			_, _ = c.Write([]byte{0xe0, 0}) // DISCONNECT, in case the packet was ignored
			_, _ = io.Copy(io.Discard, c)
			_, _ = witness.Write([]byte{0xc0, 0})
			expect(t, witness, 0xd0, 0)
		})
	}
	if n := s.Stats().Panics.Load(); n != 0 {
		t.Errorf("%d panics", n)
	}
}

func TestWildcardsAndSharesAreRefused(t *testing.T) {
	s := start(t)
	c := connected(t, s, "n1")
	for _, f := range []string{"#", "+/+/+", "nodes/n1/+", "nodes/n1/#", "$SYS/#", "$share/g/nodes/n1/desired", "nodes/n2/desired", "nodes/n1/alive"} {
		_, _ = c.Write(packet(0x82, []byte{0, 1}, str(f), []byte{1}))
		expect(t, c, 0x90, 3, 0, 1, 0x80)
	}
	_, _ = c.Write(packet(0x82, []byte{0, 1}, str("nodes/n1/desired"), []byte{1}))
	expect(t, c, 0x90, 3, 0, 1, 1)
}

func TestNodesCannotTakeOverEachOthersSessions(t *testing.T) {
	s := start(t)
	// "a-b" may be node a's second session, or node a-b.
	first := raw(t, s, "a")
	_, _ = first.Write(connectPacket(4, "a-b"))
	expect(t, first, 0x20, 2, 0, 0)
	second := connected(t, s, "a-b")
	main := connected(t, s, "a")
	for _, c := range []net.Conn{first, second, main} {
		_, _ = c.Write([]byte{0xc0, 0})
		expect(t, c, 0xd0, 0)
	}
	if n := s.Stats().Clients.Load(); n != 3 {
		t.Errorf("%d clients", n)
	}
}

// A session that ends while the next one of its name begins does not remove the subscriptions of the
// new one: mochi-mqtt removes subscriptions by the client's ID.
func TestTheEndOfASessionLeavesItsSuccessor(t *testing.T) {
	s := start(t)
	about := topic.Delta.Of("n1")
	for range 200 {
		old, next := connected(t, s, "n1"), raw(t, s, "n1")
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = old.Write([]byte{0xe0, 0}) // DISCONNECT
		}()
		_, _ = next.Write(connectPacket(4, "n1"))
		expect(t, next, 0x20, 2, 0, 0)
		_, _ = next.Write(packet(0x82, []byte{0, 1}, str(about), []byte{0}))
		expect(t, next, 0x90, 3, 0, 1, 0)
		<-gone
		_, _ = io.Copy(io.Discard, old) // mochi-mqtt has ended the session, or soon will
		_ = old.NetConn().Close()
		if err := s.Bus().Publish(t.Context(), bus.Message{Topic: about, Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		expect(t, next, append([]byte{0x30, byte(3 + len(about)), 0, byte(len(about))}, about+"x"...)...)
		_ = next.NetConn().Close()
	}
}

func TestTakeoverPublishesNoWill(t *testing.T) {
	s := start(t)
	wills := make(chan bus.Message, 8)
	if err := s.Bus().Subscribe(t.Context(), topic.Will.Every(), 1, func(m bus.Message) { wills <- m }); err != nil {
		t.Fatal(err)
	}
	withWill := packet(0x10, str("MQTT"), []byte{4, 0x06, 0, 60}, str("n1"), str("nodes/n1/will"), str("x"))
	first, second := raw(t, s, "n1"), raw(t, s, "n1")
	for _, c := range []net.Conn{first, second} {
		_, _ = c.Write(withWill)
		expect(t, c, 0x20, 2, 0, 0)
	}
	_, _ = io.Copy(io.Discard, first)
	second.NetConn().Close()
	<-wills // the will of the second session
	s.Stop(t)
	if len(wills) > 0 {
		t.Error("a will came for the session that was taken over")
	}
}

func TestRevokedNodeIsDisconnected(t *testing.T) {
	s := start(t)
	gone, stays := connected(t, s, "n1"), connected(t, s, "n2")
	s.mu.Lock()
	s.revoked["n1"] = true
	s.mu.Unlock()
	s.Disconnect("n1")
	_, _ = io.Copy(io.Discard, gone)
	_, _ = stays.Write([]byte{0xc0, 0})
	expect(t, stays, 0xd0, 0)
	again := raw(t, s, "n1")
	_, _ = again.Write(connectPacket(4, "n1"))
	expectClosed(t, again)
}

// A node that stops reading is disconnected, and does not block others before that.
func TestANodeThatDoesNotReadStallsNoOther(t *testing.T) {
	s := start(t)
	deaf := connected(t, s, "n1")
	_, _ = deaf.Write(packet(0x82, []byte{0, 1}, str("nodes/n1/delta"), []byte{1}))
	expect(t, deaf, 0x90, 3, 0, 1, 1)
	payload := make([]byte, bus.MaxPayload)
	for range 64 { // far more than the buffers of sockets and queues
		if err := s.Bus().Publish(t.Context(), bus.Message{Topic: "nodes/n1/delta", Payload: payload, QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
	other := connected(t, s, "n2")
	_, _ = other.Write([]byte{0xc0, 0})
	expect(t, other, 0xd0, 0)
	if s.Stats().Dropped.Load() == 0 {
		t.Error("nothing was dropped")
	}
	_, _ = io.Copy(io.Discard, deaf) // the broker closes the connection
}

func TestConnectionsOfAnotherListenerAreServed(t *testing.T) {
	s := start(t)
	conf := s.CA.Server(t)
	conf.NextProtos = []string{"h2", "mqtt"}
	l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.(*tls.Conn).Handshake()
		}
		if err == nil {
			err = s.ServeConn(context.Background(), c.(*tls.Conn))
		}
		served <- err
	}()
	client := s.CA.Client(t, "n1")
	client.NextProtos = []string{"mqtt"}
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write(connectPacket(4, "n1"))
	expect(t, c, 0x20, 2, 0, 0)
	if p := c.ConnectionState().NegotiatedProtocol; p != "mqtt" {
		t.Errorf("ALPN chose %q", p)
	}
	_, _ = c.Write([]byte{0xe0, 0})
	c.Close()
	if err := <-served; err != nil {
		t.Errorf("a graceful end gave %v", err)
	}
}

func TestSilentHandshakesLeaveRoomForNodes(t *testing.T) {
	s := startWith(t, time.Minute)
	for range 300 { // they stay open until the end of the test
		c, err := net.Dial("tcp", s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	connected(t, s, "n1")
}

// One certificate opens 400 sessions as fast as it can: some silent after the handshake, some with
// CONNECTs under new client ids.
func TestSessionsOfOneCertificateAreBounded(t *testing.T) {
	s := start(t)
	s.Stop(t)
	s.burst = 0 // the default, as in a cluster
	s.Start(t)
	quiet := connected(t, s, "quiet")
	conf := s.CA.Client(t, "loud")
	for i := range 400 {
		c, err := tls.Dial("tcp", s.Addr, conf)
		if err != nil {
			continue // already refused
		}
		defer c.Close()
		if i%2 == 0 {
			_, _ = c.Write(connectPacket(4, fmt.Sprintf("loud-%d", i)))
		}
	}
	for end := time.Now().Add(time.Minute); s.Stats().Clients.Load() > 5; {
		if time.Now().After(end) {
			t.Fatalf("%d connections are open, want 4 of the loud node and one of the quiet", s.Stats().Clients.Load())
		}
		time.Sleep(time.Millisecond) // evicted connections are closing
	}
	if n := s.Stats().Connects.Load(); n > 60 {
		t.Errorf("%d sessions began, want some 20 of the loud node", n)
	}
	connected(t, s, "other")
	if _, err := quiet.Write([]byte{0xc0, 0}); err != nil { // PINGREQ
		t.Fatal(err)
	}
	expect(t, quiet, 0xd0, 0)
}

func TestMessagesToTheClusterAreNotLost(t *testing.T) {
	s := start(t)
	const nodes, each = 4, 5000
	got := make(map[string]int)
	done := make(chan struct{})
	count := 0
	err := s.Bus().Subscribe(t.Context(), topic.Alive.Every(), 0, func(m bus.Message) {
		if len(m.Payload) != 4 || int(binary.BigEndian.Uint32(m.Payload)) != got[m.Topic] {
			t.Errorf("%s: % x came after %d messages", m.Topic, m.Payload, got[m.Topic])
		}
		got[m.Topic]++
		if count++; count == nodes*each {
			close(done)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		c := connected(t, s, name)
		go func() {
			for i := range each {
				_, _ = c.Write(packet(0x30, str("nodes/"+name+"/alive"), binary.BigEndian.AppendUint32(nil, uint32(i))))
			}
		}()
	}
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("of %d the last did not come", nodes*each)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := broker.New(broker.Options{}); err == nil {
		t.Error("a broker without Identify was made")
	}
}
