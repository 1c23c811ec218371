package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/probe"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

const pull = docker.HostCapabilityPull | docker.HostCapabilityResolve

// account is a tenant's account at a registry. The zero account is the node's.
type account struct {
	login  runtime.Login
	prefix string // of the names of images that were fetched with it
}

// accountOf returns the account to fetch a workload's image with.
func accountOf(w runtime.Workload) account {
	if w.Login == nil {
		return account{}
	}
	return account{login: *w.Login, prefix: privatePrefix(w.Instance.Tenant())}
}

// key distinguishes accounts and passwords.
func (a account) key() string {
	return a.prefix + "\x00" + a.login.Username + "\x00" + a.login.Password
}

// privatePrefix returns the prefix of the names of images that a tenant's account may fetch. Other
// tenants do not find these images: their own account has to be allowed to fetch them.
func privatePrefix(t api.Tenant) string {
	sum := sha256.Sum256([]byte(t))
	return "treeline!" + hex.EncodeToString(sum[:12]) + "/" // no image reference begins like this
}

// resolver returns the resolver of a pull with an account.
func (c Config) resolver(from account) remotes.Resolver {
	r := docker.NewResolver(docker.ResolverOptions{Hosts: func(host string) ([]docker.RegistryHost, error) { return c.hosts(host, from) }})
	if from.prefix == "" {
		return r
	}
	return private{r, from.prefix}
}

// private is a resolver that changes the names of images.
type private struct {
	remotes.Resolver
	prefix string
}

func (p private) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	name, desc, err := p.Resolver.Resolve(ctx, ref)
	return p.prefix + name, desc, err
}

func (p private) Fetcher(ctx context.Context, name string) (remotes.Fetcher, error) {
	return p.Resolver.Fetcher(ctx, strings.TrimPrefix(name, p.prefix))
}

// hosts returns the servers to ask for images of a registry.
func (c Config) hosts(host string, from account) (out []docker.RegistryHost, err error) {
	reg, _ := c.registry(host)
	if from.login.Registry == host {
		reg.Username, reg.Password = from.login.Username, daemon.Secret(from.login.Password)
	}
	urls, err := reg.endpoints()
	if err != nil {
		return nil, err
	}
	httpClient := &http.Client{Transport: newDialer(c, host).transport()}
	for i, u := range urls {
		auth := []docker.AuthorizerOpt{docker.WithAuthClient(httpClient)}
		if i == len(urls)-1 { // the registry itself: mirrors do not get its credentials
			auth = append(auth, docker.WithAuthCreds(func(string) (string, string, error) {
				return reg.Username, reg.Password.Reveal(), nil
			}))
		}
		out = append(out, docker.RegistryHost{
			Client: httpClient, Authorizer: docker.NewDockerAuthorizer(auth...), Scheme: u.Scheme, Host: u.Host,
			Path: strings.TrimSuffix(u.Path, "/") + "/v2", Capabilities: pull,
		})
	}
	return out, nil
}

// registry returns the registry of a host, and whether the operator named it.
func (c Config) registry(host string) (r Registry, named bool) {
	if i := slices.IndexFunc(c.Registries, func(r Registry) bool { return r.Host == host }); i >= 0 {
		return c.Registries[i], true
	}
	return Registry{Host: host}, false
}

func (c Config) isNamed(host string) bool {
	_, named := c.registry(host)
	return named
}

// endpoints returns the URLs of the registry's mirrors and then of the registry.
func (r Registry) endpoints() (out []*url.URL, err error) {
	self := url.URL{Scheme: "https", Host: r.Host}
	if r.PlainHTTP {
		self.Scheme = "http"
	}
	if r.Host == "docker.io" {
		self.Host = "registry-1.docker.io"
	}
	for _, m := range r.Mirrors {
		u, err := url.Parse(m)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("mirror %q of registry %s is no URL such as https://mirror.example", m, r.Host)
		}
		out = append(out, u)
	}
	return append(out, &self), nil
}

// dialer connects to the hosts of one pull. It permits the hosts that the node's operator named for
// the registry, and others as permitted decides. An SLA chooses the registry, and the registry chooses
// redirects and token servers: none of them may reach services of the node or of its networks.
type dialer struct {
	named map[string]bool // host:port that the operator named for this registry
	allow []netip.Prefix
	own   func() ([]netip.Addr, error)
	proxy func(*http.Request) (*url.URL, error)

	mu      sync.Mutex // guards proxies
	proxies map[string]bool
}

func newDialer(c Config, host string) *dialer {
	d := &dialer{named: map[string]bool{}, allow: c.networks, own: ownAddresses, proxy: http.ProxyFromEnvironment, proxies: map[string]bool{}}
	if reg, named := c.registry(host); named {
		urls, _ := reg.endpoints() // hosts returns the error
		for _, u := range urls {
			d.named[hostPort(u)] = true
		}
	}
	return d
}

// hostPort returns the address that http.Transport dials for a request to u.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

var errPolicy = errors.New("registries at this address are not allowed by the node's operator")

// permitted reports whether a host that the operator did not name may have the address: one that the
// policy of latency targets permits or that is in the operator's registry networks. An address of this
// machine must be listed by itself, because a wider network must not open the node's own services. If
// the machine's addresses cannot be listed, every address counts as one of them.
func (d *dialer) permitted(a netip.Addr) bool {
	a = a.Unmap()
	if own, err := d.own(); err != nil || slices.Contains(own, a) || a.IsLoopback() {
		return slices.ContainsFunc(d.allow, func(p netip.Prefix) bool { return p.IsSingleIP() && p.Addr().Unmap() == a })
	}
	return probe.Permitted(a, d.allow, nil)
}

func (d *dialer) transport() *http.Transport {
	return &http.Transport{
		Proxy: d.proxyFor, DialContext: d.dial,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout: 30 * time.Second, MaxIdleConns: 4,
	}
}

// dial checks the policy on the resolved address before it connects to it.
func (d *dialer) dial(ctx context.Context, network, at string) (net.Conn, error) {
	n := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if !d.trusted(at) {
		n.ControlContext = func(_ context.Context, _, addr string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(addr)
			if err != nil || !d.permitted(ap.Addr()) {
				return errPolicy
			}
			return nil
		}
	}
	return n.DialContext(ctx, network, at)
}

func (d *dialer) trusted(at string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.named[at] || d.proxies[at]
}

// proxyFor returns the operator's proxy for a request. The proxy does not apply the policy,
// so the policy is checked on the addresses of the host first. A host that this machine
// cannot resolve is left to the proxy.
func (d *dialer) proxyFor(req *http.Request) (*url.URL, error) {
	u, err := d.proxy(req)
	if err != nil {
		return nil, err
	}
	at := hostPort(req.URL)
	if d.named[at] {
		return u, nil
	}
	if u == nil {
		if d.trusted(at) { // the proxy itself, named as a registry
			return nil, errPolicy
		}
		return nil, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(req.Context(), "ip", req.URL.Hostname())
	if err == nil && slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !d.permitted(a) }) {
		return nil, errPolicy
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.proxies[hostPort(u)] = true
	return u, nil
}

// Client returns a client for downloads from a host that an SLA names. It reaches what a pull from a
// registry at the host may reach. It may be used for that host only.
func (c Config) Client(host string) (*http.Client, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: newDialer(c, host).transport()}, nil
}

func ownAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the machine's addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}
