package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestStaleBundleIsOfThisContainerAlone(t *testing.T) {
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
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := staleBundle(nil, "treeline", "4f80"); got != "" {
		t.Errorf("no error: %q", got)
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
		t.Errorf("it is still there: %v", err)
	}
}

func TestASocketThatWentIsToldFromOtherFaults(t *testing.T) {
	for text, want := range map[string]bool{
		"failed to start shim: start failed: io.containerd.runc.v2: remove pre-existing socket: remove /run/containerd/s/84f7: no such file or directory: exit status 1": true,
		"failed to start shim: start failed: io.containerd.runc.v2: remove pre-existing socket: remove /run/containerd/s/84f7: permission denied":                        false,
		"exec: /no/such/program: no such file or directory": false,
	} {
		if got := socketWent(errors.New(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if socketWent(nil) {
		t.Error("no error is taken for one")
	}
}
