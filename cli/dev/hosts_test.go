//go:build linux

package dev

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Forwarding stays on until the last installation of the machine is removed. Then it has the value
// from before the first.
func TestForwardingIsSharedByInstallations(t *testing.T) {
	for _, was := range []string{"0", "1"} {
		m := machine{dir: filepath.Join(t.TempDir(), "run"), sysctl: filepath.Join(t.TempDir(), "ip_forward")}
		set := func(v string) {
			if err := os.WriteFile(m.sysctl, []byte(v+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		set(was)
		for i, step := range []struct {
			do   func(string) error
			tag  string
			want string
		}{
			{m.forward, "a", "1"},
			{m.forward, "b", "1"},
			{m.forward, "a", "1"}, // a second start
			{m.release, "a", "1"},
			{m.release, "a", "1"},
			{m.release, "b", was},
			{m.release, "b", was},
			{m.forward, "c", "1"},
			{m.release, "c", was},
		} {
			if err := step.do(step.tag); err != nil {
				t.Fatal(err)
			}
			if text, _ := os.ReadFile(m.sysctl); strings.TrimSpace(string(text)) != step.want {
				t.Fatalf("forwarding was %s; after step %d it is %q, want %s", was, i, text, step.want)
			}
		}
	}
}

// Two installations whose tags select the same network get different ones, and an installation
// keeps its network.
func TestInstallationsGetNetworksOfTheirOwn(t *testing.T) {
	taken := map[netip.Prefix]bool{}
	free := func(p netip.Prefix) bool { return !taken[p] }
	var first netip.Prefix
	for i := range 512 {
		h := newHosts("1z141z3", "/data", netip.Prefix{})
		n, err := h.choose(free)
		if err != nil {
			t.Fatalf("installation %d: %v", i, err)
		}
		if taken[n] || !netip.MustParsePrefix("198.18.0.0/15").Contains(n.Addr()) || n.Bits() != 24 || n != n.Masked() {
			t.Fatalf("installation %d gets %s", i, n)
		}
		taken[n] = true
		if i == 0 {
			first = n
		}
	}
	if n, err := newHosts("1z141z3", "/data", netip.Prefix{}).choose(free); err == nil {
		t.Errorf("with all networks in use it gets %s", n)
	}
	if n, err := newHosts("1z141z3", "/data", first).choose(free); err == nil {
		t.Errorf("its own network is in use by others, and it gets %s", n)
	}
	delete(taken, first)
	if n, err := newHosts("1z141z3", "/data", first).choose(free); err != nil || n != first {
		t.Errorf("an installation that has %s gets %s, %v", first, n, err)
	}
}

func TestNodesOfferWholeProcessors(t *testing.T) {
	for processors, want := range map[int]int{1: 2, 2: 2, 4: 4, 64: 64} {
		if got := offeredVCPUs(processors); got != want {
			t.Errorf("with %d processors each node offers %d vCPUs, want %d", processors, got, want)
		}
	}
}
