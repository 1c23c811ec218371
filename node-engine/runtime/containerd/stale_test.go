package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestStaleBundleIsOfThisContainer(t *testing.T) {
	const path = "/run/containerd/io.containerd.runtime.v2.task/treeline/4f80"
	for text, want := range map[string]string{
		"failed to start shim: mkdir " + path + ": file exists: unknown":              path,
		"mkdir " + path + ": file exists":                                             path,
		"mkdir " + path + "1: file exists":                                            "",
		"mkdir /run/containerd/io.containerd.runtime.v2.task/other/4f80: file exists": "",
		"mkdir /run/containerd/4f80: file exists":                                     "",
		"mkdir /x/../run/io.containerd.runtime.v2.task/treeline/4f80: file exists":    "",
		"mkdir run/io.containerd.runtime.v2.task/treeline/4f80: file exists":          "",
		"mkdir " + path + ": no space left on device":                                 "",
		"container 4f80 exists":                                                       "",
	} {
		if got := staleBundle(errors.New(text), "treeline", "4f80"); got != want {
			t.Errorf("staleBundle(%q): got %q, want %q", text, got, want)
		}
	}
	if got := staleBundle(nil, "treeline", "4f80"); got != "" {
		t.Errorf("staleBundle without an error: got %q, want none", got)
	}
}

func TestStaleBundleIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "4f80")
	if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := removeBundle(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("bundle after removeBundle: got %v, want ErrNotExist", err)
	}
}

func TestSocketWentDistinguishesErrors(t *testing.T) {
	for text, want := range map[string]bool{
		"failed to start shim: start failed: io.containerd.runc.v2: remove pre-existing socket: remove /run/containerd/s/84f7: no such file or directory: exit status 1": true,
		"failed to start shim: start failed: io.containerd.runc.v2: remove pre-existing socket: remove /run/containerd/s/84f7: permission denied":                        false,
		"exec: /no/such/program: no such file or directory": false,
	} {
		if got := socketMissing(errors.New(text)); got != want {
			t.Errorf("socketWent(%q): got %t, want %t", text, got, want)
		}
	}
	if socketMissing(nil) {
		t.Error("socketWent without an error: got true, want false")
	}
}
