package resolver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeOverlay is an Overlay with the answers that the test puts into it.
type fakeOverlay struct {
	mu      sync.Mutex
	known   map[string]overlay.Answer
	asked   int
	shut    bool // no address is local
	stuck   bool // Covers blocks
	lookups chan string
}

func (b *fakeOverlay) Local(netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.shut
}

func (b *fakeOverlay) Covers(ctx context.Context, name string) (bool, error) {
	if b.stuck {
		<-ctx.Done()
		return false, ctx.Err()
	}
	a, ok := names.Reverse(name)
	return ok && a.Is4() && a.As4()[0] == 10, nil
}

func (b *fakeOverlay) Lookup(_ context.Context, _ netip.Addr, name string) (overlay.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if b.lookups != nil {
		select {
		case b.lookups <- name:
		default:
		}
	}
	return b.known[strings.ToLower(name)], nil
}

func (b *fakeOverlay) write(name string, a overlay.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known[name] = a
}

// sockets returns a UDP and a TCP socket on one free port.
func sockets(t testing.TB) (net.PacketConn, net.Listener) {
	t.Helper()
	for {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", pc.LocalAddr().String())
		if err == nil {
			return pc, ln
		}
		_ = pc.Close()
		if !errors.Is(err, unix.EADDRINUSE) { // otherwise a TCP connection already has that port
			t.Fatal(err)
		}
	}
}

// serve runs a resolver on loopback until the test ends.
func serve(t testing.TB, c Config) (r *Resolver, at string) {
	t.Helper()
	pc, ln := sockets(t)
	r = New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx, pc, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r, pc.LocalAddr().String()
}

func ask(t testing.TB, network, at, name string, kind uint16) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Timeout: time.Minute}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, kind), at)
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.TypeToString[kind], err)
	}
	return m
}

func newFakeOverlay() *fakeOverlay {
	ip := netip.MustParseAddr
	return &fakeOverlay{known: map[string]overlay.Answer{
		"web.treeline.":           {Known: true, Found: true, Addrs: []netip.Addr{ip("10.30.0.1")}, Addrs6: []netip.Addr{ip("fd74:6c6e:2::a1e:1")}, Stay: time.Hour},
		"old.treeline.":           {Known: true, Found: true, Addrs: []netip.Addr{ip("10.30.0.2")}, Stay: 1500 * time.Millisecond},
		"not.treeline.":           {Known: true},
		"2.0.30.10.in-addr.arpa.": {Known: true},
		"any.rr.not.treeline.":    {Known: true, Failed: true},
		"any.rr.new.treeline.":    {Failed: true},
		"_http._tcp.web.treeline.": {Known: true, Found: true, SRV: []overlay.Target{
			{Name: "0.instance.web.eu.shop.prod.treeline.", Address: ip("10.30.0.7"), Address6: ip("fd74:6c6e:2::a1e:7"), Port: 8080, Weight: 1},
		}},
		"treeline.":               {Known: true, Found: true},
		"1.0.30.10.in-addr.arpa.": {Known: true, Found: true, PTR: "any.rr.web.eu.shop.prod.treeline."},
	}}
}

