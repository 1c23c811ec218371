package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// groupAnnotation makes one process of the runc shim serve all containers of a group.
const groupAnnotation = "io.containerd.runc.v2.group"

// sandboxAnnotation makes the shim of gVisor connect the container's output. Without it, the shim waits for
// the container's end before it answers.
const sandboxAnnotation = "io.kubernetes.cri.container-type"

const cpuPeriod = 100_000 // microseconds, the kernel's default

// capabilities are for a container that runs as user 0: to change owners and users, and to listen on
// low ports. There are none for raw sockets, devices, chroot or audit.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL",
	"CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID",
}

// change returns an option that changes the specification.
func change(f func(s *oci.Spec) error) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error { return f(s) }
}

// specOpts returns the options of the container's specification. A container gets only what is listed
// here, and what the image configures within these bounds.
func (c Config) specOpts(w runtime.Workload, image oci.SpecOpts) []oci.SpecOpts {
	id := runtime.ID(w.Key)
	h, _ := c.handler(w.Spec.Virtualization)
	memory, cpu := runtime.LimitsOf(w.Spec)
	opts := []oci.SpecOpts{
		image,
		oci.WithHostname(id[:12]),
		oci.WithEnv(w.Spec.Environment),
		oci.WithEnv(w.Env()),
		oci.WithCgroup(filepath.Join(c.CgroupParent, id)),
		oci.WithPidsLimit(maxPIDs),
		oci.WithMemoryLimit(uint64(memory) << 20),
		oci.WithCPUCFS(max(cpu*cpuPeriod/1000, 1000), cpuPeriod),
		oci.WithCPUShares(uint64(max(cpu*1024/1000, 2))),
		oci.WithNoNewPrivileges,
		oci.WithCapabilities(capabilities),
		change(dropCapabilitiesOfOthers),
		oci.WithRlimit(&specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: uint64(c.OpenFiles), Hard: uint64(c.OpenFiles)}),
		change(setOOMScore),
	}
	if _, err := os.Stat("/proc/self/ns/cgroup"); err == nil { // hides the groups above the container's; Linux 4.6
		opts = append(opts, oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace}))
	}
	if c.CgroupMount { // for programs such as the JVM, which read their limits there
		const dir = "/sys/fs/cgroup"
		opts = append(opts, oci.WithoutMounts(dir), oci.WithMounts([]specs.Mount{{
			Destination: dir, Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev", "relatime"},
		}}))
	}
	if len(w.Spec.Cmd) > 0 { // replaces the image's entrypoint too, as in Oakestra
		opts = append(opts, oci.WithProcessArgs(w.Spec.Cmd...))
	}
	if hasSwapAccounting() {
		opts = append(opts, oci.WithMemorySwap(memory<<20))
	}
	switch c.Network {
	case api.NetworkHost:
		opts = append(opts, oci.WithHostNamespace(specs.NetworkNamespace), withReadonlyFile("/etc/hosts", "/etc/hosts"), withReadonlyFile("/etc/resolv.conf", "/etc/resolv.conf"))
	case api.NetworkOverlay:
		names := c.namesDir(id)
		opts = append(opts, withReadonlyFile("/etc/hosts", filepath.Join(names, "hosts")), withReadonlyFile("/etc/resolv.conf", filepath.Join(names, "resolv.conf")), change(ownNetwork))
		if c.joins(w) {
			opts = append(opts, oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: c.netNSLink(id)}))
		}
	}
	if w.Spec.TTY {
		opts = append(opts, oci.WithTTY)
	}
	opts = append(opts, oci.WithMounts(volumes(w.Mounts)))
	if w.Files != nil {
		opts = append(opts, oci.WithMounts(fileMounts(w.Files)))
	}
	if h.Runtime == runcV2 {
		opts = append(opts, oci.WithAnnotations(map[string]string{groupAnnotation: c.shimGroup(w.Instance)}))
	}
	if h.Runtime == runscV1 {
		opts = append(opts, oci.WithAnnotations(map[string]string{sandboxAnnotation: "sandbox"}))
	}
	if w.Spec.Privileged { // Create has checked that this is allowed
		return append(opts, oci.WithPrivileged, oci.WithAllDevicesAllowed, oci.WithHostDevices, oci.WithNewPrivileges, c.withDevices(w))
	}
	if c.appArmor != "" && h.Runtime == runcV2 {
		opts = append(opts, apparmor.WithProfile(c.appArmor))
	}
	return append(opts, c.withDevices(w), seccomp.WithDefaultProfile(), change(nativeCallsOnly)) // last: the profile depends on the capabilities
}

