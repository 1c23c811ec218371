// Package freeport finds ports for daemons that stay where they are: who listens on
// a port that the kernel gives to outgoing connections too (RFC 6056's ephemeral
// ports, which port 0 of net.Listen is one of) can lose it while it is started anew.
// Which addresses a daemon is known by is for others to say.
//
//	ln, err := freeport.Listen("127.0.0.1:0")
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
)

// lowest is the lowest port that is taken: below it are those of known services.
const lowest = 10_000

// tries bounds how many ports are looked at.
const tries = 1000

// Listen is net.Listen for TCP. Port 0 becomes one that no outgoing connection is
// given, if the kernel leaves any, and whose number is free for UDP as well: the
// relay and HTTP/3 have it too.
func Listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return net.Listen("tcp", addr)
	}
	from, to := ephemeral()
	for range tries {
		var ln net.Listener
		if ln, err = both(net.JoinHostPort(host, pick(from, to))); err == nil {
			return ln, nil
		}
		// EACCES: the administrator keeps the port from us.
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("find a free port of %q: %w", host, err)
}

// Addr is an address of the loopback, 127.0.0.1:port, for a program that will listen
// there in a moment, and again when it is started anew.
func Addr() (string, error) {
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// both listens over TCP if nobody has the port over UDP.
func both(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenPacket("udp", ln.Addr().String())
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	return ln, udp.Close()
}

// pick is a port by chance, lowest or above, outside from…to; 0, for the kernel to
// choose one, where that leaves none.
func pick(from, to int) string {
	below := max(0, from-lowest)
	above := max(0, 65535-max(to, lowest-1))
	n := below + above
	if n == 0 {
		return "0"
	}
	if n = rand.IntN(n); n < below {
		return fmt.Sprint(lowest + n)
	}
	return fmt.Sprint(65535 - (n - below))
}

// ephemeral is the first and the last port that the kernel gives to outgoing
// connections. Where it does not say so, they are Linux's own.
func ephemeral() (from, to int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &from, &to)
	}
	if err != nil || from > to {
		return 32768, 60999
	}
	return from, to
}
