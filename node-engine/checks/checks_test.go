package checks_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/checks"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const testTime = 30 * time.Second

// world has checks that run, and collects their verdicts.
type world struct {
	*checks.Checks
	t        *testing.T
	verdicts chan node.Health
}

var instances atomic.Int64

func start(t *testing.T, rt runtime.Runtime, hostNetwork bool) *world {
	t.Helper()
	w := &world{t: t, verdicts: make(chan node.Health, 10_000)}
	w.Checks = checks.New(checks.Options{
		Runtime: rt, HostNetwork: hostNetwork, Log: slog.New(slog.DiscardHandler),
		Deliver: func(_ context.Context, in node.Input) error { w.verdicts <- in.(node.Health); return nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// add begins the checks of a new instance of a tenant.
func (w *world) add(tenant api.Tenant, h api.Health) wire.Key {
	k := wire.Key{Instance: tenant.App("shop", "prod").Service("web", "v1").Instance(int(instances.Add(1))), Epoch: 1}
	w.Check(node.Check{Key: k, Health: h})
	return k
}

// verdict waits for the next verdict of an instance that is ready or has the text.
func (w *world) verdict(k wire.Key, ready bool, text string) node.Health {
	w.t.Helper()
	late := time.After(testTime)
	var last node.Health
	for {
		select {
		case v := <-w.verdicts:
			if v.Key != k {
				continue
			}
			if last = v; v.Ready == ready && strings.Contains(v.Text, text) {
				return v
			}
		case <-late:
			w.t.Fatalf("the last verdict of %s is %+v after %s, want ready %t and %q", k, last.Verdict, testTime, ready, text)
		}
	}
}

func once(c api.Check) *api.Check { c.Interval, c.Timeout, c.Failures = 1, 1, 1; return &c }

func readiness(c api.Check) api.Health { return api.Health{Readiness: once(c)} }

func portOf(t *testing.T, addr net.Addr) int {
	t.Helper()
	a, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return int(a.Port())
}

func listen(t *testing.T) (ln net.Listener, port int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln, portOf(t, ln.Addr())
}

func serve(t *testing.T, secure bool, h http.HandlerFunc) int {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return portOf(t, s.Listener.Addr())
}

// closedPort returns a port on which nobody listens.
func closedPort(t *testing.T) int {
	ln, port := listen(t)
	_ = ln.Close()
	return port
}

func serveGRPC(t *testing.T) int {
	t.Helper()
	ln, port := listen(t)
	s := grpc.NewServer()
	h := grpchealth.NewServer()
	h.SetServingStatus("up", grpc_health_v1.HealthCheckResponse_SERVING)
	h.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(s, h)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return port
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// host is a runtime whose workloads share the host's network, as processes do.
type host struct{ runtime.Runtime }

func TestVerdictsOfRealServers(t *testing.T) {
	w := start(t, host{}, true)
	get := func(h http.HandlerFunc, more ...func(*api.HTTPCheck)) api.Check {
		c := &api.HTTPCheck{Port: serve(t, false, h), Path: "/healthz?full=1"}
		for _, m := range more {
			m(c)
		}
		return api.Check{HTTP: c}
	}
	rpc, plain := serveGRPC(t), serve(t, false, status(200))
	ln, port := listen(t)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	canary := serve(t, false, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	for name, c := range map[string]struct {
		check api.Check
		ready bool
		text  string
	}{
		"http": {get(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.RequestURI != "/healthz?full=1" || r.Header.Get("X-Check") != "a b" || r.Host != "shop.example" || r.UserAgent() != "treeline-health-check/1" {
				t.Errorf("request %s %s of %s with %v", r.Method, r.RequestURI, r.Host, r.Header)
			}
		}, func(c *api.HTTPCheck) { c.Headers = []string{"X-Check: a b", "Host: shop.example"} }), true, "readiness: GET :"},
		"status 503":                  {get(status(503)), false, "/healthz?full=1: status 503"},
		"a status that is wanted":     {get(status(503), func(c *api.HTTPCheck) { c.Status = "500-599" }), true, "passed"},
		"a status that is not wanted": {get(status(200), func(c *api.HTTPCheck) { c.Status = "204" }), false, "status 200"},
		"a redirect": {get(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, fmt.Sprintf("http://127.0.0.1:%d/", canary), http.StatusFound)
		}), true, "passed"},
		"https":                 {api.Check{HTTP: &api.HTTPCheck{Port: serve(t, true, status(200)), Scheme: "https"}}, true, "GET https://:"},
		"https to a plain port": {api.Check{HTTP: &api.HTTPCheck{Port: plain, Scheme: "https"}}, false, "tls: "},
		"a closed port":         {api.Check{HTTP: &api.HTTPCheck{Port: closedPort(t)}}, false, ": connection refused"},
		"tcp":                   {api.Check{TCP: &api.TCPCheck{Port: port}}, true, "readiness: TCP :"},
		"a closed tcp port":     {api.Check{TCP: &api.TCPCheck{Port: closedPort(t)}}, false, ": connection refused"},
		"grpc":                  {api.Check{GRPC: &api.GRPCCheck{Port: rpc}}, true, "readiness: gRPC :"},
		"a grpc service":        {api.Check{GRPC: &api.GRPCCheck{Port: rpc, Service: "up"}}, true, " up passed"},
		"grpc not serving":      {api.Check{GRPC: &api.GRPCCheck{Port: rpc, Service: "down"}}, false, "status NOT_SERVING"},
		"grpc unknown":          {api.Check{GRPC: &api.GRPCCheck{Port: rpc, Service: "other"}}, false, "does not know the service"},
		"grpc at a closed port": {api.Check{GRPC: &api.GRPCCheck{Port: closedPort(t)}}, false, ": connection refused"},
		"grpc to an http port":  {api.Check{GRPC: &api.GRPCCheck{Port: plain}}, false, "readiness: gRPC :"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{Checks: w.Checks, t: t, verdicts: w.verdicts}
			k := w.add(api.Tenant("acme"), readiness(c.check))
			defer w.Uncheck(k)
			t.Log(w.verdict(k, c.ready, c.text).Text)
		})
	}
}

// A workload may answer anything. The check ends within its timeout, reads a bounded part of the answer,
// and has a short verdict.
func TestHostileAnswersAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(c *net.TCPConn)
		ready  bool
		text   string
	}{
		"nothing":          {func(*net.TCPConn) {}, false, "no answer within 1s"},
		"the end":          {func(c *net.TCPConn) { _ = c.CloseWrite() }, false, "closed before an answer"},
		"other text":       {func(c *net.TCPConn) { _, _ = io.WriteString(c, "SSH-2.0-OpenSSH\x1b[31m\r\n\r\n") }, false, "not HTTP"},
		"endless headers":  {repeat("HTTP/1.1 200 OK\r\n", "X: "+strings.Repeat("y", 1000)+"\r\n"), false, "headers of more than 16 KiB"},
		"an endless line":  {repeat("HTTP/1.1 200 OK\r\nX: ", "yyyyyyyyyy"), false, "headers of more than 16 KiB"},
		"an endless body":  {repeat("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "a\r\n0123456789\r\n"), true, "passed"},
		"a slow body":      {func(c *net.TCPConn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx") }, true, "passed"},
		"a bad length":     {func(c *net.TCPConn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n") }, false, "readiness: "},
		"only early hints": {repeat("", "HTTP/1.1 103 Early Hints\r\n\r\n"), false, "status 103"},
		"early hints": {func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
		}, true, "passed"},
		"another protocol": {func(c *net.TCPConn) { _, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n") }, false, "status 101"},
		"two answers at once": {func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 Bad\r\nContent-Length: 0\r\n\r\n")
		}, true, "passed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ln, port := listen(t)
			var accepted sync.WaitGroup
			t.Cleanup(func() { _ = ln.Close(); accepted.Wait() })
			accepted.Go(func() {
				for {
					conn, err := ln.Accept()
					if err != nil {
						return
					}
					accepted.Go(func() {
						defer conn.Close()
						r := bufio.NewReader(conn)
						if _, err := http.ReadRequest(r); err != nil {
							return
						}
						c.answer(conn.(*net.TCPConn))
						_, _ = io.Copy(io.Discard, r) // until the node closes it
					})
				}
			})
			w := start(t, host{}, true)
			k := w.add("acme", readiness(api.Check{HTTP: &api.HTTPCheck{Port: port}}))
			if v := w.verdict(k, c.ready, c.text); len(v.Text) > 300 || strings.ContainsAny(v.Text, "\x1b\r\n") {
				t.Errorf("the verdict is %q, want at most 300 bytes without control characters", v.Text)
			}
			w.Uncheck(k)
		})
	}
}

// repeat writes text until the node closes the connection, at most 64 MiB.
func repeat(first, text string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		_, err := io.WriteString(c, first)
		many := strings.Repeat(text, 1+(32<<10)/len(text))
		for n := 0; err == nil && n < 64<<20; n += len(many) {
			_, err = io.WriteString(c, many)
		}
	}
}

func TestConnectionsAreReusedForAWhile(t *testing.T) {
	var conns, requests atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 3 {
			w.Header().Set("Connection", "close") // as a server whose idle time is over
		}
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	w := start(t, host{}, true)
	k := w.add("acme", api.Health{Readiness: once(api.Check{HTTP: &api.HTTPCheck{Port: portOf(t, s.Listener.Addr())}})})
	w.verdict(k, true, "passed")
	for end := time.Now().Add(testTime); requests.Load() < 5; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests in %s, want 5", requests.Load(), testTime)
		}
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections for 5 requests, of which one closed its connection; want 2", n)
	}
	select {
	case v := <-w.verdicts:
		t.Errorf("another verdict: %+v, want none", v)
	default:
	}
}

// Only the first check by TCP has to find the workload, and only one without an answer waits.
func TestFurtherChecksByTCPFindTheSame(t *testing.T) {
	t.Parallel()
	guest := netlab.New(t).Host("guest")
	guest.Run("ip", "addr", "add", "10.99.0.2/32", "dev", "lo")
	listen := func(port int) (ln net.Listener) {
		t.Helper()
		guest.Do(func() {
			var err error
			if ln, err = net.Listen("tcp", fmt.Sprintf("10.99.0.2:%d", port)); err != nil {
				t.Fatal(err)
			}
		})
		t.Cleanup(func() { _ = ln.Close() })
		return ln
	}
	ln := listen(0)
	port := portOf(t, ln.Addr())
	w := start(t, inNamespaces(filepath.Join("/run/netns", guest.Netns())), false)
	k := wire.Key{Instance: "acme/shop.prod.web.v1#0", Epoch: 1}
	w.Check(node.Check{Key: k, Address: netip.MustParseAddr("10.99.0.2"), Health: readiness(api.Check{TCP: &api.TCPCheck{Port: port}})})
	w.verdict(k, true, "passed")
	_ = ln.Close()
	w.verdict(k, false, fmt.Sprintf("readiness: TCP :%d: connection refused", port))
	ln = listen(port)
	w.verdict(k, true, "passed")

	// The port does not answer any more when its queue is full, because nobody accepts connections.
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 1) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	guest.Do(func() {
		for range 4 {
			c, err := net.DialTimeout("tcp", ln.Addr().String(), 100*time.Millisecond)
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	})
	w.verdict(k, false, fmt.Sprintf("readiness: TCP :%d: no answer within 1s", port))
}

// silent returns the port of a server that accepts connections and never answers.
func silent(t *testing.T) int {
	ln, port := listen(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); all.Wait() })
	return port
}

