package dataplanetest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"testing"
	"time"
)

// The chunks of SCTP (RFC 9260, section 3.2) that open an association.
const (
	sctpData       = 0
	sctpInit       = 1
	sctpInitAck    = 2
	sctpSack       = 3
	sctpCookieEcho = 10
	sctpCookieAck  = 11
)

func chunk(sport, dport uint16, tag uint32, kind byte, body []byte) []byte {
	p := binary.BigEndian.AppendUint16(nil, sport)
	p = binary.BigEndian.AppendUint16(p, dport)
	p = binary.BigEndian.AppendUint32(p, tag)
	p = append(p, 0, 0, 0, 0, kind, 0)
	if kind == sctpData {
		p[13] = 3 // a whole message
	}
	p = binary.BigEndian.AppendUint16(p, uint16(4+len(body)))
	p = append(p, body...)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

func words(all ...uint32) (b []byte) {
	for _, w := range all {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// sctpAssociates opens an association and sends data in both directions, chunk by chunk over
// raw sockets, so that it does not need the kernel's SCTP. All chunks must reach the same one of two
// backends.
func sctpAssociates(t *testing.T, w *World) {
	w.Hosts[0].publish(w.service(1, 4, 5))
	for six, a := range both(vip(1)) {
		network := []string{"ip4:132", "ip6:132"}[six]
		listen := func(c *Container) net.PacketConn { return c.listen(network, both(c.Addr)[six].String()) }
		const clientTag = 0x7ee11e
		for n := 4; n <= 5; n++ {
			go serveSCTP(listen(w.C(n)), uint32(n), clientTag)
		}
		c := listen(w.C(1))
		tag := uint32(0) // the server's, from INIT ACK
		for _, x := range []struct {
			what         string
			kind, answer byte
			body         []byte
		}{
			{"INIT", sctpInit, sctpInitAck, words(clientTag, 65535, 1<<16|1, 1)},
			{"COOKIE ECHO", sctpCookieEcho, sctpCookieAck, []byte("cook")},
			{"DATA", sctpData, sctpSack, append(words(1, 0, 0), "data"...)},
			{"more DATA", sctpData, sctpSack, append(words(2, 1, 0), "data"...)},
		} {
			got, err := askSCTP(c, a, chunk(1000, 80, tag, x.kind, x.body))
			switch {
			case err != nil:
				t.Fatalf("%s to %s: %v", x.what, a, err)
			case got[12] != x.answer || binary.BigEndian.Uint32(got[4:]) != clientTag:
				t.Fatalf("%s to %s: got chunk %d with tag %x, want chunk %d with tag %x", x.what, a, got[12], got[4:8], x.answer, clientTag)
			}
			if x.kind == sctpInit {
				tag = binary.BigEndian.Uint32(got[16:])
			}
		}
	}
}

// serveSCTP answers chunks with its tag, and those that open an association.
func serveSCTP(p net.PacketConn, tag, client uint32) {
	b := make([]byte, 1500)
	for {
		n, from, err := p.ReadFrom(b)
		if err != nil {
			return
		}
		if n < 16 || b[12] != sctpInit && binary.BigEndian.Uint32(b[4:]) != tag {
			continue
		}
		var answer []byte
		switch b[12] {
		case sctpInit:
			cookie := append([]byte{0, 7, 0, 8}, "cook"...)
			answer = chunk(80, 1000, client, sctpInitAck, append(words(tag, 65535, 1<<16|1, 1), cookie...))
		case sctpCookieEcho:
			answer = chunk(80, 1000, client, sctpCookieAck, nil)
		case sctpData:
			answer = chunk(80, 1000, client, sctpSack, words(binary.BigEndian.Uint32(b[16:]), 65535, 0))
		default:
			continue
		}
		_, _ = p.WriteTo(answer, from)
	}
}

// askSCTP sends a packet and returns the next one, which must come from its destination.
func askSCTP(p net.PacketConn, to netip.Addr, packet []byte) ([]byte, error) {
	if _, err := p.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return nil, err
	}
	_ = p.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 1500)
	n, from, err := p.ReadFrom(b)
	if err == nil && (from.String() != to.String() || n < 16) {
		err = fmt.Errorf("%d bytes came from %s", n, from)
	}
	return b[:max(n, 20)], err
}
