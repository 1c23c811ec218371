package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/gate"
	"github.com/treeline-edge/treeline/internal/identity"
)

const (
	floodConns = 10_000
	floodEach  = 2 * time.Millisecond // between renewed connections of the attackers
)

// flood measures a new connection with one request during an attack: 10,000 silent connections
// from 40 addresses, each of which is renewed when it is closed. Baselines are the same port
// before the attack, and net/http with the same TLS.
func flood(r *run) error {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("read the limit of descriptors: %w", err)
	}
	if files.Max < floodConns+4096 {
		return fmt.Errorf("the hard limit of descriptors is %d, want at least %d", files.Max, floodConns+4096)
	}
	files.Cur = files.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("raise the limit of descriptors: %w", err)
	}
	keys, err := newPKI()
	if err != nil {
		return err
	}
	conf := keys.verifier.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return keys.serverCert, nil }, false)
	conf.NextProtos = []string{"http/1.1"}
	client := keys.verifier.Client(identity.OfCluster("bench"), nil)
	client.ClientSessionCache = nil
	serve := func(gated bool) (string, func(), error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		ctx, cancel := context.WithCancel(r.ctx)
		var all sync.WaitGroup
		hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
		if gated {
			g := gate.New(ln, gate.Options{TLS: conf, Log: slog.New(slog.DiscardHandler)})
			all.Go(func() { _ = g.Run(ctx) })
			all.Go(func() { _ = daemon.Serve(ctx, g, hello, nil) })
		} else {
			all.Go(func() { _ = daemon.Serve(ctx, ln, hello, conf) })
		}
		return ln.Addr().String(), func() { cancel(); all.Wait() }, nil
	}
	ask := func(addr string) error {
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: 20 * time.Second}, "tcp", addr, client)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	measure := func(addr string) (series, error) {
		var s series
		for range r.n {
			w, began := watch(""), time.Now()
			if err := ask(addr); err != nil {
				return s, err
			}
			s.add(ms(time.Since(began)), w.disturbed())
		}
		return s, nil
	}
	plain, stopPlain, err := serve(false)
	if err != nil {
		return err
	}
	floor, err := measure(plain)
	stopPlain()
	if err != nil {
		return err
	}
	addr, stop, err := serve(true)
	if err != nil {
		return err
	}
	defer stop()
	quiet, err := measure(addr)
	if err != nil {
		return err
	}
	end, err := attack(r.ctx, addr)
	if err != nil {
		return err
	}
	attacked, err := measure(addr)
	end()
	if err != nil {
		return err
	}
	before := quiet.record("flood.quiet", "ms").over("net/http", quantile(floor.values, 0.5))
	under := attacked.record("flood.10000-silent", "ms").over("flood.quiet", before.Median).atMost(2 * before.Median)
	under.Note = fmt.Sprintf("p99 %.2f ms before, %.2f ms under attack", before.P99, under.P99)
	r.emit(before)
	r.emit(under)
	return nil
}

// attack opens the silent connections; end closes them.
func attack(ctx context.Context, addr string) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all, first sync.WaitGroup
	tick := time.NewTicker(floodEach)
	failed := make(chan error, floodConns)
	atOnce := make(chan struct{}, 64)
	first.Add(floodConns)
	for i := range floodConns {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i%4+1), byte(i/4%10+1))}, Timeout: 20 * time.Second}
		all.Go(func() {
			up := sync.OnceFunc(first.Done)
			defer up()
			for ctx.Err() == nil {
				atOnce <- struct{}{}
				c, err := dialer.DialContext(ctx, "tcp", addr)
				<-atOnce
				if err != nil {
					failed <- err
					return
				}
				up()
				stop := context.AfterFunc(ctx, func() { c.Close() })
				_, _ = io.Copy(io.Discard, c) // until the port closes it
				stop()
				c.Close()
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	first.Wait()
	end = func() { cancel(); all.Wait(); tick.Stop() }
	select {
	case err := <-failed:
		end()
		return nil, fmt.Errorf("open the attack's connections: %w", err)
	default:
		return end, nil
	}
}