func TestOwnNames(t *testing.T) {
	_, at := serve(t, Config{Overlay: newFakeOverlay()})
	for _, c := range []struct {
		name  string
		kind  uint16
		rcode int
		want  string
	}{
		{"web.treeline.", dns.TypeA, 0, "web.treeline.\t5\tIN\tA\t10.30.0.1"},
		{"WeB.TREEline.", dns.TypeA, 0, "WeB.TREEline.\t5\tIN\tA\t10.30.0.1"},
		{"web.treeline.", dns.TypeAAAA, 0, "web.treeline.\t5\tIN\tAAAA\tfd74:6c6e:2::a1e:1"},
		{"old.treeline.", dns.TypeA, 0, "old.treeline.\t1\tIN\tA\t10.30.0.2"},
		{"old.treeline.", dns.TypeAAAA, 0, ""},
		{"web.treeline.", dns.TypeTXT, 0, ""},
		{"not.treeline.", dns.TypeA, dns.RcodeNameError, ""},
		{"_http._tcp.web.treeline.", dns.TypeSRV, 0, "_http._tcp.web.treeline.\t0\tIN\tSRV\t0 1 8080 0.instance.web.eu.shop.prod.treeline."},
		{"1.0.30.10.in-addr.arpa.", dns.TypePTR, 0, "1.0.30.10.in-addr.arpa.\t0\tIN\tPTR\tany.rr.web.eu.shop.prod.treeline."},
		{"web.treeline.", dns.TypeSRV, 0, ""},
		{"web.treeline.", dns.TypePTR, 0, ""},
		{"web.treeline.", dns.TypeSOA, 0, ""},
		{"web.treeline.", dns.TypeHTTPS, 0, ""},
		{"_http._tcp.web.treeline.", dns.TypeA, 0, ""},
		{"1.0.30.10.in-addr.arpa.", dns.TypeTXT, 0, ""},
		{"2.0.30.10.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, ""},
		{"treeline.", dns.TypeA, 0, ""},
		{"Treeline.", dns.TypeSOA, 0, "treeline.\t1\tIN\tSOA\tresolver.treeline. nobody.treeline. 1 5 1 5 1"},
		{"any.rr.not.treeline.", dns.TypeA, dns.RcodeServerFailure, ""},
		{"web.treeline.", dns.TypeANY, dns.RcodeNotImplemented, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			m := ask(t, network, at, c.name, c.kind)
			got := ""
			for _, rr := range m.Answer {
				got += rr.String()
			}
			if m.Rcode != c.rcode || got != c.want {
				t.Errorf("%s %s by %s: %s %q, want %q", c.name, dns.TypeToString[c.kind], network, dns.RcodeToString[m.Rcode], got, c.want)
			}
			if len(m.Answer) == 0 && m.Rcode != dns.RcodeNotImplemented && m.Rcode != dns.RcodeServerFailure && (len(m.Ns) != 1 || m.Ns[0].Header().Ttl > maxTTL) {
				t.Errorf("%s: nothing, and how long says %v", c.name, m.Ns)
			}
		}
	}
}

// The answer to an SRV query has the addresses of both families.
func TestServicesComeWithTheirAddresses(t *testing.T) {
	_, at := serve(t, Config{Overlay: newFakeOverlay()})
	m := ask(t, "udp", at, "_http._tcp.web.treeline.", dns.TypeSRV)
	got := ""
	for _, rr := range m.Extra {
		got += strings.Join(strings.Fields(rr.String())[:5], " ") + ", "
	}
	const name = "0.instance.web.eu.shop.prod.treeline."
	if got != name+" 0 IN A 10.30.0.7, "+name+" 0 IN AAAA fd74:6c6e:2::a1e:7, " {
		t.Fatalf("additional records %s, want both addresses of the service", got)
	}
}

// A long answer is truncated over UDP and complete over TCP, with and without EDNS.
func TestTruncatedAnswersAreCompleteByTCP(t *testing.T) {
	b := newFakeOverlay()
	var many []overlay.Target
	for n := range 100 {
		a := netip.AddrFrom4([4]byte{10, 30, 0, byte(n)})
		many = append(many, overlay.Target{Name: fmt.Sprintf("%d.instance.big.eu.shop.prod.treeline.", n), Address: a, Address6: netip.AddrFrom16(a.As16()), Port: 1, Weight: 1})
	}
	b.known["_x._tcp.big.treeline."] = overlay.Answer{Known: true, Found: true, SRV: many}
	_, at := serve(t, Config{Overlay: b})
	for _, size := range []uint16{0, 1232, 4096} {
		q := new(dns.Msg).SetQuestion("_X._tcp.BIG.treeline.", dns.TypeSRV)
		if size > 0 {
			q.SetEdns0(size, false)
		}
		c := dns.Client{Timeout: time.Minute}
		m, _, err := c.Exchange(q, at)
		if err != nil || !m.Truncated || (m.IsEdns0() != nil) != (size > 0) || m.Question[0].Name != q.Question[0].Name {
			t.Fatalf("answer with EDNS %d: %v, %v, want it truncated", size, err, m)
		}
		c.Net = "tcp"
		if m, _, err = c.Exchange(q, at); err != nil || m.Truncated || len(m.Answer) != len(many) || (m.IsEdns0() != nil) != (size > 0) {
			t.Fatalf("answer with EDNS %d by TCP: %v, %d records, want all", size, err, len(m.Answer))
		}
	}
}

func TestALaterEDNSVersionIsRefused(t *testing.T) {
	_, at := serve(t, Config{Overlay: newFakeOverlay()})
	q := new(dns.Msg).SetQuestion("web.treeline.", dns.TypeA)
	q.SetEdns0(1232, false)
	q.IsEdns0().SetVersion(1)
	c := dns.Client{Timeout: time.Minute}
	if m, _, err := c.Exchange(q, at); err != nil || m.Rcode != dns.RcodeBadVers || m.IsEdns0().Version() != 0 {
		t.Fatalf("query with EDNS version 1: %v, %v, want BADVERS", err, m)
	}
}

func TestALookupWaitsForAnUnknownName(t *testing.T) {
	b := newFakeOverlay()
	b.lookups = make(chan string, 1)
	r, at := serve(t, Config{Overlay: b, Wait: time.Minute})
	go func() {
		name := <-b.lookups
		b.write(name, overlay.Answer{Known: true, Found: true, Addrs: []netip.Addr{netip.MustParseAddr("10.30.0.9")}})
		r.Answered(name)
	}()
	if m := ask(t, "udp", at, "new.treeline.", dns.TypeA); len(m.Answer) != 1 {
		t.Fatalf("answer %v, want the address that came later", m)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) > 0 {
		t.Fatalf("%d names are still waited for, want 0", len(r.waiting))
	}
}

func TestAnUnknownNameIsNXDOMAINAfterAWhile(t *testing.T) {
	r, at := serve(t, Config{Overlay: newFakeOverlay(), Wait: 20 * time.Millisecond})
	m := ask(t, "udp", at, "never.treeline.", dns.TypeA)
	if m.Rcode != dns.RcodeNameError || len(m.Ns) != 1 || m.Ns[0].(*dns.SOA).Minttl > maxTTL {
		t.Fatalf("answer %v, want NXDOMAIN with a short SOA", m)
	}
	if m := ask(t, "udp", at, "any.rr.new.treeline.", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
		t.Fatalf("answer %v, want SERVFAIL", m)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) > 0 {
		t.Fatalf("%d names are still waited for, want 0", len(r.waiting))
	}
}

// Queries for one name in several spellings wait, and one call of Answered wakes them all.
func TestAnAnswerReachesQueriesInOtherSpellings(t *testing.T) {
	b := newFakeOverlay()
	b.lookups = make(chan string, 10)
	r, at := serve(t, Config{Overlay: b, Wait: time.Minute})
	var g sync.WaitGroup
	spellings := []string{"new.treeline.", "NEW.treeline.", "nEw.TreeLine."}
	for _, name := range spellings {
		g.Go(func() {
			if m := ask(t, "udp", at, name, dns.TypeA); len(m.Answer) != 1 || m.Answer[0].Header().Name != name || m.Question[0].Name != name {
				t.Errorf("%s: %v", name, m)
			}
		})
	}
	for range spellings {
		<-b.lookups
	}
	b.write("new.treeline.", overlay.Answer{Known: true, Found: true, Addrs: []netip.Addr{netip.MustParseAddr("10.30.0.9")}})
	r.Answered("new.treeline.")
	g.Wait()
}

// upstream runs a name server that answers each query with n addresses.
func upstream(t testing.TB, n int, a string) netip.AddrPort {
	t.Helper()
	pc, ln := sockets(t)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for range n {
			rr, _ := dns.NewRR(q.Question[0].Name + " 300 IN A " + a)
			m.Answer = append(m.Answer, rr)
		}
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			size := dns.MinMsgSize
			if o := q.IsEdns0(); o != nil {
				size = int(o.UDPSize())
			}
			m.Truncate(size)
		}
		_ = w.WriteMsg(m)
	})
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: handler}, {Listener: ln, Handler: handler}} {
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(ended)
			_ = s.ActivateAndServe()
		}()
		<-started
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-ended
		})
	}
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

