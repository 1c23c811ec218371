package ebpf_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A change of a source without new objects would have no effect.
func TestObjectsAreBuiltFromTheirSources(t *testing.T) {
	b, err := os.ReadFile("bpf/SUMS")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for line := range strings.Lines(string(b)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			t.Fatalf("bpf/SUMS: %q", line)
		}
		named = append(named, name)
		is, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(is); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s is not what the objects were made of or with: run go generate", name)
		}
	}
	want := []string{"objects_bpfel.o", "objects_bpfeb.o"}
	for _, glob := range []string{"bpf/*.h", "bpf/*.c"} {
		files, _ := filepath.Glob(glob)
		want = append(want, files...)
	}
	slices.Sort(named)
	slices.Sort(want)
	if !slices.Equal(named, want) {
		t.Errorf("bpf/SUMS names %v, want %v", named, want)
	}
}
