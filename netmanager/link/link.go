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

// RouteProtocol is the protocol (rtm_protocol) of the overlay's routes. Others use 0 to 42 and 186
// to 197.
const RouteProtocol = 116

// Links manages the devices and routes of one netmanager.
type Links struct {
	prefix string
	nl     *netlink.Handle
}

// New returns the links in the namespace of the calling thread. The names of all devices begin
// with prefix, 1 to 7 letters. It changes nothing.
func New(prefix string) (*Links, error) {
	if prefix == "" || len(prefix) > 7 {
		return nil, fmt.Errorf("prefix %q is not 1 to 7 letters: %w", prefix, api.ErrInvalid)
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &Links{prefix, nl}, nil
}

// Close closes the netlink socket. The kernel keeps its state.
func (l *Links) Close() { l.nl.Close() }

// address returns the address of the instance whose device has that name.
func (l *Links) address(device string) (netip.Addr, bool) {
	b, err := hex.DecodeString(strings.TrimPrefix(device, l.prefix))
	if err != nil || len(b) != 4 || !strings.HasPrefix(device, l.prefix) {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(b)), true
}

// sysctl sets a value below /proc/sys, unless it is set already.
func sysctl(value string, key ...string) error {
	path := filepath.Join(append([]string{"/proc/sys"}, key...)...)
	if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == value {
		return nil
	}
	return wrap(writable(os.WriteFile(path, []byte(value), 0o644)), "set %s to %s", path, value)
}

// writable adds to the error of a sysctl on a read-only /proc/sys what to do.
func writable(err error) error {
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%w; in a container, make /proc/sys writable: see treeline doctor --machine", err)
	}
	return err
}

func host(a netip.Addr) *net.IPNet { return network(netip.PrefixFrom(a, a.BitLen())) }

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// none reports whether err means that an object does not exist.
func none(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// unlessNone returns err, or nil if err means that an object does not exist.
func unlessNone(err error) error {
	if none(err) {
		return nil
	}
	return err
}

// wrap prefixes an error with a description of the failed action; nil stays nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// noIPv6 reports whether err means that the kernel or the namespace has no IPv6.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP)
}
