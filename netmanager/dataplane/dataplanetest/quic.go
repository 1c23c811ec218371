package dataplanetest

import (
	"net"
	"strings"
	"testing"
	"time"
)

// datagramsOfQUICsShapePass sends what QUIC looks like from outside (RFC 9000, section
// 17): an Initial with a long header that fills 1200 bytes, then short headers, with one
// connection id. The plane reads none of it: a flow is its addresses and ports. So a
// client that changes its port begins another flow, which may have another backend; one
// that wants to keep its own goes by the address that names the instance.
func datagramsOfQUICsShapePass(t *testing.T, w *World) {
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
	for _, a := range both(vip(1)) {
		seen := map[string]bool{}
		for _, port := range []uint16{5001, 5002} { // the same connection id from another port
			c, err := w.C(1).Dial("udp", at(a, 80), port)
			if err != nil {
				t.Fatal(err)
			}
			seen[connect(c)] = true
		}
		if len(seen) != 2 {
			t.Errorf("two flows to %s went to %v, want each a turn", a, seen)
		}
	}
	for _, a := range both(vip(2)) {
		for _, port := range []uint16{5001, 5002} {
			c, err := w.C(1).Dial("udp", at(a, 80), port)
			if err != nil {
				t.Fatal(err)
			}
			if got := connect(c); got != "c4" {
				t.Errorf("from port %d to %s: %s", port, a, got)
			}
		}
	}
}