// setOOMScore makes the kernel kill the container before the daemons when memory is short. The
// default is the score of containerd's shim, which is lower.
func setOOMScore(s *oci.Spec) error {
	score := runtime.OOMScoreAdj
	s.Process.OOMScoreAdj = &score
	return nil
}

// ownNetwork lets every user of the container listen on any port, and ping. Low ports need no
// protection in a network namespace of the container's own.
func ownNetwork(s *oci.Spec) error {
	s.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"}
	return nil
}

// withDevices adds the workload's devices. It must follow the options that set the user, who
// becomes the owner of the device nodes.
func (c Config) withDevices(w runtime.Workload) oci.SpecOpts {
	return change(func(s *oci.Spec) error {
		if len(w.Devices) == 0 {
			return nil
		}
		if c.Devices == nil {
			return runtime.Errorf(api.ReasonNoDevice, "this node's runtime supports no devices")
		}
		if err := c.Devices.Inject(s, w.Devices); err != nil {
			return runtime.Errorf(api.ReasonNoDevice, "add devices %v: %w", w.Devices, err)
		}
		return nil
	})
}

// nativeCallsOnly denies the system calls of the 32-bit architecture: few programs need them,
// exploits use them, and runc compiles the filter at every start for each architecture.
func nativeCallsOnly(s *oci.Spec) error {
	native := map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}
	if a, ok := native[goruntime.GOARCH]; ok {
		s.Linux.Seccomp.Architectures = []specs.Arch{a}
	}
	return nil
}

// shimGroup returns the name of the group of containers that share a shim: those of one
// application.
func (c Config) shimGroup(i api.InstanceID) string {
	sum := sha256.Sum256([]byte(c.Namespace + "\x00" + string(i.Service().App())))
	return "treeline-" + hex.EncodeToString(sum[:12])
}

// dropCapabilitiesOfOthers removes the capabilities of a process that does not run as user 0. It
// could use them only by a set-user-ID program, which no-new-privileges disables.
func dropCapabilitiesOfOthers(s *oci.Spec) error {
	if s.Process.User.UID != 0 {
		s.Process.Capabilities = &specs.LinuxCapabilities{}
	}
	return nil
}

// withReadonlyFile mounts the host's file at path, if it exists.
func withReadonlyFile(path, file string) oci.SpecOpts {
	if _, err := os.Stat(file); err != nil {
		return oci.Compose()
	}
	return oci.WithMounts([]specs.Mount{{
		Destination: path, Type: "bind", Source: file,
		Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
	}})
}

// volumes returns the mounts of a workload's volumes.
func volumes(all []runtime.Mount) (out []specs.Mount) {
	for _, v := range all {
		m := specs.Mount{Destination: v.Target, Type: "bind", Source: v.Source, Options: []string{"bind", "rprivate", "nosuid", "nodev"}}
		if v.Source == "" {
			m.Type, m.Source = "tmpfs", "tmpfs"
			m.Options = []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%dm", v.SizeMB)}
		}
		if v.ReadOnly {
			m.Options = append(m.Options, "ro")
		}
		out = append(out, m)
	}
	return out
}

// hasSwapAccounting reports whether the kernel limits swap per group. On version 1 a boot parameter
// enables this, and runc fails without it.
func hasSwapAccounting() bool {
	for _, file := range []string{"cgroup.controllers", "memory/memory.memsw.limit_in_bytes"} {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", file)); err == nil {
			return true
		}
	}
	return false
}
