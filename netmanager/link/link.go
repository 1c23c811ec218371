package link

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// RouteProtocol marks our routes (rtm_protocol; 0 to 42 and 186 to 197 are others').
const RouteProtocol = 116

// Links are the devices and routes of one netmanager.
type Links struct {
	prefix string
	nl     *netlink.Handle
}

// New takes over the namespace of the calling thread. Prefix, of 1 to 7 letters,
// begins the names of all devices of ours. It changes nothing yet.
func New(prefix string) (*Links, error) {
	if prefix == "" || len(prefix) > 7 {
		return nil, fmt.Errorf("prefix %q has not 1 to 7 letters: %w", prefix, api.ErrInvalid)
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &Links{prefix, nl}, nil
}

// Close lets go and leaves the kernel as it is.
func (l *Links) Close() { l.nl.Close() }

// address is the instance's whose device has that name.
func (l *Links) address(device string) (netip.Addr, bool) {
	b, err := hex.DecodeString(strings.TrimPrefix(device, l.prefix))
	if err != nil || len(b) != 4 || !strings.HasPrefix(device, l.prefix) {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(b)), true
}

// sysctl sets one below /proc/sys, unless it is so already.
func sysctl(value string, key ...string) error {
	path := filepath.Join(append([]string{"/proc/sys"}, key...)...)
	if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, value, err)
	}
	return nil
}

// host is the network of one address.
func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// none says that there is no such thing, and so nothing to take away.
func none(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// noIPv6 says that the kernel, or the namespace, was told to have none.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP)
}
