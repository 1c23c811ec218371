// Command guest is the init of virtual machines in tests, and an example of one. It loads the kernel
// modules in /modules, in the order of their names, configures the network, runs the program in the
// machine's arguments as an unprivileged user, and ends the machine with the program's exit code. The
// power button sends SIGTERM to the program.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/node-engine/runtime/qemu/guest"
)

const nobody = 65534

func main() {
	code, err := run()
	if err != nil {
		fmt.Println("guest:", err)
		code = 1
	}
	exit(code)
}

// exit ends the machine.
func exit(code int) {
	if code != 0 {
		fmt.Println("guest: exit:", write(guest.ExitPort, byte(min(code, 127))))
		_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART) // counts as a failure
	}
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() (int, error) {
	for at, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs"} {
		_ = os.MkdirAll(at, 0o755)
		if err := syscall.Mount(kind, at, kind, 0, ""); err != nil {
			return 0, fmt.Errorf("mount %s: %w", at, err)
		}
	}
	_ = os.MkdirAll("/tmp", 0o1777)
	raw()
	if err := loadModules(); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(guest.File)
	if err != nil {
		return 0, err
	}
	var p guest.Parameters
	if err := json.Unmarshal(text, &p); err != nil {
		return 0, err
	}
	_ = syscall.Sethostname([]byte(p.Hostname))
	if p.Network != nil {
		if err := configure(*p.Network); err != nil {
			return 0, fmt.Errorf("network: %w", err)
		}
	}
	if len(p.Args) == 0 {
		return 0, fmt.Errorf("no program in %s", guest.File)
	}
	cmd := &exec.Cmd{
		Path: p.Args[0], Args: p.Args, Env: p.Env, Dir: "/", Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}},
	}
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	go powerButton(func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// raw makes the console write lines as they are.
func raw() {
	if t, err := unix.IoctlGetTermios(1, unix.TCGETS); err == nil {
		t.Oflag &^= unix.OPOST
		_ = unix.IoctlSetTermios(1, unix.TCSETS, t)
	}
}

func loadModules() error {
	all, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, path := range all {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("load %s: %w", path, err)
		}
	}
	return nil
}

// configure configures the interface, whose name is eth0, and the loopback device.
func configure(n guest.Network) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	dev, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, d := range []netlink.Link{lo, dev} {
		if err := netlink.LinkSetUp(d); err != nil {
			return err
		}
	}
	for _, f := range []struct{ address, gateway string }{{n.Address, n.Gateway}, {n.Address6, n.Gateway6}} {
		if f.address == "" {
			continue
		}
		p, err := netip.ParsePrefix(f.address)
		if err != nil {
			return err
		}
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: mask}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrReplace(dev, a); err != nil {
			return fmt.Errorf("add %s: %w", f.address, err)
		}
		r := &netlink.Route{LinkIndex: dev.Attrs().Index, Gw: net.ParseIP(f.gateway), Flags: int(netlink.FLAG_ONLINK)}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route by %s: %w", f.gateway, err)
		}
	}
	return nil
}

// powerButton calls pressed for each press.
func powerButton(pressed func()) {
	const keyType, powerKey = 1, 116
	all, _ := filepath.Glob("/dev/input/event*")
	for _, path := range all {
		if name, _ := os.ReadFile(filepath.Join("/sys/class/input", filepath.Base(path), "device/name")); !strings.Contains(string(name), "Power") {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		go func() {
			for b := make([]byte, unsafe.Sizeof(unix.Timeval{})+8); ; {
				if _, err := f.Read(b); err != nil {
					return
				}
				event := b[len(b)-8:]
				if binary.NativeEndian.Uint16(event) == keyType && binary.NativeEndian.Uint16(event[2:]) == powerKey && event[4] == 1 {
					pressed()
				}
			}
		}()
	}
}
