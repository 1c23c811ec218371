package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// groupAnnotation has the runc shim serve all containers of a group from one process.
const groupAnnotation = "io.containerd.runc.v2.group"

const cpuPeriod = 100_000 // microseconds, the kernel's default

// capabilities that a container of user 0 keeps: to own files, change user and
// listen on low ports. No raw sockets, devices, chroot or audit.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL",
	"CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID",
}

// specOpts make the container's specification, default-deny: what is not
// listed here or asked for by the image within these bounds is not given.
func (c Config) specOpts(w runtime.Workload, image oci.SpecOpts) []oci.SpecOpts {
	id := runtime.ID(w.Key)
	opts := []oci.SpecOpts{
		image,
		oci.WithHostname(id[:12]),
		oci.WithEnv(w.Spec.Environment),
		oci.WithEnv(w.Env()),
		oci.WithCgroup(filepath.Join(c.CgroupParent, id)),
		oci.WithPidsLimit(c.PIDs),
		oci.WithNoNewPrivileges,
		oci.WithCapabilities(capabilities),
		withoutCapabilitiesOfOthers,
		withOpenFiles(c.OpenFiles),
		withOOMScore(runtime.OOMScoreAdj),
		withCgroupNamespace,
	}
	if !c.HideCgroups {
		opts = append(opts, withCgroupMount)
	}
	if len(w.Spec.Cmd) > 0 { // as in Oakestra, it replaces the image's entrypoint too
		opts = append(opts, oci.WithProcessArgs(w.Spec.Cmd...))
	}
	memory, cpu := runtime.LimitsOf(w.Spec)
	opts = append(opts, oci.WithMemoryLimit(uint64(memory)<<20),
		oci.WithCPUCFS(max(cpu*cpuPeriod/1000, 1000), cpuPeriod), oci.WithCPUShares(uint64(max(cpu*1024/1000, 2))))
	if swapIsAccounted() {
		opts = append(opts, oci.WithMemorySwap(memory<<20))
	}
	switch c.Network {
	case NetworkHost:
		opts = append(opts, oci.WithHostNamespace(specs.NetworkNamespace), withReadonlyFile("/etc/hosts", "/etc/hosts"), withReadonlyFile("/etc/resolv.conf", "/etc/resolv.conf"))
	case NetworkOverlay:
		names := c.namesDir(id)
		opts = append(opts, withReadonlyFile("/etc/hosts", filepath.Join(names, "hosts")), withReadonlyFile("/etc/resolv.conf", filepath.Join(names, "resolv.conf")), ownNetwork)
	}
	if h, _ := c.handler(w.Spec.Virtualization); h.Runtime == runcV2 {
		opts = append(opts, oci.WithAnnotations(map[string]string{groupAnnotation: c.group(w.Instance)}))
	}
	if w.Spec.Privileged { // Create has asked whether it may
		return append(opts, oci.WithPrivileged, oci.WithAllDevicesAllowed, oci.WithHostDevices, oci.WithNewPrivileges, c.withDevices(w))
	}
	if h, _ := c.handler(w.Spec.Virtualization); c.appArmor != "" && h.Runtime == runcV2 {
		opts = append(opts, apparmor.WithProfile(c.appArmor))
	}
	return append(opts, c.withDevices(w), seccomp.WithDefaultProfile(), nativeCallsOnly) // last: the profile follows the capabilities
}

// ownNetwork lets whoever a container runs as listen on any port of a network that
// is its own, and ping: there, low ports guard nothing.
func ownNetwork(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"}
	return nil
}

// withDevices gives the container its devices. It comes after the user is known,
// whose the device nodes become.
func (c Config) withDevices(w runtime.Workload) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if len(w.Devices) == 0 {
			return nil
		}
		if c.Devices == nil {
			return because(api.ReasonNoDevice, "this node's runtime gives no devices")
		}
		if err := c.Devices.Inject(s, w.Devices); err != nil {
			return because(api.ReasonNoDevice, "give it %v: %w", w.Devices, err)
		}
		return nil
	}
}

// nativeCallsOnly denies the system calls of the machine's 32-bit ancestors:
// hardly a program needs them, exploits like them, and runc compiles the filter
// at every start for each architecture that it names.
func nativeCallsOnly(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	native := map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}
	if a, ok := native[goruntime.GOARCH]; ok {
		s.Linux.Seccomp.Architectures = []specs.Arch{a}
	}
	return nil
}

// group names the containers that share a shim: those of one application.
func (c Config) group(i api.InstanceID) string {
	sum := sha256.Sum256([]byte(c.Namespace + "\x00" + string(i.Service().App())))
	return "treeline-" + hex.EncodeToString(sum[:12])
}

// withoutCapabilitiesOfOthers takes the capabilities from a process that is not
// user 0; it could gain them only by a program that no-new-privileges defuses.
func withoutCapabilitiesOfOthers(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	if s.Process.User.UID != 0 {
		s.Process.Capabilities = &specs.LinuxCapabilities{}
	}
	return nil
}

// withReadonlyFile shows the host's file at path in the container, if there is one.
func withReadonlyFile(path, file string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if _, err := os.Stat(file); err != nil {
			return nil
		}
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: path, Type: "bind", Source: file,
			Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
		})
		return nil
	}
}

// swapIsAccounted says whether the kernel bounds swap per group; on version 1
// that is a choice made at boot, and runc fails where it is missing.
func swapIsAccounted() bool {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return true
	}
	_, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
	return err == nil
}
