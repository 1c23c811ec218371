package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/relaywire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	secret = []byte("a node's secret")
	local  = netip.MustParseAddrPort("127.0.0.1:0")
)

func start(t *testing.T, o Options) *Relay {
	t.Helper()
	o.Listen = local
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// peer is a UDP socket that sends and receives.
type peer struct {
	t    *testing.T
	conn *net.UDPConn
	seq  uint64
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &peer{t: t, conn: c}
}

func (p *peer) addr() netip.AddrPort { return p.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (p *peer) send(to netip.AddrPort, b []byte) {
	p.t.Helper()
	if _, err := p.conn.WriteToUDPAddrPort(b, to); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) receive() []byte {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 1<<16)
	n, _, err := p.conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		p.t.Fatal(err)
	}
	return buf[:n]
}

// bind binds a slot and returns the answer.
func (p *peer) bind(r *Relay, slot uint32) relaywire.Answer {
	p.t.Helper()
	p.seq++
	return p.ask(r.Addr(), relaywire.Request{Slot: slot, Seq: p.seq, Bind: true})
}

func (p *peer) ask(at netip.AddrPort, req relaywire.Request) relaywire.Answer {
	p.t.Helper()
	p.send(at, req.Append(nil, secret))
	a, err := relaywire.ParseAnswer(p.receive(), secret)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

func frame(slot uint32, ticket uint64, payload string) []byte {
	return append(relaywire.AppendFrame(nil, relaywire.Header{Slot: slot, Ticket: ticket}), payload...)
}

func TestDatagramsAreForwardedToTheBoundAddress(t *testing.T) {
	r := start(t, Options{})
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	node, other := newPeer(t), newPeer(t)
	if a := node.bind(r, 7); a.Result != relaywire.Bound || a.Addr != node.addr() || a.Alt == 0 {
		t.Fatalf("bind of the node: %+v, want its address bound", a)
	}
	other.send(r.Addr(), frame(7, 99, "hello"))
	if got := node.receive(); string(got) != "hello" {
		t.Errorf("the node received %q, want \"hello\"", got)
	}
	// The node has a new address.
	moved := newPeer(t)
	moved.seq = node.seq
	moved.bind(r, 7)
	other.send(r.Addr(), frame(7, 99, "again"))
	if got := moved.receive(); string(got) != "again" {
		t.Errorf("the moved node received %q, want \"again\"", got)
	}
	// A new ticket keeps the binding and invalidates the old ticket.
	r.Set(7, Slot{Node: "n7", Ticket: 100, Secret: secret})
	other.send(r.Addr(), frame(7, 99, "old"))
	other.send(r.Addr(), frame(7, 100, "new"))
	if got := moved.receive(); string(got) != "new" {
		t.Errorf("the moved node received %q, want \"new\"", got)
	}
}

// Runs of datagrams of equal length, mixed with others, arrive unchanged.
func TestRunsOfDatagramsAreForwardedWhole(t *testing.T) {
	r := start(t, Options{})
	node := newPeer(t)
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	r.Set(8, Slot{Node: "n8", Ticket: 98, Secret: secret})
	node.bind(r, 7)
	second := newPeer(t)
	second.bind(r, 8)
	from := r.main.NewSender() // any socket can send
	var want []string
	for i := range 40 {
		var run []byte
		slot, ticket := uint32(7), uint64(99)
		for j := range 5 {
			payload := fmt.Sprintf("%02d-%02d", i, j)
			if j == 3 {
				run = append(run, frame(8, 98, payload)...)
				continue
			}
			want = append(want, payload)
			run = append(run, frame(slot, ticket, payload)...)
		}
		if err := from.Send(r.Addr(), run, relaywire.HeaderLen+5); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if got := string(node.receive()); got != want[0] {
				t.Fatalf("got %q, want %q", got, want[0])
			}
			want = want[1:]
		}
		if got := string(second.receive()); got != fmt.Sprintf("%02d-03", i) {
			t.Fatalf("the second got %q", got)
		}
	}
}

func TestARunHasOneHeader(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		each, n := relaywire.HeaderLen+1+rng.IntN(50), 1+rng.IntN(8)
		var run []byte
		for i := range n {
			size := each
			if i == n-1 {
				size = relaywire.HeaderLen + 1 + rng.IntN(each-relaywire.HeaderLen)
			}
			run = append(run, frame(1, 2, strings.Repeat("x", size-relaywire.HeaderLen))...)
		}
		if got := runOf(run, each); got != len(run) {
			t.Fatalf("%d of %d bytes are one run", got, len(run))
		}
		if got := runOf(append(slices.Repeat(frame(1, 2, "x"), n), frame(1, 3, "x")...), relaywire.HeaderLen+1); got != n*(relaywire.HeaderLen+1) {
			t.Fatalf("%d bytes are one run, of %d datagrams with one header and one with another", got, n)
		}
	}
}