// packed returns the length of a message on the wire.
func packed(m *dns.Msg) int {
	m.Compress = true
	return m.Len()
}

func TestOtherNamesAreForwarded(t *testing.T) {
	dead, err := net.ListenPacket("udp", "127.0.0.1:0") // silent
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	servers := []netip.AddrPort{netip.MustParseAddrPort(dead.LocalAddr().String()), upstream(t, 40, "192.0.2.1")}
	b := newFakeOverlay()
	_, at := serve(t, Config{Overlay: b, Servers: servers, Forward: 2 * time.Second})
	if m := ask(t, "udp", at, "example.org.", dns.TypeA); !m.Truncated || len(m.Answer) == 0 || packed(m) > dns.MinMsgSize {
		t.Fatalf("answer without EDNS: %d bytes, truncated %v, want at most %d bytes, truncated", packed(m), m.Truncated, dns.MinMsgSize)
	}
	_ = dead.Close() // the port now refuses
	c := dns.Client{UDPSize: 4096, Timeout: time.Minute}
	q := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
	q.SetEdns0(65535, false)
	if m, _, err := c.Exchange(q, at); err != nil || packed(m) > udpSize || m.Truncated || m.IsEdns0() == nil {
		t.Fatalf("answer with EDNS: %v, %v, want all in one datagram", err, m)
	}
	if m := ask(t, "tcp", at, "example.org.", dns.TypeA); m.Truncated || len(m.Answer) != 40 {
		t.Fatalf("answer by TCP with %d records, want 40", len(m.Answer))
	}
	if b.asked > 0 {
		t.Fatalf("the overlay was asked %d times for names outside, want 0", b.asked)
	}
}

