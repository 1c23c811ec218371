package dataplanetest

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// quicPasses sends datagrams as QUIC does (RFC 9000, section 17): an Initial
// with a long header in 1200 bytes, then short headers, with one connection ID. The plane does
// not read them: addresses and ports identify a flow. A client that changes its port opens
// another flow, which may have another backend; it keeps its backend if it uses the address of
// the instance.
func quicPasses(t *testing.T, w *World) {
	w.serveAll()
	w.Hosts[0].publish(w.service(1, 4, 5), w.service(2, 4))
	const id = "\x08treeline"
	initial := "\xc3\x00\x00\x00\x01" + id + "\x00\x00\x44\x9e"
	initial += strings.Repeat("\x00", 1200-len(initial))
	short := "\x41" + id[1:] + strings.Repeat("\xa5", 1100)
	connect := func(c net.Conn) (label string) {
		defer c.Close()
		for i, d := range []string{initial, initial, short, short, "\x41" + id[1:] + "?"} {
			_ = c.SetDeadline(time.Now().Add(patience))
			got, err := askUDP(c, d)
			if err != nil {
				t.Fatalf("datagram %d to %s: %v", i, c.RemoteAddr(), err)
			}
			if label == "" {
				label = got
			} else if got != label {
				t.Errorf("datagram %d to %s: %s answers instead of %s", i, c.RemoteAddr(), got, label)
			}
		}
		return label
	}
	// Two clients at once, so that their ports differ: the same connection ID from another
	// port.
	twoFlows := func(a netip.Addr) (labels []string) {
		one, err := w.C(1).Dial("udp", at(a, 80), 0)
		if err != nil {
			t.Fatal(err)
		}
		two, err := w.C(1).Dial("udp", at(a, 80), 0)
		if err != nil {
			t.Fatal(err)
		}
		return []string{connect(one), connect(two)}
	}
	for _, a := range both(vip(1)) {
		if got := twoFlows(a); got[0] == got[1] {
			t.Errorf("two flows to %s went to %v, want different backends", a, got)
		}
	}
	for _, a := range both(vip(2)) {
		if got := twoFlows(a); got[0] != "c4" || got[1] != "c4" {
			t.Errorf("two flows to %s went to %v, want c4 for both", a, got)
		}
	}
}
