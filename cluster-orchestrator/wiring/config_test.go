package wiring

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/internal/daemon"
)

// network.unencrypted was called network.clear, which is still accepted.
func TestBothSpellingsOfUnencryptedNetworks(t *testing.T) {
	want := []string{"10.1.0.0/16"}
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "cluster.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, args := range map[string][]string{
		"unencrypted in the file": {"--config", file("network:\n  unencrypted: [10.1.0.0/16]\n")},
		"clear in the file":       {"--config", file("network:\n  clear: [10.1.0.0/16]\n")},
		"--network-unencrypted":   {"--network-unencrypted=10.1.0.0/16"},
		"--network-clear":         {"--network-clear=10.1.0.0/16"},
	} {
		cfg, err := daemon.Load("cluster-orchestrator", Defaults(), daemon.Source{Args: args})
		if err == nil {
			_, err = cfg.Network.unencrypted()
		}
		if got := cfg.Network.Unencrypted; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: unencrypted networks %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := daemon.Load("cluster-orchestrator", Defaults(), daemon.Source{Args: []string{"--network-clear=10.1.0.0"}}); err == nil {
		t.Error("an invalid network under the former spelling is accepted, want an error")
	}
}
