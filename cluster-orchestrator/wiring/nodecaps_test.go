package wiring

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/nodecaps"
	"github.com/treeline-edge/treeline/internal/daemon"
)

// loaded returns the configuration of a file and flags.
func loaded(t *testing.T, file string, args ...string) (Config, error) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(at, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return daemon.Load("cluster", Defaults(), daemon.Source{Args: append([]string{"--config", at}, args...), Stdout: io.Discard})
}

func TestCapsOfNodesAreConfigured(t *testing.T) {
	cfg, err := loaded(t, `
node_caps:
  vcpus: 8
  memory: 16384
  bandwidth_out: 100
  devices: [gpu=2]
  runtimes: [container]
  nodes:
    big: {vcpus: 64, memory: 0, devices: [], privileged: allow}
    odd: {runtimes: [], storage: 10, bandwidth_in: 5}
`, "--node-caps-memory", "8192", "--node-caps-privileged", "deny")
	if err != nil {
		t.Fatal(err)
	}
	all := api.Resources{MilliCPU: 8000, MemoryMB: 8192, OutMbit: 100}
	odd := all
	odd.StorageMB, odd.InMbit = 10, 5
	gpus := map[string]int{"gpu": 2}
	for id, want := range map[api.NodeID]nodecaps.Caps{
		"any": {Max: all, Devices: gpus, Runtimes: []string{"container"}, Privileged: nodecaps.Deny},
		"big": {Max: api.Resources{MilliCPU: 64_000, OutMbit: 100}, Runtimes: []string{"container"}, Privileged: nodecaps.Allow},
		"odd": {Max: odd, Devices: gpus, Runtimes: []string{}, Privileged: nodecaps.Deny},
	} {
		if got := cfg.core(api.ClusterInfo{ID: "munich"}, nil, "", nil).Caps.Of(id); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
}

// TestWithoutConfigurationExistingNodesStayPrivileged: the default caps limit nothing else.
func TestWithoutConfigurationExistingNodesStayPrivileged(t *testing.T) {
	cfg := Defaults()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.NodeCaps.core().Of("n1"), (nodecaps.Caps{Privileged: nodecaps.Existing}); !reflect.DeepEqual(got, want) {
		t.Errorf("the caps are %+v, want %+v", got, want)
	}
}

func TestInvalidCapsAreRefusedByName(t *testing.T) {
	for file, key := range map[string]string{
		"vcpus: -1":                            "node_caps.vcpus",
		"vcpus: .nan":                          "node_caps.vcpus",
		"memory: -1":                           "node_caps.memory",
		"storage: -5":                          "node_caps.storage",
		"bandwidth_in: -5":                     "node_caps.bandwidth_in",
		"bandwidth_out: -5":                    "node_caps.bandwidth_out",
		"devices: [gpu]":                       "node_caps.devices",
		"devices: [gpu=-1]":                    "node_caps.devices",
		"devices: [gpu=1, gpu=2]":              "node_caps.devices",
		`runtimes: [""]`:                       "node_caps.runtimes",
		"privileged: perhaps":                  "node_caps.privileged",
		`nodes: {"N 1": {vcpus: 1}}`:           "node_caps.nodes.N 1",
		"nodes: {n1: {memory: -1}}":            "node_caps.nodes.n1.memory",
		"nodes: {n1: {privileged: sometimes}}": "node_caps.nodes.n1.privileged",
		"nodes: {n1: {memry: 1}}":              "memry",
	} {
		if _, err := loaded(t, "node_caps: {"+file+"}\n"); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v, want an error that names %s", file, err, key)
		}
	}
}