func TestForgedAndReplayedBindsAreRefused(t *testing.T) {
	r := start(t, Options{})
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	node, thief := newPeer(t), newPeer(t)
	old := relaywire.Request{Slot: 7, Seq: 5, Bind: true}.Append(nil, secret)
	node.seq = 9
	node.bind(r, 7)

	thief.send(r.Addr(), relaywire.Request{Slot: 7, Seq: 1000, Bind: true}.Append(nil, []byte("guessed")))
	thief.send(r.Addr(), relaywire.Request{Slot: 8, Seq: 1000, Bind: true}.Append(nil, secret))
	thief.send(r.Addr(), []byte{relaywire.TypeRequest})
	thief.send(r.Addr(), nil)
	thief.send(r.Addr(), frame(7, 98, "wrong ticket"))
	thief.send(r.Addr(), frame(9, 99, "no such slot"))
	thief.send(r.Addr(), old) // a replayed request: the stale answer goes to the replaying address only
	a, err := relaywire.ParseAnswer(thief.receive(), secret)
	if err != nil || a.Result != relaywire.Stale || a.Last != 10 {
		t.Fatalf("answer to a stale bind: %+v %v, want Stale with sequence number 10", a, err)
	}
	thief.send(r.Addr(), frame(7, 99, "for the node"))
	if got := node.receive(); string(got) != "for the node" {
		t.Errorf("the node received %q, want \"for the node\"", got)
	}
	s := r.Stats()
	for ; s[Datagrams] == 0; s = r.Stats() { // datagrams are counted shortly after they are sent
		runtime.Gosched()
	}
	if s[Strangers] != 2 || s[Malformed] != 2 || s[Unknown] != 2 || s[Datagrams] != 1 {
		t.Errorf("unexpected statistics of the relay: %+v", s)
	}
	// After the node's clock was set back, the answer has the last sequence number.
	if a := node.ask(r.Addr(), relaywire.Request{Slot: 7, Seq: 1, Bind: true}); a.Result != relaywire.Stale {
		t.Errorf("bind with an old sequence number: %+v, want Stale", a)
	}
	if a := node.ask(r.Addr(), relaywire.Request{Slot: 7, Seq: a.Last + 1, Bind: true}); a.Result != relaywire.Bound {
		t.Errorf("bind with the next sequence number: %+v, want Bound", a)
	}
}

func TestAnAnswerWithoutRequestChangesNothing(t *testing.T) {
	r := start(t, Options{})
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	node, probe := newPeer(t), newPeer(t)
	a := node.bind(r, 7)
	if got := probe.ask(r.Addr(), relaywire.Request{Slot: 7, Seq: 10}); got.Result != relaywire.Seen || got.Addr != probe.addr() {
		t.Errorf("probe of the relay: %+v, want Seen with the prober's address", got)
	}
	alt := netip.AddrPortFrom(r.Addr().Addr(), a.Alt)
	if got := probe.ask(alt, relaywire.Request{Slot: 7, Seq: 11, Bind: true}); got.Result != relaywire.Seen {
		t.Errorf("bind at the alternative port: %+v, want Seen", got)
	}
	if at, _ := r.Where(7); at != node.addr() {
		t.Errorf("bound at %v", at)
	}
	late := probe.ask(r.Addr(), relaywire.Request{Slot: 7, Seq: 12, Late: time.Second})
	if late.Late || late.Result != relaywire.Seen {
		t.Errorf("first answer to a late probe: %+v, want Seen and not late", late)
	}
	if got, err := relaywire.ParseAnswer(probe.receive(), secret); err != nil || !got.Late || got.Seq != 12 {
		t.Errorf("second answer to a late probe: %+v %v, want late with sequence number 12", got, err)
	}
}

func TestADroppedSlotReceivesNothing(t *testing.T) {
	r := start(t, Options{})
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	newPeer(t).bind(r, 7)
	r.Drop(7)
	r.Drop(7)
	if at, tls := r.Where(7); at.IsValid() || tls {
		t.Errorf("still at %v", at)
	}
	r.Set(7, Slot{Node: "another", Ticket: 99, Secret: secret})
	if at, _ := r.Where(7); at.IsValid() {
		t.Errorf("another's slot leads to %v", at)
	}
}

func TestRateIsBounded(t *testing.T) {
	b := newLimiter(1e6)
	now, passed := time.Unix(0, 0), 0
	for range 10_000 { // 10 s
		for range 10 {
			if b.AllowN(now, 1500) {
				passed += 1500
			}
		}
		now = now.Add(time.Millisecond)
	}
	if passed < 10e6 || passed > 10e6+minBurst+1500 {
		t.Errorf("%d bytes pass in 10 s at 1 MB/s, want 10 MB and the burst", passed)
	}
}

// stream connects a node over a pipe, as Serve does over TLS.
func connect(t *testing.T, r *Relay, node api.NodeID) (net.Conn, *bufio.Reader) {
	t.Helper()
	near, far := tcpPair(t)
	done := make(chan error, 1)
	go func() { done <- r.serve(context.Background(), node, far) }()
	t.Cleanup(func() {
		_ = near.Close()
		<-done
	})
	in := bufio.NewReader(near)
	writeMessage(t, near, nil) // the slot is bound once the relay answers
	if got := readMessage(t, near, in); len(got) != 0 {
		t.Fatalf("the first message is %q, want an empty one", got)
	}
	return near, in
}

func tcpPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if near, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

func writeMessage(t *testing.T, c net.Conn, msg []byte) {
	t.Helper()
	if _, err := c.Write(relaywire.AppendMessage(nil, msg)); err != nil {
		t.Fatal(err)
	}
}

func readMessage(t *testing.T, c net.Conn, in *bufio.Reader) []byte {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	msg, err := relaywire.ReadMessage(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

func TestNodeWithoutUDP(t *testing.T) {
	foreign := newPeer(t) // another cluster's relay
	r := start(t, Options{Allow: func(a netip.AddrPort) bool { return a == foreign.addr() }})
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	r.Set(8, Slot{Node: "n8", Ticket: 98, Secret: secret})
	udp := newPeer(t)
	udp.bind(r, 8)
	conn, in := connect(t, r, "n7")

	udp.send(r.Addr(), frame(7, 99, "down"))
	if got := readMessage(t, conn, in); string(got) != "down" {
		t.Errorf("received %q over TLS, want \"down\"", got)
	}
	writeMessage(t, conn, frame(8, 98, "across"))
	if got := udp.receive(); string(got) != "across" {
		t.Errorf("received %q over UDP, want \"across\"", got)
	}
	writeMessage(t, conn, append(relaywire.AppendTo(nil, udp.addr()), frame(1, 2, "nowhere")...))
	want := frame(1, 2, "out")
	writeMessage(t, conn, append(relaywire.AppendTo(nil, foreign.addr()), want...))
	if got := foreign.receive(); !bytes.Equal(got, want) {
		t.Errorf("the foreign node received %q, want the forwarded frame", got)
	}
	if s := r.Stats(); s[Denied] != 1 || s[Streams] != 1 {
		t.Errorf("statistics are %+v, want 1 denied and 1 stream", s)
	}
	// UDP works again: the newer binding counts, and the connection ends.
	back := newPeer(t)
	back.bind(r, 7)
	if _, err := in.ReadByte(); err == nil {
		t.Error("the connection goes on")
	}
	udp.send(r.Addr(), frame(7, 99, "by UDP"))
	if got := back.receive(); string(got) != "by UDP" {
		t.Errorf("received %q, want \"by UDP\"", got)
	}
}

// TestNewConnectionsShareTheOldRate: reconnecting does not let a node exceed its rate.
func TestNewConnectionsShareTheOldRate(t *testing.T) {
	r := start(t, Options{Rate: 1}) // the burst is minBurst
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	const connections, messages, size = 5, 4, 60_000
	for range connections {
		conn, in := connect(t, r, "n7")
		for range messages {
			writeMessage(t, conn, frame(8, 98, string(make([]byte, size))))
		}
		writeMessage(t, conn, nil) // the answer shows that all earlier messages were processed
		readMessage(t, conn, in)
	}
	if got, want := r.Stats()[Limited], int64(connections*messages-minBurst/size); got != want {
		t.Errorf("%d of %d messages over %d connections were refused, want %d", got, connections*messages, connections, want)
	}
}

func TestSecondConnectionReplacesTheFirst(t *testing.T) {
	r := start(t, Options{})
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	_, first := connect(t, r, "n7")
	conn, in := connect(t, r, "n7")
	if _, err := first.ReadByte(); err == nil {
		t.Error("the first goes on")
	}
	newPeer(t).send(r.Addr(), frame(7, 99, "down"))
	if got := readMessage(t, conn, in); string(got) != "down" {
		t.Errorf("received %q over TLS, want \"down\"", got)
	}
	near, far := tcpPair(t)
	defer near.Close()
	defer far.Close()
	if err := r.serve(context.Background(), "stranger", far); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a node without a slot: %v", err)
	}
}

func TestTheRelayWorksDuringAFlood(t *testing.T) {
	r := start(t, Options{})
	r.Set(7, Slot{Node: "n7", Ticket: 99, Secret: secret})
	node, flood := newPeer(t), newPeer(t)
	node.bind(r, 7)
	rng := rand.New(rand.NewPCG(4, 4))
	for range 20_000 {
		b := make([]byte, rng.IntN(120))
		for i := range b {
			b[i] = byte(rng.IntN(256))
		}
		if len(b) > 0 {
			b[0] = []byte{relaywire.TypeFrame, relaywire.TypeRequest, 0, 7}[rng.IntN(4)]
		}
		flood.send(r.Addr(), b)
	}
	for { // until the flood in the kernel's buffers is processed
		node.send(r.Addr(), frame(7, 99, "alive"))
		_ = node.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		buf := make([]byte, 100)
		if n, _, err := node.conn.ReadFromUDPAddrPort(buf); err == nil && string(buf[:n]) == "alive" {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("dead")
		}
	}
}
