package wiring

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestNodeKeepsItsRuntime(t *testing.T) {
	for name, c := range map[string]struct {
		configured string
		socket     bool     // containerd listens
		files      []string // in the data directory
		kept       string   // content of the file; "" for no file
		want       string   // "" for ErrConflict
	}{
		"auto, first start":                    {"auto", true, nil, "", "containerd"},
		"auto, first start, no containerd":     {"auto", false, nil, "", "process"},
		"auto, joined, containerd is stopped":  {"auto", false, []string{"node.json"}, "containerd", "containerd"},
		"auto, joined, containerd was added":   {"auto", true, []string{"node.json"}, "process", "process"},
		"another runtime is configured":        {"process", true, []string{"node.json"}, "containerd", ""},
		"the same runtime is configured":       {"containerd", false, []string{"node.json"}, "containerd", "containerd"},
		"older release, containerd is stopped": {"auto", false, []string{"node.json", "containerd/logs/x"}, "", "containerd"},
		"older release, both used":             {"auto", false, []string{"node.json", "containerd/logs/x", "process/x"}, "", "containerd"},
		"a runtime is added":                   {"containerd,qemu", false, []string{"node.json"}, "containerd", "containerd,qemu"},
		"one of two is removed":                {"containerd", false, []string{"node.json"}, "containerd,qemu", ""},
		"auto, two are saved":                  {"auto", false, []string{"node.json"}, "containerd,qemu", "containerd,qemu"},
		"older release with process":           {"auto", true, []string{"node.json", "process/x"}, "", "process"},
		"older release, configured":            {"process", true, []string{"node.json", "containerd/logs/x"}, "", "process"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Defaults()
			cfg.Runtime, cfg.Data = c.configured, t.TempDir()
			cfg.Containerd.Address = filepath.Join(cfg.Data, "c.sock")
			if c.socket {
				l, err := net.Listen("unix", cfg.Containerd.Address)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			for _, f := range c.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(cfg.Data, f)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(cfg.Data, f), []byte("{}"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.kept != "" {
				if err := os.WriteFile(filepath.Join(cfg.Data, runtimeFile), []byte(c.kept+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			dir, err := os.OpenRoot(cfg.Data)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			got, err := cfg.savedRuntime(dir)
			if c.want == "" {
				if !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "drain") {
					t.Errorf("savedRuntime: got %q, %v, want a conflict with advice", got, err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Fatalf("savedRuntime: got %q, %v, want %s", got, err, c.want)
			}
			cfg.Runtime = got
			if err := cfg.saveRuntime(dir); err != nil {
				t.Fatal(err)
			}
			_ = os.Remove(cfg.Containerd.Address)
			cfg.Runtime = "auto"
			if again, err := cfg.savedRuntime(dir); err != nil || again != c.want {
				t.Errorf("savedRuntime at the next start: got %q, %v, want %s", again, err, c.want)
			}
		})
	}
}
