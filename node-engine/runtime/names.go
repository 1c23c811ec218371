package runtime

import (
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ResolvConf returns the resolv.conf for the node's resolver. The search list and ndots are what
// netmanager/overlay/names requires: names in the application are found first, with their
// selectors (any.rr.web.prod).
func ResolvConf(s api.ServiceID) string {
	domains := wire.Domain
	if p := strings.Split(s.Name(), "."); len(p) == 4 { // app, its namespace, service, its namespace
		app := p[0] + "." + p[1] + "." + wire.Domain
		domains = p[3] + "." + app + " " + app + " " + domains
	}
	return fmt.Sprintf("nameserver %s\nsearch %s\noptions ndots:4 timeout:1 attempts:5\n", wire.ResolverAddr, domains)
}

// Hosts returns the hosts file of a workload with a network of its own.
func Hosts(hostname string) string {
	return "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 " + hostname + "\n"
}
