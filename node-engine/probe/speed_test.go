package probe

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestSpeedOfTheDefaultRoute(t *testing.T) {
	const head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
	const local = "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
	for name, c := range map[string]struct {
		v4, v6 string
		speeds map[string]string
		iface  string
		mbit   int64
	}{
		"the least metric": {
			v4:     head + "wlan0\t00000000\t010200C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n" + local + "eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n",
			speeds: map[string]string{"eth0": "2500\n", "wlan0": "100\n"}, iface: "eth0", mbit: 2500,
		},
		"a route that is down": {
			v4:     head + "eth0\t00000000\t010200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0\neth1\t00000000\t010200C0\t0003\t0\t0\t5\t00000000\t0\t0\t0\n",
			speeds: map[string]string{"eth0": "1", "eth1": "1000\n"}, iface: "eth1", mbit: 1000,
		},
		"half of all addresses is no default": {v4: head + "tun0\t00000000\t010200C0\t0003\t0\t0\t0\t00000080\t0\t0\t0\n", speeds: map[string]string{"tun0": "10"}},
		"a virtual one":                       {v4: head + "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", speeds: map[string]string{"eth0": "-1\n"}, iface: "eth0"},
		"one that does not say":               {v4: head + "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", iface: "eth0"},
		"IPv6 alone": {
			v4: head + local,
			v6: "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n" +
				"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n",
			speeds: map[string]string{"eth0": "1000"}, iface: "eth0", mbit: 1000,
		},
		"no route":    {v4: head + local},
		"no sense":    {v4: "x\n\n\x00 y z\n", v6: "0 0\n"},
		"no protocol": {v4: head},
	} {
		proc, sys := t.TempDir(), t.TempDir()
		put := func(path, text string) {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		put(filepath.Join(proc, "route"), c.v4)
		if c.v6 != "" {
			put(filepath.Join(proc, "ipv6_route"), c.v6)
		}
		for i, s := range c.speeds {
			put(filepath.Join(sys, i, "speed"), s)
		}
		iface, mbit, err := speed(proc, sys)
		if iface != c.iface || mbit != c.mbit || (err == nil) != (c.mbit > 0) || err != nil && !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%s: %s does %d, %v; want %s, %d", name, iface, mbit, err, c.iface, c.mbit)
		}
	}
}

func TestDiskOfWhatIsNotThereYet(t *testing.T) {
	dir := t.TempDir()
	have, err := Disk(dir)
	if err != nil || have <= 0 {
		t.Fatalf("%d MiB, %v", have, err)
	}
	if later, err := Disk(filepath.Join(dir, "a", "b")); err != nil || later != have {
		t.Errorf("%d MiB, %v, want %d", later, err, have)
	}
}
