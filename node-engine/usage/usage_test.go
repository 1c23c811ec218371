package usage

import (
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	device = "Inter-|   Receive\n face |bytes packets\n    lo: 1000 40 0 0 0 0 0 0 1000 40 0 0 0 0 0 0\n  eth0: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n"
	snmp   = "Ip: Forwarding DefaultTTL InReceives\nIp: 1 64 100\nTcp: RtoAlgorithm\nTcp: 1\n"
)

// Packets of health checks, which stay on the loopback device, do not count; nor do connections that the
// instance opened itself.
func TestOnlyTrafficFromOutsideCounts(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"dev": device, "snmp": snmp, "snmp6": "Ip6InReceives \t7\n",
		"tcp": header +
			"   0: 00000000:1F90 00000000:0000 0A 0\n" + // listens on 8080
			"   1: 0200100A:1F90 0301100A:C001 01 0\n" + // a client
			"   2: 0200100A:1F90 0200100A:C002 01 0\n" + // a health check to its own address
			"   3: 0100007F:1F90 0100007F:C003 01 0\n" + // one on localhost
			"   4: 0200100A:C004 0301100A:1F90 01 0\n" + // it is a client itself
			"   5: 0200100A:1F90 0301100A:C005 06 0\n", // closed
		"tcp6": header +
			"   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0\n" +
			"   1: 0000000000000000FFFF00000200100A:0050 0000000000000000FFFF00000301100A:C001 08 0\n" +
			"   2: 00000000000000000000000001000000:0050 00000000000000000000000001000000:C001 01 0\n",
	})
	c, err := readCounters(dir)
	if err != nil || c != (counters{packets: 67, connections: 2}) {
		t.Errorf("counted %+v, %v, want 67 packets and 2 connections", c, err)
	}
	if err := os.Remove(filepath.Join(dir, "snmp")); err != nil {
		t.Fatal(err)
	}
	if c, err := readCounters(dir); err == nil {
		t.Errorf("without the kernel's counters %+v, want an error: unknown is not idle", c)
	}
}

func TestTheKernelsOwnFilesAreRead(t *testing.T) {
	if _, err := readCounters("/proc/self/net"); err != nil {
		t.Error(err)
	}
}
