package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// TestPolicyOfRegistryAddresses requests images as SLAs can. A listener on this machine counts
// connections.
func TestPolicyOfRegistryAddresses(t *testing.T) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var reached atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	targets := []string{"127.0.0.1:" + port, "127.8.8.8:" + port, "localhost:" + port, "0.0.0.0:" + port, "[::ffff:127.0.0.1]:" + port, "[::1]:" + port}
	own, err := ownAddresses()
	if err != nil || len(own) == 0 {
		t.Fatalf("ownAddresses: got %v (%v), want some", own, err)
	}
	for _, a := range own {
		if a.Is4() {
			targets = append(targets, netip.AddrPortFrom(a, netip.MustParseAddrPort("1.1.1.1:"+port).Port()).String())
		}
	}
	ask := func(cfg Config, scheme, registry, at string) error {
		d := newDialer(cfg, registry)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+at+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: d.transport()}).Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	for _, at := range targets {
		if err := ask(Config{}, "https", at, at); !errors.Is(err, errPolicy) {
			t.Errorf("request to %s: got %v, want errPolicy", at, err)
		}
	}
	for _, at := range []string{"10.1.2.3:1", "192.168.0.1:1", "100.64.0.1:1", "169.254.169.254:80", "[fd00::1]:1", "[fe80::1]:1"} {
		if err := ask(Config{}, "https", at, at); !errors.Is(err, errPolicy) {
			t.Errorf("request to %s: got %v, want errPolicy", at, err)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Fatalf("connections to this machine: got %d, want none", n)
	}
	named := Config{Options: Options{Registries: []Registry{{Host: targets[0]}}}}
	if err := ask(named, "https", targets[0], targets[0]); errors.Is(err, errPolicy) || reached.Load() != 1 {
		t.Errorf("request to a named registry: got %v, %d connections; want one", err, reached.Load())
	}
	if err := ask(named, "https", "elsewhere.example", targets[0]); !errors.Is(err, errPolicy) {
		t.Errorf("request to a named registry by way of another: got %v, want errPolicy", err)
	}
	if err := ask(Config{networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}, "https", targets[0], targets[0]); errors.Is(err, errPolicy) {
		t.Errorf("request to an allowed address of this machine: got %v, want no errPolicy", err)
	}
	// A network that the operator allows does not include the node itself.
	before := reached.Load()
	for _, at := range targets {
		a, err := netip.ParseAddrPort(at)
		if err != nil {
			continue // a name
		}
		wide, err := a.Addr().Unmap().Prefix(8)
		if err != nil {
			t.Fatal(err)
		}
		if err := ask(Config{networks: []netip.Prefix{wide}}, "https", at, at); !errors.Is(err, errPolicy) {
			t.Errorf("request to %s of this machine, with %s allowed: got %v, want errPolicy", at, wide, err)
		}
	}
	if n := reached.Load(); n != before {
		t.Errorf("connections to this machine: got %d, want none", n-before)
	}
}

// TestNoAddressIsPermittedWithoutOwnAddresses: if the own addresses are unknown, none is permitted.
func TestNoAddressIsPermittedWithoutOwnAddresses(t *testing.T) {
	d := newDialer(Config{networks: []netip.Prefix{netip.MustParsePrefix("10.9.9.9/32")}}, "elsewhere.example")
	d.own = func() ([]netip.Addr, error) { return nil, errors.New("no descriptor") }
	if d.permitted(netip.MustParseAddr("1.1.1.1")) {
		t.Error("permitted of a public address: got true, want false")
	}
	if !d.permitted(netip.MustParseAddr("10.9.9.9")) {
		t.Error("permitted of an address that is allowed by itself: got false, want true")
	}
}

// TestPolicyAppliesToRedirectsAndTokenServers redirects from a named registry to this machine.
func TestPolicyAppliesToRedirectsAndTokenServers(t *testing.T) {
	var reached atomic.Int64
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer inner.Close()
	for name, lead := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inner.URL+"/secret", http.StatusFound)
		},
		"token server": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+inner.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		t.Run(name, func(t *testing.T) {
			outer := httptest.NewServer(lead)
			defer outer.Close()
			host := outer.Listener.Addr().String()
			cfg := Config{Options: Options{Registries: []Registry{{Host: host, PlainHTTP: true}}}}
			_, _, err := cfg.resolver(account{}).Resolve(t.Context(), host+"/hello:1")
			if !errors.Is(err, errPolicy) || reached.Load() != 0 {
				t.Errorf("resolve: got %v, %d requests to this machine; want errPolicy and none", err, reached.Load())
			}
		})
	}
}

func TestPolicyAppliesWithAProxy(t *testing.T) {
	var reached atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	d := newDialer(Config{}, "elsewhere.example")
	d.proxy = func(r *http.Request) (*url.URL, error) {
		if r.URL.Host == at.Host {
			return nil, nil
		}
		return at, nil
	}
	client := &http.Client{Transport: d.transport()}
	for _, c := range []struct {
		url     string
		refused bool
	}{
		{"http://10.1.2.3/v2/", true},
		{"http://localhost:1/v2/", true},
		{"http://1.1.1.1/v2/", false}, // the proxy connects
		{proxy.URL + "/v2/", true},    // the proxy as a registry
	} {
		resp, err := client.Get(c.url)
		if err == nil {
			resp.Body.Close()
		}
		if errors.Is(err, errPolicy) != c.refused {
			t.Errorf("request to %s: got %v, want errPolicy: %t", c.url, err, c.refused)
		}
	}
	if n := reached.Load(); n != 1 {
		t.Errorf("requests to the proxy: got %d, want 1", n)
	}
}

// TestPullErrorsDoNotHelpScans: all failures of a registry that the operator did not name have one
// text.
func TestPullErrorsDoNotHelpScans(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 22}
	dial := func(err error) error {
		return &url.Error{Op: "Head", URL: "https://x", Err: &net.OpError{Op: "dial", Net: "tcp", Addr: at, Err: err}}
	}
	all := map[string]error{
		"refused":   dial(syscall.ECONNREFUSED),
		"reset":     dial(syscall.ECONNRESET),
		"no route":  dial(syscall.EHOSTUNREACH),
		"policy":    dial(errPolicy),
		"timeout":   fmt.Errorf("pull: %w", context.DeadlineExceeded),
		"no name":   dial(&net.DNSError{Err: "no such host", Name: "x"}),
		"not https": &url.Error{Op: "Head", URL: "https://x", Err: errors.New("http: server gave HTTP response to HTTPS client")},
		"status":    remoteerrors.ErrUnexpectedStatus{Status: "500 Internal Server Error", StatusCode: 500},
	}
	r := &Runtime{log: quiet, cfg: Config{Options: Options{Registries: []Registry{{Host: "named.example"}}}}}
	seen := map[string]bool{}
	for what, err := range all {
		got := r.pullError("192.0.2.2:22", "192.0.2.2:22/x:latest", err)
		if runtime.Reason(got) != api.ReasonRegistryDown || !strings.Contains(got.Error(), "containerd.registries") {
			t.Errorf("%s: got %v, want registry_unavailable with the hint", what, got)
		}
		seen[got.Error()] = true
		if got := r.pullError("named.example", "named.example/x:latest", err); !strings.Contains(got.Error(), err.Error()) {
			t.Errorf("%s, of a named registry: got %v, want the cause in it", what, got)
		}
	}
	if len(seen) != 1 {
		t.Errorf("texts: got %v, want one", seen)
	}
}
