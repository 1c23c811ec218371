package netbench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func init() { roles["compare"] = as(compare) }

// comparison is a measurement in two namespaces in turn, so that changes of the machine affect
// both. The kernel of the target answers in the interrupt of the request, so that no process is
// woken, and a round trip takes a tenth of that between processes.
type comparison struct {
	What   string // ping, refusal
	Target netip.Addr
	Other  string        // the other namespace
	For    time.Duration // each time
}

// compare measures whenever its parent writes a line, and answers with the µs that the first
// namespace takes longer than the other.
func compare(ctx context.Context, q comparison, ready func()) (any, error) {
	runtime.LockOSThread() // the thread switches between the namespaces
	var spaces [2]int
	for i, path := range [2]string{"/proc/thread-self/ns/net", q.Other} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open a namespace: %w", err)
		}
		spaces[i] = fd
	}
	ask := map[string]func(netip.Addr) (asker, error){"ping": newPing, "refusal": newRefusal}[q.What]
	var askers [2]asker
	for i := range askers {
		if err := unix.Setns(spaces[i], unix.CLONE_NEWNET); err != nil {
			return nil, fmt.Errorf("enter a namespace: %w", err)
		}
		var err error
		if askers[i], err = ask(q.Target); err != nil {
			return nil, err
		}
	}
	ready()
	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(stdin); in.Scan(); {
		var took [2][]time.Duration
		for end := time.Now().Add(q.For); ctx.Err() == nil && len(took[0]) < mostTimes && time.Now().Before(end); {
			for i, a := range askers {
				if err := unix.Setns(spaces[i], unix.CLONE_NEWNET); err != nil {
					return nil, fmt.Errorf("enter a namespace: %w", err)
				}
				d, err := a()
				if err != nil {
					return nil, err
				}
				took[i] = append(took[i], d)
			}
		}
		if err := out.Encode(micros(median(took[0])) - micros(median(took[1]))); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// mostTimes bounds the requests of one measurement: there are 64,000 ports, and each connection
// must be a new one.
const mostTimes = 4000

// asker makes one request and returns how long the answer took.
type asker func() (time.Duration, error)

// newPing returns an asker that uses ICMP echo, all in one flow.
func newPing(target netip.Addr) (asker, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	if err := errors.Join(
		unix.Connect(fd, &unix.SockaddrInet4{Addr: target.As4()}), // receives only from the target
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})); err != nil {
		return nil, fmt.Errorf("prepare a socket: %w", err)
	}
	ask, answer := [message]byte{8}, [20 + message]byte{} // an echo request, RFC 792
	binary.BigEndian.PutUint16(ask[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(ask[2:], checksum(ask[:]))
	return func() (time.Duration, error) {
		began := time.Now()
		if _, err := unix.Write(fd, ask[:]); err != nil {
			return 0, fmt.Errorf("ping %s: %w", target, err)
		}
		if _, err := unix.Read(fd, answer[:]); err != nil {
			return 0, fmt.Errorf("answer of %s: %w", target, err)
		}
		took := time.Since(began)
		if kind := answer[20]; kind != 0 { // no echo reply
			return 0, fmt.Errorf("%s answered with ICMP type %d, want an echo reply", target, kind)
		}
		return took, nil
	}, nil
}

// newRefusal returns an asker that opens a new connection to a port where nobody listens.
func newRefusal(target netip.Addr) (asker, error) {
	nobody := &unix.SockaddrInet4{Port: portNobody, Addr: target.As4()}
	return func() (time.Duration, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, fmt.Errorf("open a socket: %w", err)
		}
		defer unix.Close(fd)
		began := time.Now()
		err = unix.Connect(fd, nobody)
		took := time.Since(began)
		if !errors.Is(err, unix.ECONNREFUSED) {
			return 0, fmt.Errorf("connect to a closed port of %s: %w", target, err)
		}
		return took, nil
	}, nil
}

// checksum returns the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
