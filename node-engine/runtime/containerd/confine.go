package containerd

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"golang.org/x/sys/unix"
)

// appArmorProfile is the name of the AppArmor profile of containers. Its content is containerd's
// default profile, which is also Docker's.
const appArmorProfile = "treeline-default"

// loadAppArmor loads the profile if the kernel has AppArmor, and returns its name. If it cannot be
// loaded, containers run without it; the other restrictions still apply.
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

// limitOpenFiles returns RLIMIT_NOFILE of new containers: the configured value, or the largest value
// that containerd can set. It logs the latter when it changes.
func (r *Runtime) limitOpenFiles() int64 {
	limit, reason := maxOpenFiles(r.cfg.Address)
	if r.cfg.OpenFiles <= limit {
		return r.cfg.OpenFiles
	}
	if r.openFiles.Swap(limit) != limit {
		r.log.Warn("containers get fewer open files than configured", "open_files", r.cfg.OpenFiles, "given", limit, "reason", reason)
	}
	return limit
}

// maxOpenFiles returns the largest RLIMIT_NOFILE that containerd can set, with the reason of that
// limit: fs.nr_open, or containerd's own hard limit if it may not raise it. With a larger one no
// container would start.
func maxOpenFiles(address string) (limit int64, reason string) {
	limit, reason = math.MaxInt64, "fs.nr_open is unknown"
	if b, err := os.ReadFile("/proc/sys/fs/nr_open"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			limit, reason = n, "the kernel's limit: raise fs.nr_open (sysctl)"
		}
	}
	pid, err := peerOf(address)
	if err != nil {
		return limit, reason
	}
	var own unix.Rlimit
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &own) != nil {
		return limit, reason
	}
	return lowerByHardLimit(limit, reason, string(status), own.Max)
}

// lowerByHardLimit returns limit, or containerd's hard limit if that is lower and its status shows
// that it may not raise it.
func lowerByHardLimit(limit int64, reason, status string, hard uint64) (int64, string) {
	if mayRaiseLimits(status) || hard >= uint64(limit) {
		return limit, reason
	}
	return int64(hard), "containerd has this limit itself and lacks CAP_SYS_RESOURCE to raise it: set LimitNOFILE of its unit, or give it the capability"
}

// mayRaiseLimits reports whether a process has CAP_SYS_RESOURCE, according to its status.
func mayRaiseLimits(status string) bool {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err != nil || caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return true
}

// peerOf returns the PID of the process that listens on a unix socket.
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
