package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Invalid returns the error (ErrInvalid) of a configuration key whose value cannot be used.
func Invalid(key, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), api.ErrInvalid)
}

// CheckListen validates the key listen: host:port or :port.
func CheckListen(address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return Invalid("listen", "%q is not host:port or :port", address)
	}
	return nil
}

// CheckStore validates the key store: empty, or the URI of a MongoDB.
func CheckStore(uri Secret) error {
	if s := uri.Reveal(); s != "" && !strings.HasPrefix(s, "mongodb://") && !strings.HasPrefix(s, "mongodb+srv://") {
		return Invalid("store", "not a MongoDB URI; want mongodb://…, mongodb+srv://… or nothing")
	}
	return nil
}

// Networks parses the networks of a configuration key. It fails with ErrInvalid if a network has
// address bits beyond its prefix length.
func Networks(key string, list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, Invalid(key, "%q is not a network such as 10.1.0.0/16", text)
		}
		out = append(out, p)
	}
	return out, nil
}
