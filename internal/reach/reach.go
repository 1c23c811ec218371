// Package reach finds the URL of a server and the names for its certificate.
//
//	url, names := reach.Of(ln.Addr(), cfg.URL, cfg.Names)
package reach

import (
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
)

// Of returns the external URL of the listener, and all names and addresses for its certificate,
// including further. The URL is given or, if that is empty, made from this machine's addresses.
func Of(ln net.Addr, given string, further []string) (external string, names []string) {
	host, port, _ := net.SplitHostPort(ln.String())
	names = []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	mine := machine()
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		mine = []string{host}
	}
	names = append(append(names, mine...), further...)
	external = strings.TrimSuffix(given, "/")
	if external == "" {
		best := "127.0.0.1"
		if len(mine) > 0 {
			best = mine[0]
		}
		external = "https://" + net.JoinHostPort(best, port)
	}
	if u, err := url.Parse(external); err == nil && u.Hostname() != "" {
		names = append(names, u.Hostname())
	}
	slices.Sort(names)
	return external, slices.Compact(names)
}

// Local returns the listener's address for clients on this machine.
func Local(ln net.Addr) string {
	host, port, _ := net.SplitHostPort(ln.String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// Valid reports whether text is https://host:port.
func Valid(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme == "https" && u.Host != "" && u.User == nil && strings.Trim(u.Path, "/") == "" && u.RawQuery == ""
}

// machine returns the addresses of this machine, IPv4 first.
func machine() []string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var v4, v6 []string
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.To4() != nil:
			v4 = append(v4, n.IP.String())
		default:
			v6 = append(v6, n.IP.String())
		}
	}
	return append(v4, v6...)
}
