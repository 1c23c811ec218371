package command

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/cli/output"
)

const (
	forwarding       = "/proc/sys/net/ipv4/ip_forward"
	containerdSocket = "/run/containerd/containerd.sock"
	minMTU           = 1280 // of IPv6, and of the overlay network's encrypted paths
)

// checkMachine checks what a node engine and a netmanager need.
func checkMachine() []checked {
	return []checked{checkControlGroups("/sys/fs/cgroup/cgroup.controllers"), checkPacketFilter(), checkSysctl(unix.Access(forwarding, unix.W_OK)), checkContainerd(containerdSocket), checkKVM("/dev/kvm"), checkSync(), checkMTU()}
}

func checkControlGroups(path string) checked {
	const fix = "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), and on a Raspberry Pi with cgroup_enable=memory; on Alpine: rc-update add cgroups && rc-service cgroups start"
	text, err := os.ReadFile(path)
	if _, old := os.Stat(filepath.Join(filepath.Dir(path), "memory", "memory.limit_in_bytes")); err != nil && old == nil {
		return warned("cgroups", fix, "version 1; limits work, measures of load and autoscaling need version 2")
	}
	if err != nil {
		return failed("cgroups", fix, "no control groups of version 2: %v", err)
	}
	have := strings.Fields(string(text))
	for _, want := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(have, want) {
			return failed("cgroups", fix, "the controller %s is missing; the kernel has %s", want, strings.Join(have, ", "))
		}
	}
	return passed("cgroups", "version 2 with %s", strings.Join(have, ", "))
}

// checkPacketFilter asks the kernel for the generation of its rules, which needs CAP_NET_ADMIN.
func checkPacketFilter() checked {
	const fix = "load the module nf_tables (modprobe nf_tables), or use a kernel with CONFIG_NF_TABLES"
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return failed("nftables", fix, "the kernel has no netfilter: %v", err)
	}
	defer unix.Close(s)
	const getGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	request := []byte{20, 0, 0, 0, getGeneration & 0xff, getGeneration >> 8, unix.NLM_F_REQUEST, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	answer := make([]byte, 4096)
	err = unix.Sendto(s, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		_ = unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
		var n int
		if n, _, err = unix.Recvfrom(s, answer, 0); err == nil && n >= 20 && answer[4] == unix.NLMSG_ERROR && answer[5] == 0 {
			err = unix.Errno(-int32(uint32(answer[16]) | uint32(answer[17])<<8 | uint32(answer[18])<<16 | uint32(answer[19])<<24))
		}
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return warned("nftables", "run treeline doctor --machine as root", "unknown without the right to administer the network")
	case err != nil:
		return failed("nftables", fix, "the kernel has no nftables: %v", err)
	}
	return passed("nftables", "the kernel answers")
}

// checkSysctl judges the error of asking for write access to a sysctl. The netmanager sets some, for forwarding and for each device.
func checkSysctl(err error) checked {
	switch {
	case errors.Is(err, unix.EROFS):
		return failed("sysctl", "in a container: --privileged, or mount /proc/sys writable (systemd-nspawn: SYSTEMD_NSPAWN_API_VFS_WRITABLE=network); or set containerd.network: host in /etc/treeline/node.yaml",
			"/proc/sys is read-only, and the netmanager sets values in it: containers get no overlay network")
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return warned("sysctl", "run treeline doctor --machine as root", "unknown without the right to write %s", forwarding)
	case err != nil:
		return failed("sysctl", "mount /proc, and use a kernel with CONFIG_SYSCTL and IPv4", "the kernel has no %s: %v", forwarding, err)
	}
	return passed("sysctl", "values in /proc/sys can be set")
}

func checkContainerd(socket string) checked {
	conn, err := net.Dial("unix", socket)
	switch {
	case errors.Is(err, os.ErrPermission):
		return warned("containerd", "run treeline doctor --machine as root", "%s cannot be opened by this user", socket)
	case err != nil:
		return warned("containerd", "apt-get install containerd, and systemctl start containerd; without it, the node runs plain processes only", "no containerd at %s: %v", socket, err)
	}
	_ = conn.Close()
	return passed("containerd", "it answers at %s", socket)
}

func checkKVM(device string) checked {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return warned("kvm", "enable virtualization in the firmware, and load kvm_intel or kvm_amd; only virtual machines need it", "virtual machines are emulated, and slow: %v", err)
	}
	_ = f.Close()
	return passed("kvm", "%s can be opened", device)
}

func checkSync() checked {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil || state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0 {
		return warned("clock", "start systemd-timesyncd or chrony; in a container or a virtual machine its host may do this", "the kernel does not know whether the clock is synchronized")
	}
	return passed("clock", "synchronized")
}

func checkMTU() checked {
	all, err := net.Interfaces()
	if err != nil {
		return failed("mtu", "", "list the network interfaces: %v", err)
	}
	var names []string
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 || i.Flags&net.FlagUp == 0 {
			continue
		}
		if i.MTU < minMTU {
			return warned("mtu", "ip link set "+i.Name+" mtu 1500, unless it is no way to other nodes", "%s has an MTU of %d, below %d: packets of the overlay network may be lost", i.Name, i.MTU, minMTU)
		}
		names = append(names, i.Name)
	}
	if len(names) == 0 {
		return failed("mtu", "connect the machine to a network", "no network interface is up")
	}
	return passed("mtu", "%d or more on %s", minMTU, output.Plural(len(names), "interface"))
}