func TestHangingChecksOfOneTenantLeaveRoomForOthers(t *testing.T) {
	w := start(t, host{}, true)
	hangs := api.Check{HTTP: &api.HTTPCheck{Port: silent(t)}, Interval: 1, Timeout: 60}
	var flood []wire.Key
	for range 1000 {
		flood = append(flood, w.add("mallory", api.Health{Readiness: &hangs, Liveness: &hangs}))
	}
	for range 3 {
		k := w.add("acme", readiness(api.Check{HTTP: &api.HTTPCheck{Port: serve(t, false, status(200))}}))
		began := time.Now()
		w.verdict(k, true, "passed")
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("beside 2000 hanging checks of another tenant it was ready after %s, want less than the 60 s that those take", took)
		}
	}
	for _, k := range flood {
		w.Uncheck(k)
	}
}

// executor runs commands of instances of "mallory" for ever, and others at once.
type executor struct {
	host
	fail error
}

type process struct {
	code  int
	hangs bool
}

func (e executor) Exec(_ context.Context, k wire.Key, p runtime.Process) (runtime.Running, error) {
	if e.fail != nil {
		return nil, e.fail
	}
	_, _ = io.WriteString(p.Stdout, strings.Repeat("o", 1000))
	_, _ = io.WriteString(p.Stderr, "no \x1b[31mredis\nthe second line")
	code := 0
	if p.Args[0] == "fails" {
		code = 7
	}
	return process{code, k.Instance.Tenant() == "mallory"}, nil
}