func TestServersFollowTheFileWithoutLoops(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("search example.org\nnameserver 169.254.30.53\nnameserver 127.0.0.53\nnameserver nonsense\nnameserver ::1\nnameserver 192.0.2.1\n")
	f := newForwarder(Config{ResolvConf: file})
	f.avoid(netip.MustParseAddrPort("127.0.0.53:53"))
	now := time.Now()
	if got := fmt.Sprint(f.current(t.Context(), now)); got != "[[::1]:53]" && got != "[[::1]:53 192.0.2.1:53]" {
		t.Fatalf("servers %s, want those of the file but the resolver's own addresses", got)
	}
	write("nameserver 192.0.2.7\n")
	if got := fmt.Sprint(f.current(t.Context(), now.Add(checkInterval))); got != "[192.0.2.7:53]" {
		t.Fatalf("servers %s after the file changed, want 192.0.2.7", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(f.current(t.Context(), now.Add(2*checkInterval))); got != "[192.0.2.7:53]" {
		t.Fatalf("servers while the file is missing: %s, want those from before", got)
	}
}

// A slow read of the file, as on a network file system, delays only the query that reads it.
func TestASlowFileDelaysOneQuery(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver 192.0.2.7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := newForwarder(Config{ResolvConf: file})
	now := time.Now()
	if got := fmt.Sprint(f.current(t.Context(), now)); got != "[192.0.2.7:53]" {
		t.Fatalf("servers %s, want 192.0.2.7", got)
	}
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 2)
	for range 2 { // one of them blocks in reading the file
		go func() { read <- fmt.Sprint(f.current(t.Context(), now.Add(checkInterval))) }()
	}
	if got := <-read; got != "[192.0.2.7:53]" {
		t.Errorf("servers while the file is read: %s, want those from before", got)
	}
	if err := os.WriteFile(file, []byte("nameserver 192.0.2.8\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != "[192.0.2.8:53]" {
		t.Errorf("servers after the file was read: %s, want the new one", got)
	}
}

// Clients that ask for names whose server is slow leave room for the others.
func TestClientsWithSlowServersLeaveRoomForOthers(t *testing.T) {
	quick := upstream(t, 1, "192.0.2.1")
	asked, release := make(chan struct{}, maxForwards), make(chan struct{})
	slow, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// One server does not answer names of slow.example until it is released.
	server := &dns.Server{PacketConn: slow, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if strings.HasSuffix(q.Question[0].Name, "slow.example.") {
			asked <- struct{}{}
			<-release
			_ = w.WriteMsg(new(dns.Msg).SetReply(q))
			return
		}
		if m, err := dns.Exchange(q, quick.String()); err == nil {
			_ = w.WriteMsg(m)
		}
	})}
	started, ended := make(chan struct{}), make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() {
		defer close(ended)
		_ = server.ActivateAndServe()
	}()
	<-started
	r := New(Config{Overlay: newFakeOverlay(), Servers: []netip.AddrPort{netip.MustParseAddrPort(slow.LocalAddr().String())}, Forward: time.Minute})
	var g sync.WaitGroup
	t.Cleanup(func() {
		close(release)
		g.Wait()
		_ = server.Shutdown()
		<-ended
	})
	ask := func(client byte, name string) *dns.Msg {
		w := &recorder{from: netip.AddrFrom4([4]byte{10, 16, 0, client})}
		r.serve(t.Context(), w, new(dns.Msg).SetQuestion(name, dns.TypeA))
		return w.m
	}
	refused := make(chan byte, 10*64)
	// Ten clients take all places that they may, one after the other. Each takes half of the rest, and
	// nothing is left for an eleventh.
	for i := range 64 {
		for client := byte(2); client < 12; client++ {
			g.Go(func() {
				if m := ask(client, fmt.Sprintf("%d.slow.example.", i)); m == nil || m.Rcode == dns.RcodeServerFailure {
					refused <- client
				}
			})
			select { // forwarded or refused
			case <-asked:
			case <-refused:
			}
		}
	}
	for client := byte(100); client < 110; client++ {
		if m := ask(client, "example.org."); m == nil || len(m.Answer) != 1 {
			t.Fatalf("forwarded answer for another client: %v, want one record", m)
		}
		if m := ask(client, "web.treeline."); m == nil || len(m.Answer) != 1 {
			t.Fatalf("overlay's answer for another client: %v, want one record", m)
		}
	}
}

