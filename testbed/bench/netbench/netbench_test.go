package netbench

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
)

func TestMain(m *testing.M) {
	Main()
	m.Run()
}

// bedOf returns a bed with its path up and its servers running. It ends with the test.
func bedOf(t testing.TB, name string, shape Shape, p Path) *Bed {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	programtest.Need(t, Programs...)
	b, err := NewBed(t.Context(), name, shape)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := p.Up(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := b.Serve(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPathsCarryEveryLoad(t *testing.T) {
	for name, path := range map[string]func() Path{
		"raw": Raw, "routed": Routed, "vxlan": VXLAN, "nat": func() Path { return Translated(VXLAN()) }, "wireguard": WireGuard, "one-a-time": OneAtATime,
		"nft": func() Path { return Plane("nft") }, "ebpf": func() Path { return Plane("ebpf") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := path()
			b := bedOf(t, name, Shape{}, p)
			to := p.Target()
			const d = 100 * time.Millisecond
			for load, fn := range map[string]func() (Sample, error){
				"rtt":      func() (Sample, error) { return b.RTT(t.Context(), to, d) },
				"connects": func() (Sample, error) { return b.Connects(t.Context(), to, d) },
				"http":     func() (Sample, error) { return b.HTTP(t.Context(), []netip.Addr{to}, d) },
				"transfer": func() (Sample, error) { return b.Transfer(t.Context(), to, 1<<20) },
				"tcp":      func() (Sample, error) { return b.TCP(t.Context(), to, 1, d) },
			} {
				for _, w := range []Wire{{}, {PerPacket: true, Mbit: 500}} {
					if err := b.SetWire(t.Context(), w); err != nil {
						t.Fatal(err)
					}
					s, err := fn()
					if err != nil || !(s.Value > 0) {
						t.Errorf("%s over %+v: %+v, %v", load, w, s, err)
					}
					t.Logf("%s over %+v: %+v", load, w, s)
				}
			}
		})
	}
}

func TestReplicasAreReachedDirectly(t *testing.T) {
	p := Routed()
	b := bedOf(t, "replicas", Shape{More: 3}, p)
	if len(p.Replicas()) != 3 {
		t.Fatalf("the path has the replicas %s", p.Replicas())
	}
	for _, a := range append(p.Replicas(), p.Target()) {
		if _, err := b.HTTP(t.Context(), []netip.Addr{a}, time.Millisecond); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestSlowWireDelaysAndLoses(t *testing.T) {
	p := Routed()
	b := bedOf(t, "slow", Shape{Slow: true}, p)
	const rtt = 20 * time.Millisecond
	if err := b.SetWire(t.Context(), Wire{RTT: rtt}); err != nil {
		t.Fatal(err)
	}
	s, err := b.RTT(t.Context(), p.Target(), 20*rtt)
	if err != nil || s.Value < micros(rtt) {
		t.Errorf("the round trip is %g µs over a link of %s: %v", s.Value, rtt, err)
	}
	if err := b.SetWire(t.Context(), Wire{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	if err := b.Container[0].Run(t.Context(), "", "ping", "-c", "1", "-W", "1", p.Target().String()); err == nil {
		t.Error("a packet arrived over a link with 100 % loss")
	}
	if err := b.SetWire(t.Context(), Wire{Loss: 0.01, RTT: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if s, err := b.Transfer(t.Context(), p.Target(), 10<<20); err != nil {
		t.Error(err)
	} else {
		t.Logf("10 MiB at 1 %% loss: %.2f s", s.Value)
	}
}

func TestDaemonsJoinNodesByTheirPaths(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	programtest.Need(t, Programs...)
	program, err := Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []api.PathKind{api.PathRoute, api.PathVXLAN, api.PathDirect, api.PathRelay} {
		for _, plane := range []string{"nft", "ebpf"} {
			t.Run(plane+"-"+string(kind), func(t *testing.T) {
				d := Daemon(program, plane, kind)
				b := bedOf(t, t.Name(), Shape{More: 2, Apart: kind == api.PathRelay}, d)
				for _, to := range [][]netip.Addr{{d.Target()}, d.Replicas()} {
					s, err := b.HTTP(t.Context(), to, 50*time.Millisecond)
					if err != nil {
						t.Error(err)
					}
					t.Logf("%s: %+v", to, s)
				}
			})
		}
	}
}
