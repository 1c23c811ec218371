package containerd

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
)

const pull = docker.HostCapabilityPull | docker.HostCapabilityResolve

// resolver fetches from the registries as the configuration says.
func (c Config) resolver() remotes.Resolver {
	return docker.NewResolver(docker.ResolverOptions{Hosts: c.hosts})
}

// hosts are the places to ask for images of host: its mirrors, then itself.
func (c Config) hosts(host string) ([]docker.RegistryHost, error) {
	reg := Registry{Host: host}
	i := slices.IndexFunc(c.Registries, func(r Registry) bool { return r.Host == host })
	if i >= 0 {
		reg = c.Registries[i]
	}
	httpClient := &http.Client{Transport: transport(i >= 0)}
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

// transport refuses to reach this machine and its link for registries that the
// operator has not named: an SLA chooses the host, and must not reach the
// services of the node or of a cloud's metadata through us.
func transport(named bool) *http.Transport {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if !named {
		d.ControlContext = func(_ context.Context, _, addr string, _ syscall.RawConn) error {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return err
			}
			ip := net.ParseIP(host)
			if ip == nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() {
				return fmt.Errorf("registry address %s lies on this machine or its link; its operator has to name the registry", host)
			}
			return nil
		}
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: d.DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout: 30 * time.Second, MaxIdleConns: 4,
	}
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
