package usage

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// counters are read from a workload's network namespace.
type counters struct {
	// packets counts the IP packets that it received from outside. Packets on its loopback device, such as
	// those of health checks, do not count.
	packets uint64
	// connections is the number of open TCP connections from others to ports on which it listens.
	connections int
}

// maxTable bounds what is read of the kernel's table of TCP sockets, some 50,000 of them.
const maxTable = 8 << 20

// readCounters reads the counters in a directory such as /proc/4711/net.
func readCounters(dir string) (c counters, err error) {
	looped, err := loopback(filepath.Join(dir, "dev"))
	if err != nil {
		return c, err
	}
	four, err := field(filepath.Join(dir, "snmp"), "Ip:", "InReceives")
	if err != nil {
		return c, err
	}
	six, err := line(filepath.Join(dir, "snmp6"), "Ip6InReceives")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return c, err
	}
	c.packets = four + six - looped
	listens := map[string]bool{}
	var open []socket
	for _, name := range []string{"tcp", "tcp6"} {
		more, err := sockets(filepath.Join(dir, name), listens)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return c, err
		}
		open = append(open, more...)
	}
	for _, s := range open {
		if listens[s.port] && !s.own {
			c.connections++
		}
	}
	return c, nil
}

// socket is an open TCP connection.
type socket struct {
	port string // its own, in hexadecimal
	own  bool   // both ends have the same address, or a loopback address
}

// States of sockets in /proc/net/tcp.
const (
	established = "01"
	closeWait   = "08"
	listening   = "0A"
)

// sockets returns the open connections in a table of the kernel, and adds the ports that listen.
func sockets(path string, listens map[string]bool) (open []socket, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxTable))
	for lines.Scan() {
		parts := bytes.Fields(lines.Bytes())
		if len(parts) < 4 {
			continue
		}
		local, port, _ := strings.Cut(string(parts[1]), ":")
		switch string(parts[3]) {
		case listening:
			listens[port] = true
		case established, closeWait:
			remote, _, _ := strings.Cut(string(parts[2]), ":")
			open = append(open, socket{port, local == remote || isLoopback(remote)})
		}
	}
	return open, lines.Err()
}

// isLoopback reports whether an address of the kernel's table is a loopback address. The table has words
// in the host's order in hexadecimal.
func isLoopback(s string) bool {
	b, err := hex.DecodeString(s)
	if err != nil || len(b)%4 != 0 {
		return false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	return ok && a.Unmap().IsLoopback()
}

// loopback returns the packets that the loopback device received.
func loopback(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(b)) {
		if name, rest, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "lo" {
			if parts := strings.Fields(rest); len(parts) > 1 {
				return strconv.ParseUint(parts[1], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("read %s: no loopback device", path)
}

// field returns a counter of a file of pairs of lines: names, and values.
func field(path, prefix, name string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var names []string
	for l := range strings.Lines(string(b)) {
		parts := strings.Fields(l)
		if len(parts) == 0 || parts[0] != prefix {
			continue
		}
		if names == nil {
			names = parts
			continue
		}
		for i, n := range names {
			if n == name && i < len(parts) {
				return strconv.ParseUint(parts[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("read %s: no counter %s", path, name)
}

// line returns a counter of a file with one in each line.
func line(path, name string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(b)) {
		if parts := strings.Fields(l); len(parts) == 2 && parts[0] == name {
			return strconv.ParseUint(parts[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("read %s: no counter %s", path, name)
}
