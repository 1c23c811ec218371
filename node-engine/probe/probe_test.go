package probe

import (
	"os"
	"path/filepath"
	"testing"
)

func TestThisMachine(t *testing.T) {
	have, err := Capacity()
	if err != nil || have.MilliCPU < 1000 || have.MemoryMB < 64 {
		t.Fatalf("capacity %v, %v", have, err)
	}
	var m Meter
	for range 2 {
		cpu, mem, err := m.Usage()
		if err != nil || cpu > 100 || mem > 100 {
			t.Errorf("usage %d %% and %d %%, %v", cpu, mem, err)
		}
	}
}

func TestCPUTimes(t *testing.T) {
	p := filepath.Join(t.TempDir(), "stat")
	if err := os.WriteFile(p, []byte("cpu  10 0 20 60 10 0 0 0 7 7\ncpu0 1 1 1 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy, all, err := cpuTimes(p)
	if err != nil || busy != 30 || all != 100 {
		t.Errorf("busy %d of %d, %v; want 30 of 100", busy, all, err)
	}
	if err := os.WriteFile(p, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := cpuTimes(p); err == nil {
		t.Error("nonsense is taken for times")
	}
}
