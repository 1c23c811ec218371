package netbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	roles["serve"] = as(serve)
	roles["ask"] = as(ask)
}

// Ports of the servers in each container of the second node.
const (
	portEcho     = 7001 // answers 64 bytes with 64 bytes
	portAccept   = 7002 // accepts and closes connections
	portHTTP     = 7003 // GET /
	portTransfer = 7004 // sends the requested number of bytes
	portNobody   = 7006 // refuses connections
)

const message = 64

// serve runs the servers of a container.
func serve(ctx context.Context, _ struct{}, ready func()) (any, error) {
	lc := net.ListenConfig{Control: cubic}
	errs := make(chan error, 4)
	for port, fn := range map[int]func(net.Listener) error{
		portEcho:     func(ln net.Listener) error { return each(ln, echo) },
		portAccept:   func(ln net.Listener) error { return each(ln, func(net.Conn) error { return nil }) },
		portTransfer: func(ln net.Listener) error { return each(ln, send) },
		portHTTP: func(ln net.Listener) error {
			s := http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "<!DOCTYPE html><title>Welcome</title>\n")
			})}
			return s.Serve(ln)
		},
	} {
		ln, err := lc.Listen(ctx, "tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return nil, err
		}
		go func() { errs <- fn(ln) }()
	}
	ready()
	select {
	case <-ctx.Done():
		return nil, nil
	case err := <-errs:
		return nil, err
	}
}

// each calls fn for each connection.
func each(ln net.Listener, fn func(net.Conn) error) error {
	for {
		c, err := ln.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ECONNABORTED) {
			continue
		}
		if err != nil {
			return err
		}
		go func() {
			_ = fn(c) // the client reports the error
			_ = c.Close()
		}()
	}
}

func echo(c net.Conn) error {
	b, err := blocking(c)
	if err != nil {
		return err
	}
	defer b.close()
	var buf [message]byte
	for {
		if err := b.read(buf[:]); err != nil {
			return err
		}
		if err := b.write(buf[:]); err != nil {
			return err
		}
	}
}

func send(c net.Conn) error {
	var want uint64
	if err := binary.Read(c, binary.BigEndian, &want); err != nil {
		return err
	}
	buf := make([]byte, 128<<10)
	for want > 0 {
		n, err := c.Write(buf[:min(want, uint64(len(buf)))])
		if err != nil {
			return err
		}
		want -= uint64(n)
	}
	return nil
}

// cubic selects TCP cubic for all transfers, whatever the host's default is.
func cubic(_, _ string, raw syscall.RawConn) error {
	var err error
	return errors.Join(raw.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	}), err)
}

// blockingConn is a socket with blocking reads, so that a round trip does not include the Go
// scheduler.
type blockingConn struct{ fd int }

func blocking(c net.Conn) (blockingConn, error) {
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return blockingConn{}, err
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return blockingConn{}, err
	}
	return blockingConn{fd}, unix.SetNonblock(fd, false)
}

func (b blockingConn) close() { _ = unix.Close(b.fd) }

func (b blockingConn) read(p []byte) error {
	for len(p) > 0 {
		n, err := unix.Read(b.fd, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		default:
			p = p[n:]
		}
	}
	return nil
}

func (b blockingConn) write(p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(b.fd, p)
		if err != nil && err != unix.EINTR {
			return err
		}
		p = p[max(0, n):]
	}
	return nil
}

// question is a measurement of a client in the first container.
type question struct {
	What    string // rtt, connect, http, transfer
	Target  netip.Addr
	Targets []netip.Addr  // of http, instead
	For     time.Duration // all but transfer
	Bytes   uint64        // transfer
}

func ask(ctx context.Context, q question, _ func()) (any, error) {
	switch q.What {
	case "rtt":
		return roundTrips(ctx, q)
	case "connect":
		return connects(ctx, q)
	case "http":
		return gets(ctx, q)
	case "transfer":
		return transfer(ctx, q)
	}
	return nil, fmt.Errorf("unknown measurement %q", q.What)
}

func dialer() *net.Dialer { return &net.Dialer{Timeout: 10 * time.Second, Control: cubic} }

func (q question) addr(port uint16) string { return netip.AddrPortFrom(q.Target, port).String() }

func (q question) urls(port uint16) []string {
	var out []string
	for _, a := range q.Targets {
		out = append(out, fmt.Sprintf("http://%s/", netip.AddrPortFrom(a, port)))
	}
	return out
}

// roundTrips returns the median round trip of 64 bytes on one connection, in µs.
func roundTrips(ctx context.Context, q question) (float64, error) {
	c, err := dialer().DialContext(ctx, "tcp4", q.addr(portEcho))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	b, err := blocking(c)
	if err != nil {
		return 0, err
	}
	defer b.close()
	var buf [message]byte
	trip := func() error {
		if err := b.write(buf[:]); err != nil {
			return err
		}
		return b.read(buf[:])
	}
	for range 100 { // warm up caches and schedulers
		if err := trip(); err != nil {
			return 0, err
		}
	}
	var took []time.Duration
	for end := time.Now().Add(q.For); ctx.Err() == nil; {
		began := time.Now()
		if began.After(end) {
			break
		}
		if err := trip(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	return micros(median(took)), ctx.Err()
}

// dialers is the number of concurrent dialers.
const dialers = 4

// connects returns the number of connections per second.
func connects(ctx context.Context, q question) (float64, error) {
	counts, errs := make([]int, dialers), make([]error, dialers)
	var wg sync.WaitGroup
	began := time.Now()
	end := began.Add(q.For)
	for i := range dialers {
		wg.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				c, err := dialer().DialContext(ctx, "tcp4", q.addr(portAccept))
				if err != nil {
					errs[i] = err
					return
				}
				_ = c.(*net.TCPConn).SetLinger(0) // no ports in TIME_WAIT
				_ = c.Close()
				counts[i]++
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64(sum) / time.Since(began).Seconds(), errors.Join(errs...)
}

// gets returns the median duration of GET requests in µs, each on a new connection and to the
// next target.
func gets(ctx context.Context, q question) (float64, error) {
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer().DialContext(ctx, network, addr)
			if err == nil {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			return c, err
		},
	}}
	urls, next := q.urls(portHTTP), 0
	get := func() error {
		r, err := c.Get(urls[next%len(urls)])
		next++
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r.Body)
		return errors.Join(err, r.Body.Close())
	}
	for range 20 {
		if err := get(); err != nil {
			return 0, err
		}
	}
	var took []time.Duration
	for end := time.Now().Add(q.For); time.Now().Before(end) && ctx.Err() == nil; {
		began := time.Now()
		if err := get(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	return micros(median(took)), ctx.Err()
}

// transfer returns the seconds from connecting until all requested bytes have arrived.
func transfer(ctx context.Context, q question) (float64, error) {
	began := time.Now()
	c, err := dialer().DialContext(ctx, "tcp4", q.addr(portTransfer))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err := binary.Write(c, binary.BigEndian, q.Bytes); err != nil {
		return 0, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
	if err == nil && uint64(n) != q.Bytes {
		err = fmt.Errorf("received %d of %d bytes", n, q.Bytes)
	}
	return time.Since(began).Seconds(), err
}

// median sorts the values and returns their median.
func median[T ~int64 | ~float64](d []T) T {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[len(d)/2]
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
