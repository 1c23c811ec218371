package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
)

// host is the part of the kernel outside the table that the plane uses: routes, for the host's
// networks, and connection tracking.
type host struct {
	prefix string
	ns     *os.File // the network namespace
	nl     *netlink.Handle
	nft    int // socket to nf_tables

	segments *dataplane.Segments
}

func newHost(prefix string) (*host, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink: %w", err), ns.Close())
	}
	h := &host{prefix: prefix, ns: ns, nl: nl, nft: -1}
	if h.nft, err = packetFilter(); err != nil {
		return nil, errors.Join(fmt.Errorf("open a socket to nf_tables: %w", err), h.close())
	}
	if h.segments, err = dataplane.OpenSegments(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *host) close() error {
	h.nl.Close()
	if h.nft >= 0 {
		unix.Close(h.nft)
		h.nft = -1
	}
	if h.segments != nil {
		h.segments.Close()
		h.segments = nil
	}
	return h.ns.Close()
}

// device returns the name of the device that leads to a.
func (h *host) device(a netip.Addr) (string, error) {
	if !a.IsValid() {
		return "", errors.New("no address")
	}
	routes, err := h.nl.RouteGet(a.AsSlice())
	if err != nil {
		return "", fmt.Errorf("route to %s: %w", a, err)
	}
	link, err := h.nl.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("device to %s: %w", a, err)
	}
	return link.Attrs().Name, nil
}

// index returns a device's index, 0 if there is none.
func (h *host) index(name string) int {
	link, err := h.nl.LinkByName(name)
	if err != nil {
		return 0
	}
	return link.Attrs().Index
}

// networks returns the networks that the host is connected to by devices other than the
// overlay's.
func (h *host) networks() ([]netip.Prefix, error) {
	ours := map[int]bool{}
	links, err := h.nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		ours[l.Attrs().Index] = strings.HasPrefix(l.Attrs().Name, h.prefix)
	}
	var out []netip.Prefix
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.nl.RouteListFiltered(f, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if p, ok := dataplane.Connected(r); ok && !ours[r.LinkIndex] {
				out = append(out, p)
			}
		}
	}
	return out, nil
}