func (p process) Wait(ctx context.Context) (int, error) {
	if p.hangs {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return p.code, nil
}

func (process) Resize(uint16, uint16) error { return nil }

func TestHangingCommandsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	w := start(t, executor{}, true)
	for range 100 {
		w.add("mallory", api.Health{Readiness: &api.Check{Command: []string{"x"}, Interval: 5, Timeout: 60}})
	}
	k := w.add("acme", api.Health{Readiness: &api.Check{Command: []string{"x"}, Interval: 5}})
	began := time.Now()
	w.verdict(k, true, "readiness: command x passed")
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("beside 100 hanging commands of another tenant it was ready after %s, want less than the 60 s that those take", took)
	}
}

func TestVerdictsOfCommands(t *testing.T) {
	w := start(t, executor{}, true)
	k := w.add("acme", api.Health{Readiness: &api.Check{Command: []string{"fails"}, Interval: 5}})
	v := w.verdict(k, false, "readiness: command fails: exit code 7 (ooo")
	if len(v.Text) > 300 || strings.ContainsAny(v.Text, "\x1b\n") {
		t.Errorf("the verdict is %q, want at most 300 bytes without control characters", v.Text)
	}
	w = start(t, executor{fail: errors.New("exec: no such file")}, true)
	w.verdict(w.add("acme", api.Health{Readiness: &api.Check{Command: []string{"x"}}}), false, "exec: no such file")

	// What the node cannot find out is not a failure.
	for _, rt := range []runtime.Runtime{
		host{},
		executor{fail: api.ErrUnavailable},
		executor{fail: api.ErrNotFound},
		executor{fail: &runtime.Error{Reason: api.ReasonRuntimeDown, Err: errors.New("timeout")}},
	} {
		w := start(t, rt, true)
		k := w.add("acme", api.Health{Startup: &api.Check{Command: []string{"x"}, Interval: 5, Failures: 1}})
		w.verdict(k, false, "startup: command x was not carried out: run a command in the workload: ")
	}
}

