package pinger

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

const (
	echoHeader = 8  // type, code, checksum, identifier, sequence
	echoBody   = 48 // 56 with the header, as `ping` sends
)

// The types of ICMP (RFC 792) and ICMPv6 (RFC 4443).
const (
	echoReply4, echoRequest4 = 0, 8
	echoRequest6, echoReply6 = 128, 129
)

// echo is the state of one ping.
type echo struct {
	six   bool
	id    uint16 // used on raw sockets only; otherwise the kernel sets and checks one
	raw   bool
	nonce [16]byte
	sent  [tries]time.Time
}

// ping sends a few echo requests to a and returns the shortest round trip. It fails early if the
// network reports that a is unreachable.
func ping(ctx context.Context, a netip.Addr) (time.Duration, error) {
	conn, raw, err := pingSocket(a)
	if err != nil {
		return 0, fmt.Errorf("open a socket for ICMP: %w", err)
	}
	defer conn.Close()
	e := &echo{six: a.Is6(), raw: raw}
	_, _ = rand.Read(e.nonce[:]) // never fails
	e.id = binary.BigEndian.Uint16(e.nonce[:])
	deadline, _ := ctx.Deadline()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()

	best, answers := time.Duration(0), 0
	buf := make([]byte, 512)
	for seq, next := 0, time.Now(); ctx.Err() == nil && answers < tries; {
		now := time.Now()
		if seq < tries && !now.Before(next) {
			e.sent[seq] = now
			if _, err := conn.Write(e.request(seq)); err != nil && best == 0 {
				return 0, fmt.Errorf("ping %s: %w", a, err)
			}
			seq++
			next = now.Add(spacing)
		}
		until := next
		if seq == tries {
			if until = deadline; best > 0 {
				until = e.sent[tries-1].Add(2*best + spacing/4)
			}
			if !until.After(now) {
				break
			}
		}
		if until.After(deadline) {
			until = deadline
		}
		_ = conn.SetReadDeadline(until)
		n, _, err := conn.ReadFrom(buf)
		at := time.Now()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil && best == 0:
			return 0, fmt.Errorf("ping %s: %w", a, err)
		case err == nil:
			if seq, ok := e.reply(buf[:n]); ok {
				rtt := max(at.Sub(e.sent[seq]), 1)
				if answers++; best == 0 || rtt < best {
					best = rtt
				}
				e.sent[seq] = time.Time{} // ignore duplicates
			}
		}
	}
	if best == 0 {
		return 0, fmt.Errorf("ping %s: no answer: %w", a, api.ErrUnavailable)
	}
	return best, nil
}

// request returns the echo request of a sequence number, from 0.
func (e *echo) request(seq int) []byte {
	b := make([]byte, echoHeader+echoBody)
	b[0] = echoRequest4
	if e.six {
		b[0] = echoRequest6
	}
	binary.BigEndian.PutUint16(b[4:], e.id)
	binary.BigEndian.PutUint16(b[6:], uint16(seq+1))
	copy(b[echoHeader:], e.nonce[:])
	if !e.six { // the kernel sets the checksum of ICMPv6, which covers the addresses
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

// reply returns the sequence number, from 0, that b answers; ok is false for other packets. Only a host
// that has received the request can forge a reply.
func (e *echo) reply(b []byte) (seq int, ok bool) {
	want := byte(echoReply4)
	if e.six {
		want = echoReply6
	}
	if len(b) < echoHeader+len(e.nonce) || b[0] != want || b[1] != 0 {
		return 0, false
	}
	if e.raw && binary.BigEndian.Uint16(b[4:]) != e.id || !bytes.Equal(b[echoHeader:][:len(e.nonce)], e.nonce[:]) {
		return 0, false
	}
	seq = int(binary.BigEndian.Uint16(b[6:])) - 1
	return seq, seq >= 0 && seq < tries && !e.sent[seq].IsZero()
}

// checksum returns the internet checksum, RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// socket is a socket that is connected to one host.
type socket interface {
	net.Conn
	ReadFrom(b []byte) (int, net.Addr, error) // without the IP header, unlike Read of a raw socket
}

// pingSocket returns a socket for echoes with a: the kernel's unprivileged one
// (net.ipv4.ping_group_range), or a raw one if that is not permitted.
func pingSocket(a netip.Addr) (s socket, raw bool, err error) {
	s, err = datagrams(a)
	if err == nil || !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EPROTONOSUPPORT) {
		return s, false, err
	}
	network := "ip4:icmp"
	if a.Is6() {
		network = "ip6:ipv6-icmp"
	}
	s, err = net.DialIP(network, nil, &net.IPAddr{IP: a.AsSlice()})
	return s, true, err
}

func datagrams(a netip.Addr) (socket, error) {
	family, proto, to := unix.AF_INET, unix.IPPROTO_ICMP, unix.Sockaddr(nil)
	if a.Is6() {
		family, proto, to = unix.AF_INET6, unix.IPPROTO_ICMPV6, &unix.SockaddrInet6{Addr: a.As16()}
	} else {
		to = &unix.SockaddrInet4{Addr: a.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "icmp")
	defer f.Close() // FileConn duplicates it
	if err := unix.Connect(fd, to); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	s, ok := c.(socket)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("the socket is a %T: %w", c, api.ErrUnavailable)
	}
	return s, nil
}
