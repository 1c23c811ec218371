package probe

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Speed returns the speed of the interface of the default route, in Mbit/s in each direction. Drivers of
// many virtual and wireless interfaces do not report it: ErrUnavailable, with the interface.
func Speed() (iface string, mbit int64, err error) { return speed("/proc/net", "/sys/class/net") }

func speed(proc, sys string) (iface string, mbit int64, err error) {
	if iface, err = defaultRoute(proc); err != nil {
		return "", 0, fmt.Errorf("find the default route: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(sys, iface, "speed"))
	if err == nil {
		mbit, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	}
	if err != nil || mbit <= 0 {
		return iface, 0, fmt.Errorf("interface %s reports no speed: %w", iface, api.ErrUnavailable)
	}
	return iface, mbit, nil
}

// defaultRoute returns the interface of the default route with the lowest metric, of IPv4 before IPv6.
func defaultRoute(proc string) (string, error) {
	const up = 0x1
	best, iface := uint64(0), ""
	take := func(name, flags, metric string, base int) {
		f, err1 := strconv.ParseUint(flags, 16, 32)
		m, err2 := strconv.ParseUint(metric, base, 32)
		if err1 == nil && err2 == nil && f&up != 0 && name != "lo" && (iface == "" || m < best) {
			best, iface = m, name
		}
	}
	b, err := os.ReadFile(filepath.Join(proc, "route"))
	if err != nil {
		return "", err
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask …
		if f := strings.Fields(s.Text()); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			take(f[0], f[3], f[6], 10)
		}
	}
	if iface != "" {
		return iface, nil
	}
	if b, err = os.ReadFile(filepath.Join(proc, "ipv6_route")); err != nil {
		return "", fmt.Errorf("no default route: %w", api.ErrUnavailable)
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		// destination its-length source its-length next-hop metric refcnt use flags iface
		if f := strings.Fields(s.Text()); len(f) > 9 && f[1] == "00" && strings.Trim(f[0], "0") == "" {
			take(f[9], f[8], f[5], 16)
		}
	}
	if iface == "" {
		return "", fmt.Errorf("no default route: %w", api.ErrUnavailable)
	}
	return iface, nil
}