// spaced is a runtime whose workloads have network namespaces.
type spaced struct {
	host
	paths chan string // the answers; the last one is repeated
	last  *atomic.Pointer[string]
}

func inNamespaces(paths ...string) spaced {
	s := spaced{paths: make(chan string, len(paths)), last: &atomic.Pointer[string]{}}
	for _, p := range paths {
		s.paths <- p
	}
	return s
}

func (s spaced) Namespace(context.Context, wire.Key) (string, runtime.Workload, error) {
	select {
	case p := <-s.paths:
		s.last.Store(&p)
	default:
	}
	return *s.last.Load(), runtime.Workload{}, nil
}

// mixed has the namespace of other for the service "host".
type mixed struct {
	spaced
	other spaced
}

func (m mixed) Namespace(ctx context.Context, k wire.Key) (string, runtime.Workload, error) {
	if strings.Contains(string(k.Instance), ".host.") {
		return m.other.Namespace(ctx, k)
	}
	return m.spaced.Namespace(ctx, k)
}

func TestChecksStayInTheWorkloadsNetwork(t *testing.T) {
	lab := netlab.New(t)
	guest := lab.Host("guest")
	guest.Run("ip", "addr", "add", "10.99.0.2/32", "dev", "lo")
	var ln net.Listener
	guest.Do(func() {
		var err error
		if ln, err = net.Listen("tcp", "10.99.0.2:0"); err != nil {
			t.Fatal(err)
		}
	})
	inside := httptest.NewUnstartedServer(status(204))
	inside.Listener = ln
	inside.Start()
	t.Cleanup(inside.Close)
	port := portOf(t, ln.Addr())
	var reached atomic.Int64
	outside := serve(t, false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	path := filepath.Join("/run/netns", guest.Netns())
	address := netip.MustParseAddr("10.99.0.2")

	w := start(t, inNamespaces(path), false)
	check := func(n, port int) wire.Key {
		k := wire.Key{Instance: api.Tenant("acme").App("shop", "prod").Service("web", "v1").Instance(n), Epoch: 1}
		w.Check(node.Check{Key: k, Address: address, Health: readiness(api.Check{HTTP: &api.HTTPCheck{Port: port, Status: "204"}})})
		return k
	}
	w.verdict(check(1, port), true, "passed")
	w.verdict(check(2, outside), false, "connection refused") // the same port of the host is another one

	// All checks by TCP stay there as well, also beside those of a workload in the host's network.
	both := start(t, mixed{spaced: inNamespaces(path), other: inNamespaces("")}, true)
	tcp := func(instance string, address netip.Addr, port int) wire.Key {
		k := wire.Key{Instance: api.InstanceID(instance), Epoch: 1}
		both.Check(node.Check{Key: k, Address: address, Health: readiness(api.Check{TCP: &api.TCPCheck{Port: port}})})
		return k
	}
	onHost := tcp("acme/shop.prod.host.v1#0", netip.Addr{}, port)
	both.verdict(onHost, false, "connection refused")
	both.verdict(tcp("acme/shop.prod.web.v1#1", address, outside), false, "connection refused")
	guest1 := tcp("acme/shop.prod.web.v1#0", address, port)
	both.verdict(guest1, true, "passed")
	if ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		t.Log("the same port of the host is in use: ", err)
	} else {
		defer ln.Close()
		both.verdict(onHost, true, "passed")
	}
	_ = ln.Close() // of the guest
	both.verdict(guest1, false, "connection refused")

	// It has ended, or its process's number belongs to another workload: the host is not reached.
	for name, paths := range map[string][]string{"ended": {""}, "reused": {path, "/proc/1/ns/net"}, "missing": {"/proc/0/ns/net"}} {
		t.Log(name)
		w = start(t, inNamespaces(paths...), false)
		w.verdict(check(3, outside), false, "was not carried out: the workload has no network namespace now")
	}
	if n := reached.Load(); n > 0 {
		t.Errorf("the host was reached %d times, want never", n)
	}
}

