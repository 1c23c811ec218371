package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

func TestSpecificationSetsOpenFilesAndMountsCgroup(t *testing.T) {
	find := func(s *specs.Spec) (files specs.POSIXRlimit, cgroups *specs.Mount) {
		for _, l := range s.Process.Rlimits {
			if l.Type == "RLIMIT_NOFILE" {
				files = l
			}
		}
		for _, m := range s.Mounts {
			if m.Destination == "/sys/fs/cgroup" {
				cgroups = &m
			}
		}
		return files, cgroups
	}
	files, cgroups := find(generate(t, Config{Options: Options{CgroupMount: true}}, newWorkload(0), "1:1"))
	if files.Soft != 1<<20 || files.Hard != 1<<20 {
		t.Errorf("default RLIMIT_NOFILE: got %d, hard %d; want 1048576", files.Soft, files.Hard)
	}
	if cgroups == nil || cgroups.Type != "cgroup" || !slices.Contains(cgroups.Options, "ro") {
		t.Errorf("mount of the control group: got %+v, want it read-only", cgroups)
	}
	files, cgroups = find(generate(t, Config{Options: Options{OpenFiles: 4096}}, newWorkload(0), "1:1"))
	if files.Soft != 4096 || files.Hard != 4096 || cgroups != nil {
		t.Errorf("open_files 4096, no cgroup_mount: got RLIMIT_NOFILE %d, mount %+v", files.Hard, cgroups)
	}
}

func TestAppArmorIsUsedIfTheKernelHasIt(t *testing.T) {
	for _, c := range []struct {
		enabled bool
		err     error
		want    string
	}{{true, nil, appArmorProfile}, {false, nil, ""}, {true, errors.New("no apparmor_parser"), ""}} {
		loaded := ""
		var log bytes.Buffer
		got := loadAppArmor(slog.New(slog.NewTextHandler(&log, nil)), func() bool { return c.enabled }, func(name string) error {
			loaded = name
			return c.err
		})
		if got != c.want || c.enabled != (loaded == appArmorProfile) || (c.err != nil) != strings.Contains(log.String(), "apparmor_parser") {
			t.Errorf("enabled %t, error %v: got profile %q, loaded %q, log %q; want profile %q", c.enabled, c.err, got, loaded, &log, c.want)
		}
	}
	cfg := Config{appArmor: appArmorProfile, AllowPrivileged: true, Options: Options{Handlers: map[string]Handler{"vm": {Runtime: "kata"}}}}
	w := newWorkload(0)
	if s := generate(t, cfg, w, "1:1"); s.Process.ApparmorProfile != appArmorProfile {
		t.Errorf("profile of a container: got %q, want %q", s.Process.ApparmorProfile, appArmorProfile)
	}
	w.Spec.Virtualization = "vm"
	if s := generate(t, cfg, w, "1:1"); s.Process.ApparmorProfile != "" {
		t.Errorf("profile of a virtual machine: got %q, want none", s.Process.ApparmorProfile)
	}
	w = newWorkload(0)
	w.Spec.Privileged = true
	if s := generate(t, cfg, w, "0:0"); s.Process.ApparmorProfile != "" {
		t.Errorf("profile of a privileged container: got %q, want none", s.Process.ApparmorProfile)
	}
}

func TestMayRaiseLimits(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tx\nCapEff:\t000001ffffffffff\n": true,
		"Name:\tx\nCapEff:\t00000000a80425fb\n": false,
		"":                                      true,
	} {
		if got := mayRaiseLimits(status); got != want {
			t.Errorf("mayRaiseLimits(%q): got %t, want %t", status, got, want)
		}
	}
}

// TestContainerSeesItsLimits reads the limits in the container's own mounts, as redis and a JVM
// do.
func TestContainerSeesItsLimits(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	r := openRuntime(t, testConfig(t, daemon, imageDir(t)))
	w := newWorkload(0, "sleep")
	w.Spec.Memory = 48
	start(t, r, w)
	pid := pids(t, r)[w.Key]
	read := func(path string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, path))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	limit, _ := maxOpenFiles(daemon.Address)
	want := fmt.Sprint(min(1<<20, limit))
	for line := range strings.Lines(read("limits")) {
		if f := strings.Fields(line); strings.HasPrefix(line, "Max open files") && (f[3] != want || f[4] != want) {
			t.Errorf("%s, want %s", strings.TrimSpace(line), want)
		}
	}
	file := "root/sys/fs/cgroup/memory/memory.limit_in_bytes"
	if r.cg.V2() {
		file = "root/sys/fs/cgroup/memory.max"
	}
	if got := strings.TrimSpace(read(file)); got != "50331648" {
		t.Errorf("memory limit in the container: got %q, want 50331648", got)
	}
	procs := fmt.Sprintf("/proc/%d/%s", pid, filepath.Dir(file)+"/cgroup.procs")
	if err := os.WriteFile(procs, []byte("0"), 0); err == nil {
		t.Error("write to the container's control group: got no error, want one")
	}
	own, err := os.Readlink("/proc/self/ns/cgroup")
	if theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/cgroup", pid)); err == nil && (err2 != nil || own == theirs) {
		t.Errorf("cgroup namespace: got the machine's (%v), want another", err2)
	}
	if got := strings.TrimSpace(read("oom_score_adj")); got != fmt.Sprint(runtime.OOMScoreAdj) {
		t.Errorf("oom_score_adj: got %s, want %d", got, runtime.OOMScoreAdj)
	}
}

// TestSpecificationLimitsMemoryAndCPU: a workload whose spec has neither is limited too.
func TestSpecificationLimitsMemoryAndCPU(t *testing.T) {
	for _, c := range []struct {
		memory               int64
		vcpus                float64
		wantMemory, wantCPUs int64
	}{
		{48, 0.5, 48, 500},
		{0, 0, runtime.DefaultMemoryMB, runtime.DefaultMilliCPU},
	} {
		w := newWorkload(0)
		w.Spec.Memory, w.Spec.VCPUs = c.memory, c.vcpus
		r := generate(t, Config{}, w, "1:1").Linux.Resources
		if r == nil || r.Memory == nil || r.Memory.Limit == nil || r.CPU == nil || r.CPU.Quota == nil || r.CPU.Period == nil {
			t.Errorf("memory %d, vcpus %g: got resources %+v, want limits", c.memory, c.vcpus, r)
			continue
		}
		if cpus := *r.CPU.Quota * 1000 / int64(*r.CPU.Period); *r.Memory.Limit != c.wantMemory<<20 || cpus != c.wantCPUs {
			t.Errorf("memory %d, vcpus %g: got limits of %d bytes and %d milli, want %d MiB and %d", c.memory, c.vcpus, *r.Memory.Limit, cpus, c.wantMemory, c.wantCPUs)
		}
	}
}
