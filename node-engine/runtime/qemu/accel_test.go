package qemu

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// TestAccelerator chooses between KVM and emulation by the device, its permissions and the processor.
func TestAccelerator(t *testing.T) {
	programtest.NeedRoot(t) // changes owners
	dir := t.TempDir()
	file := func(name, text string, mode fs.FileMode, gid int) string {
		path := filepath.Join(dir, name)
		for _, err := range []error{os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode), os.Chown(path, 0, gid)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	virtual := file("virtual", "processor\t: 0\nflags\t\t: fpu vmx sse\n", 0o444, 0)
	amd := file("amd", "flags\t\t: svm\n", 0o444, 0)
	plain := file("plain", "flags\t\t: fpu vmxnet\n", 0o444, 0)
	debian := file("debian", "", 0o660, 104)
	public := file("public", "", 0o666, 0)
	closed := file("closed", "", 0o600, 0)
	ofRoot := file("of-root", "", 0o660, 0)
	readOnly := file("read-only", "", 0o640, 104)
	none := filepath.Join(dir, "none")
	for _, c := range []struct {
		want, device, cpus string
		accel              string
		groups             []int
		reason             string // part of it
	}{
		{"auto", debian, virtual, "kvm", []int{104}, ""},
		{"auto", public, amd, "kvm", nil, ""},
		{"auto", debian, plain, "tcg", nil, "vmx"},
		{"auto", closed, virtual, "tcg", nil, "no group"},
		{"auto", ofRoot, virtual, "tcg", nil, "no group"},
		{"auto", readOnly, virtual, "tcg", nil, "no group"},
		{"auto", none, virtual, "tcg", nil, "no such file"},
		{"kvm", debian, plain, "kvm", []int{104}, ""},
		{"kvm", closed, virtual, "", nil, "chgrp kvm"},
		{"kvm", none, virtual, "", nil, "no such file"},
		{"tcg", debian, virtual, "tcg", nil, ""},
	} {
		accel, groups, reason := accelerator(c.want, c.device, c.cpus)
		text := ""
		if reason != nil {
			text = reason.Error()
		}
		if accel != c.accel || !slices.Equal(groups, c.groups) || (c.reason == "") != (reason == nil) || !strings.Contains(text, c.reason) {
			t.Errorf("%s with %s and %s: got %q, groups %v, %v; want %q, %v, %q", c.want, filepath.Base(c.device), filepath.Base(c.cpus), accel, groups, reason, c.accel, c.groups, c.reason)
		}
	}
}

// TestKVMIsPassedToQEMU: QEMU's arguments name the accelerator, and the guest gets no emulated clock with KVM.
func TestKVMIsPassedToQEMU(t *testing.T) {
	for accel, want := range map[string]string{"kvm": "-accel kvm -cpu host", "tcg": "-accel tcg,tb-size=32 -cpu max"} {
		m := machine{QEMU: "q", Accel: accel, MemoryMB: 64, CPUs: 1, KHz: emulatedKHz(accel)}
		if got := strings.Join(m.arguments("", true, nil), " "); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", accel, got, want)
		}
		if accel == "kvm" && m.KHz != 0 {
			t.Errorf("frequency with KVM: got %d, want 0", m.KHz)
		}
	}
}
