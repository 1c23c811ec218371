// Package freeport finds ports for daemons that keep their address. With port 0, net.Listen
// chooses one of the kernel's ephemeral ports (RFC 6056), which a restarting daemon can lose to an
// outgoing connection.
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

// lowest is the lowest port to use. Many known services have lower ones.
const lowest = 10_000

// tries bounds the ports to try.
const tries = 1000

// Listen is net.Listen for TCP. It replaces port 0 by a port that is also free for UDP (for the
// relay and HTTP/3) and, if possible, not ephemeral.
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
		// EACCES: the administrator reserved the port.
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("find a free port of %q: %w", host, err)
}

// Addr returns an address 127.0.0.1:port for a program that listens there soon, and again after a
// restart.
func Addr() (string, error) {
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// both listens over TCP if the port is free for UDP.
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

// pick returns a random port from lowest to 65535 that is not in [from, to], or "0" if there is none.
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

// ephemeral returns the first and the last ephemeral port of the kernel, or Linux's defaults.
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