// A greedy client leaves places for others, and places that are given back are free again.
func TestForwardsOfOneClientLeaveRoom(t *testing.T) {
	room := newForwarder(Config{}).room
	var places []*fairshare.Place
	got := map[byte]int{}
	for n := byte(1); n <= 7; n++ {
		for {
			place, err := room.Take(time.Now(), []string{netip.AddrFrom4([4]byte{10, 16, 0, n}).String()}, nil)
			if err != nil {
				break
			}
			places = append(places, place)
			got[n]++
		}
		if room.Size() == 256 {
			t.Fatalf("no place is free after %d clients that hold %v, want one at least", n, got)
		}
	}
	if got[1] != 128 || got[2] != 64 {
		t.Fatalf("places by client %v, want 128 of the first and 64 of the second", got)
	}
	for _, place := range places {
		place.Release()
	}
	if n := room.Size(); n != 0 {
		t.Fatalf("%d places are held after all were given back, want 0", n)
	}
}

// Clients that are not instances of this node get no answer by UDP or TCP, and no error, which
// could be sent to a forged address.
func TestClientsOutsideAreNotServed(t *testing.T) {
	b := newFakeOverlay()
	b.shut = true
	_, at := serve(t, Config{Overlay: b})
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network, Timeout: 200 * time.Millisecond}
		for _, name := range []string{"web.treeline.", "example.org."} {
			if m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), at); err == nil {
				t.Fatalf("answer by %s to a client outside: %v, want none", network, m)
			}
		}
	}
	if b.asked > 0 {
		t.Fatalf("the overlay was asked %d times by clients outside, want 0", b.asked)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	r := New(Config{Overlay: newFakeOverlay()})
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		// An address of a documentation network, which the machine does not have.
		go func() { done <- r.Run(ctx, netip.MustParseAddrPort("192.0.2.53:0")) }()
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			t.Fatalf("Run: %v", err)
		}
	}
}

