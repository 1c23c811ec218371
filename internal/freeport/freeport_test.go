package freeport

import (
	"net"
	"strconv"
	"testing"
)

func TestPortsAreOutsideTheEphemeralRange(t *testing.T) {
	from, to := ephemeral()
	if from < 1 || to > 65535 || from > to {
		t.Fatalf("connections have ports %d to %d", from, to)
	}
	for range 50 {
		ln, err := Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		if p := ln.Addr().(*net.TCPAddr).Port; from <= p && p <= to && (from > lowest || to < 65535) {
			t.Errorf("port %d is among %d to %d, which connections have", p, from, to)
		}
		udp, err := net.ListenPacket("udp", ln.Addr().String())
		if err != nil {
			t.Errorf("not free over UDP: %v", err)
			continue
		}
		defer udp.Close()
	}
}

func TestPick(t *testing.T) {
	for _, tt := range []struct {
		from, to int
		ok       func(p int) bool
	}{
		{32768, 60999, func(p int) bool { return p >= lowest && p < 32768 || p > 60999 && p <= 65535 }},
		{1024, 65000, func(p int) bool { return p > 65000 && p <= 65535 }},
		{20, 30, func(p int) bool { return p >= lowest && p <= 65535 }},
		{15000, 65535, func(p int) bool { return p >= lowest && p < 15000 }},
		{10001, 65535, func(p int) bool { return p == lowest }},
		{1024, 65535, func(p int) bool { return p == 0 }},
	} {
		for range 10_000 {
			if p, err := strconv.Atoi(pick(tt.from, tt.to)); err != nil || !tt.ok(p) {
				t.Fatalf("port %d (%v) beside connections on %d to %d", p, err, tt.from, tt.to)
			}
		}
	}
}

func TestATakenPortIsTakenByNobodyElse(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	if ln, err := both(udp.LocalAddr().String()); err == nil {
		t.Error("listens beside somebody's UDP")
		ln.Close()
	}
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if again, err := Listen(ln.Addr().String()); err == nil {
		t.Error("a port that was asked for was taken twice")
		again.Close()
	}
	if _, err := Listen("localhost"); err == nil {
		t.Error("listens on no port")
	}
	if _, err := Listen("203.0.113.1:0"); err == nil {
		t.Error("listens on an address that the machine does not have")
	}
}

func TestAddrIsFree(t *testing.T) {
	addr, err := Addr()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
}
