package containerd

import (
	"context"
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

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/treeline-edge/treeline/internal/probe"
)

const pull = docker.HostCapabilityPull | docker.HostCapabilityResolve

// resolver fetches from the registries as the configuration says.
func (c Config) resolver() remotes.Resolver {
	return docker.NewResolver(docker.ResolverOptions{Hosts: c.hosts})
}

// hosts are the places to ask for images of host: its mirrors, then itself.
func (c Config) hosts(host string) ([]docker.RegistryHost, error) {
	reg := Registry{Host: host}
	if i := c.registryAt(host); i >= 0 {
		reg = c.Registries[i]
	}
	d := newDialer(c, host)
	httpClient := &http.Client{Transport: d.transport()}
	auth := docker.NewDockerAuthorizer(docker.WithAuthClient(httpClient),
		docker.WithAuthCreds(func(asked string) (string, string, error) {
			return reg.Username, reg.Password, nil
		}))
	scheme, self := "https", host
	if reg.PlainHTTP {
		scheme = "http"
	}
	if host == "docker.io" {
		self = "registry-1.docker.io"
	}
	var out []docker.RegistryHost
	for _, m := range reg.Mirrors {
		u, err := url.Parse(m)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("mirror %q of registry %s is no URL such as https://mirror.example", m, host)
		}
		// A mirror does not get the registry's credentials.
		out = append(out, docker.RegistryHost{
			Client: httpClient, Authorizer: docker.NewDockerAuthorizer(docker.WithAuthClient(httpClient)),
			Scheme: u.Scheme, Host: u.Host, Path: strings.TrimSuffix(u.Path, "/") + "/v2", Capabilities: pull,
		})
	}
	return append(out, docker.RegistryHost{
		Client: httpClient, Authorizer: auth, Scheme: scheme, Host: self, Path: "/v2", Capabilities: pull,
	}), nil
}

// registryAt returns the index of the configured registry of a host, -1 if there is none.
func (c Config) registryAt(host string) int {
	return slices.IndexFunc(c.Registries, func(r Registry) bool { return r.Host == host })
}

// dialer connects to the hosts of one pull: to those that the node's operator named
// for it, and otherwise only to addresses that the policy of latency targets permits
// or that lie in the operator's registry networks, and never to this machine. An SLA
// chooses the registry, and the registry chooses redirects and token servers: none
// of them must lead to services of the node or of the networks around it.
type dialer struct {
	named map[string]bool // host:port that the operator named for this registry
	allow []netip.Prefix
	own   func() ([]netip.Addr, error)
	proxy func(*http.Request) (*url.URL, error)

	mu      sync.Mutex // guards proxies
	proxies map[string]bool
}

func newDialer(c Config, registry string) *dialer {
	d := &dialer{named: map[string]bool{}, allow: c.RegistryNetworks, own: ownAddresses, proxy: http.ProxyFromEnvironment, proxies: map[string]bool{}}
	i := c.registryAt(registry)
	if i < 0 {
		return d
	}
	scheme := "https"
	if c.Registries[i].PlainHTTP {
		scheme = "http"
	}
	d.named[hostPort(&url.URL{Scheme: scheme, Host: registry})] = true
	for _, m := range c.Registries[i].Mirrors {
		if u, err := url.Parse(m); err == nil {
			d.named[hostPort(u)] = true
		}
	}
	return d
}

// hostPort is where a request to u is dialled, as http.Transport has it.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// errPolicy is the error for an address that the policy forbids.
var errPolicy = errors.New("registries at this address are not allowed by the node's operator")

// permitted reports whether an address may be connected to for a host that the operator
// did not name. An address of this machine may only where it is an allowed network by
// itself: a wider network that is allowed must not open the node's own services. While
// the machine's addresses cannot be listed, every address may be one of them.
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

// dial checks the policy on the resolved address, which is the one that it connects to.
func (d *dialer) dial(ctx context.Context, network, at string) (net.Conn, error) {
	n := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if !d.trusts(at) {
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

func (d *dialer) trusts(at string) bool {
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
		if d.trusts(at) { // the proxy itself, as a registry
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

// ownAddresses lists the addresses of this machine.
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

// unused are the images that nothing uses and nobody asked for since before,
// longest unused first.
func unused(all []images.Image, inUse map[string]bool, before time.Time) []images.Image {
	out := slices.DeleteFunc(slices.Clone(all), func(i images.Image) bool {
		return inUse[i.Name] || lastUse(i).After(before)
	})
	slices.SortFunc(out, func(a, b images.Image) int { return lastUse(a).Compare(lastUse(b)) })
	return out
}