func TestAFloodIsBounded(t *testing.T) {
	b := newFakeOverlay()
	g := newGate(Config{Overlay: b, Rate: 100, PerClient: 10, InFlight: 25})
	now := time.Now()
	in := 0
	var leaves []func() bool
	one, two := netip.MustParseAddr("10.16.0.2"), netip.MustParseAddr("10.16.0.3")
	for range 1000 {
		if leave, ok := g.enter(one, now); ok {
			in++
			leaves = append(leaves, leave)
		}
	}
	if in != 10 {
		t.Fatalf("%d queries of a client admitted at the same time, want 10", in)
	}
	if leave, ok := g.enter(two, now); !ok {
		t.Fatal("a query of another client is refused, want it admitted")
	} else {
		leave()
	}
	for _, leave := range leaves {
		leave()
	}
	in = 0
	for range 1000 {
		if leave, ok := g.enter(one, now); ok {
			in++
			leave()
		}
	}
	if in != 190 {
		t.Fatalf("%d queries of a client admitted in a burst, want 200", in+10)
	}
	client := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	for n := range 100000 {
		if leave, ok := g.enter(client(n), now); ok {
			leave()
		}
	}
	kept := 0
	for n := range 100000 { // a client that is not in the table has all its tokens
		if g.rates.Left(now, "", client(n).String()) < 200 {
			kept++
		}
	}
	if kept > maxClients {
		t.Fatalf("%d clients are kept, want at most %d", kept, maxClients)
	}
}

// TestAnswersAreNoAmplifiers checks the size of answers to all kinds of queries.
func TestAnswersAreNoAmplifiers(t *testing.T) {
	b := newFakeOverlay()
	big := overlay.Answer{Known: true, Found: true, Stay: time.Second}
	for n := range 2000 {
		a := netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)})
		big.Addrs = append(big.Addrs, a)
		big.SRV = append(big.SRV, overlay.Target{Name: fmt.Sprintf("%d.instance.big.eu.shop.prod.treeline.", n), Address: a, Port: 1, Weight: 1})
	}
	b.known["any.instance.big.treeline."] = big
	b.known["_x._tcp.big.treeline."] = big
	_, at := serve(t, Config{Overlay: b})
	for name, kind := range map[string]uint16{"any.instance.big.treeline.": dns.TypeA, "_x._tcp.big.treeline.": dns.TypeSRV} {
		for _, edns := range []uint16{0, 1, 512, 4096, 65535} {
			q := new(dns.Msg).SetQuestion(name, kind)
			want := dns.MinMsgSize
			if edns > 0 {
				q.SetEdns0(edns, true)
				want = min(max(int(edns), dns.MinMsgSize), udpSize)
			}
			raw, err := q.Pack()
			if err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("udp", at)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 65536)
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, _ = c.Write(raw)
			n, err := c.Read(buf)
			c.Close()
			m := new(dns.Msg)
			if err != nil || m.Unpack(buf[:n]) != nil || n > want || !m.Truncated {
				t.Errorf("answer to %s with EDNS %d: %d bytes, want at most %d; truncated %v, want true; %v", name, edns, n, want, m.Truncated, err)
			}
		}
		if m := ask(t, "tcp", at, name, kind); len(m.Answer) == 0 {
			t.Errorf("answer to %s by TCP: %v, want records", name, m.MsgHdr)
		}
	}
}

// FuzzHostileQueries checks that the answer to any message, if there is one, is valid and small.
func FuzzHostileQueries(f *testing.F) {
	for _, name := range []string{"web.treeline.", "_x._tcp.web.treeline.", "1.0.30.10.in-addr.arpa.", "never.treeline."} {
		raw, _ := new(dns.Msg).SetQuestion(name, dns.TypeSRV).Pack()
		f.Add(raw)
	}
	f.Add([]byte{})
	r := New(Config{Overlay: newFakeOverlay(), Wait: time.Millisecond, Servers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}, Forward: time.Millisecond})
	f.Fuzz(func(t *testing.T, raw []byte) {
		q := new(dns.Msg)
		if q.Unpack(raw) != nil {
			return
		}
		w := &recorder{from: netip.MustParseAddr("10.16.0.2")}
		r.serve(context.Background(), w, q)
		if w.m == nil {
			return
		}
		out, err := w.m.Pack()
		if err != nil || len(out) > udpSize {
			t.Fatalf("answer of %d bytes, %v, to %v, want at most 1232 bytes", len(out), err, q)
		}
	})
}

type recorder struct {
	dns.ResponseWriter
	from netip.Addr
	m    *dns.Msg
}

func (r *recorder) RemoteAddr() net.Addr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.from, 4711))
}

func (r *recorder) WriteMsg(m *dns.Msg) error { r.m = m; return nil }
