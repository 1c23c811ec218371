// Package freeport finds ports for daemons that keep their address. A daemon on one of the
// kernel's ephemeral ports (RFC 6056), which port 0 of net.Listen gives, can lose the port to
// an outgoing connection while it restarts.
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

// lowest is the lowest port to use: known services have those below.
const lowest = 10_000

// tries bounds the ports to try.
const tries = 1000

// Listen is net.Listen for TCP. Port 0 becomes a port that is not ephemeral, if there is one,
// and that is also free for UDP, for the relay and HTTP/3.
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

// Addr returns an address of the loopback, 127.0.0.1:port, for a program that will listen
// there soon, and again after a restart.
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

// pick returns a random port, lowest or above, outside from…to; 0 if there is none.
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
