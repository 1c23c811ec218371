package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// appArmorProfile is the name of the profile that containers get where the kernel
// has AppArmor: containerd's default one, which Docker's is, too.
const appArmorProfile = "treeline-default"

// loadAppArmor loads the profile where the kernel has AppArmor, and returns its
// name. Where it cannot be loaded containers run without one: the other bounds hold.
func loadAppArmor(log *slog.Logger, enabled func() bool, load func(name string) error) string {
	if !enabled() {
		return ""
	}
	if err := load(appArmorProfile); err != nil {
		log.Warn("AppArmor profile not loaded, containers run without one; install apparmor_parser (Debian: apparmor)", "profile", appArmorProfile, "err", err)
		return ""
	}
	return appArmorProfile
}

// appArmorEnabled reports whether the kernel enforces AppArmor profiles.
func appArmorEnabled() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}

func loadDefaultProfile(name string) error { return apparmor.LoadDefaultProfile(name) }

// withOpenFiles bounds how many files each process of the container may have open.
func withOpenFiles(n int64) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		const kind = "RLIMIT_NOFILE"
		s.Process.Rlimits = slices.DeleteFunc(s.Process.Rlimits, func(l specs.POSIXRlimit) bool { return l.Type == kind })
		s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{Type: kind, Soft: uint64(n), Hard: uint64(n)})
		return nil
	}
}

// openFiles is RLIMIT_NOFILE of new containers: what is configured, or less where
// containerd cannot give as many. That is logged once, and again when it changes.
func (r *Runtime) openFiles() int64 {
	most, why := mostOpenFiles(r.cfg.Address)
	if r.cfg.OpenFiles <= most {
		return r.cfg.OpenFiles
	}
	if r.openMost.Swap(most) != most {
		r.log.Warn("containers get fewer open files than configured", "open_files", r.cfg.OpenFiles, "given", most, "reason", why)
	}
	return most
}

// mostOpenFiles returns the largest RLIMIT_NOFILE that containerd can give a container, and
// the reason for that bound: fs.nr_open, or containerd's own hard limit where it may not
// raise it. With a larger one no container would start.
func mostOpenFiles(address string) (most int64, why string) {
	most, why = math.MaxInt64, "fs.nr_open is unknown"
	if b, err := os.ReadFile("/proc/sys/fs/nr_open"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			most, why = n, "the kernel's limit: raise fs.nr_open (sysctl)"
		}
	}
	pid, err := peerOf(address)
	if err != nil {
		return most, why
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return most, why
	}
	var l unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &l); err != nil {
		return most, why
	}
	return ownLimit(most, why, string(status), l.Max)
}

// ownLimit returns most, or containerd's hard limit if that is lower and its status shows
// that it may not raise it.
func ownLimit(most int64, why, status string, hard uint64) (int64, string) {
	if mayRaiseLimits(status) || hard >= uint64(most) {
		return most, why
	}
	return int64(hard), "containerd has this limit itself and lacks CAP_SYS_RESOURCE to raise it: set LimitNOFILE of its unit, or give it the capability"
}

// mayRaiseLimits reads CAP_SYS_RESOURCE in a process's status.
func mayRaiseLimits(status string) bool {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err != nil || caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return true
}

// peerOf returns the process that listens on a unix socket.
func peerOf(address string) (pid int, err error) {
	c, err := net.DialTimeout("unix", address, time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	ctl := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid, errors.Join(ctl, err)
}

// withOOMScore has the kernel kill the container before the daemons when memory is
// short: unset, it would inherit the score of containerd's shim, which is lower.
func withOOMScore(score int) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		s.Process.OOMScoreAdj = &score
		return nil
	}
}

// withCgroupNamespace hides the machine's control groups above the container's own,
// where the kernel can (Linux 4.6).
func withCgroupNamespace(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	if _, err := os.Stat("/proc/self/ns/cgroup"); err != nil {
		return nil
	}
	if !slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace }) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return nil
}

// withCgroupMount shows the container its own control group, read-only: runtimes
// such as the JVM read their limits there.
func withCgroupMount(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	const at = "/sys/fs/cgroup"
	s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == at })
	s.Mounts = append(s.Mounts, specs.Mount{
		Destination: at, Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev", "relatime"},
	})
	return nil
}