func TestVerdictsAreDeliveredAgain(t *testing.T) {
	var tries atomic.Int64
	got := make(chan node.Health, 10)
	c := checks.New(checks.Options{Runtime: host{}, HostNetwork: true, Deliver: func(_ context.Context, in node.Input) error {
		if tries.Add(1) < 3 {
			return api.ErrUnavailable // the disk is full
		}
		got <- in.(node.Health)
		return nil
	}})
	k := wire.Key{Instance: "acme/shop.prod.web.v1#0", Epoch: 1}
	c.Check(node.Check{Key: k, Attempt: 3, Health: readiness(api.Check{HTTP: &api.HTTPCheck{Port: serve(t, false, status(200))}})}) // before Run
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case v := <-got:
		if v.Key != k || v.Attempt != 3 || !v.Ready {
			t.Errorf("delivered %+v, want attempt 3 ready", v)
		}
	case <-time.After(testTime):
		t.Fatal("the verdict was not delivered")
	}
}

func TestUncheckEndsTheChecksAtOnce(t *testing.T) {
	w := start(t, host{}, true)
	hangs := api.Check{HTTP: &api.HTTPCheck{Port: silent(t)}, Timeout: 60}
	k := w.add("acme", api.Health{Readiness: &hangs})
	time.Sleep(50 * time.Millisecond) // it may have begun, or not
	w.Uncheck(k)
	w.Uncheck(k)
	// The test's end waits for all checks: it would take a minute.
}
