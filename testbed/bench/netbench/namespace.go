package netbench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name on the host. It exists while this process holds
// it open or a process runs in it.
type Namespace struct {
	Name   string // for messages
	file   *os.File
	oneCPU bool // its processes run on one processor
}

// NewNamespace creates an empty namespace with its loopback up.
func NewNamespace(ctx context.Context, name string) (*Namespace, error) {
	type made struct {
		f   *os.File
		err error
	}
	got := make(chan made)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			got <- made{nil, err}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		got <- made{f, err}
	}()
	m := <-got
	if m.err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", name, m.err)
	}
	n := &Namespace{Name: name, file: m.f}
	if err := n.IP(ctx, "link set lo up"); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

// Path returns the path of the namespace, which is valid while this process holds it open.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Close closes the namespace.
func (n *Namespace) Close() error { return n.file.Close() }

// Start starts a program in the namespace. Its mount namespace stays the host's,
// so that /sys/fs/bpf is there.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	if err := n.inside(cmd.Start); err != nil {
		return fmt.Errorf("start %s in %s: %w", cmd.Args[0], n.Name, err)
	}
	return nil
}

// Run runs a program with an input until it ends.
func (n *Namespace) Run(ctx context.Context, stdin string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	if err := n.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s in %s: %w: %s", strings.Join(args, " "), n.Name, err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// IP runs commands of iproute2, one after the other.
func (n *Namespace) IP(ctx context.Context, lines ...string) error {
	return n.Run(ctx, strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
}

// Sysctl sets values of the namespace, "net.ipv4.ip_forward=1".
func (n *Namespace) Sysctl(ctx context.Context, settings ...string) error {
	return n.Run(ctx, "", append([]string{"sysctl", "-q", "-w"}, settings...)...)
}

// veth connects two namespaces.
func veth(ctx context.Context, a *Namespace, nameA string, b *Namespace, nameB string, mtu int) error {
	if err := a.IP(ctx,
		fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d netns %s", nameA, mtu, nameB, mtu, b.Path()),
		"link set "+nameA+" up"); err != nil {
		return err
	}
	return b.IP(ctx, "link set "+nameB+" up")
}

// inside runs fn in the namespace. Sockets that it opens stay there.
func (n *Namespace) inside(fn func() error) error {
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // as in NewNamespace
		err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET)
		if err == nil && n.oneCPU {
			err = keepToOneCPU()
		}
		if err == nil {
			err = fn()
		}
		errs <- err
	}()
	return <-errs
}

// keepToOneCPU pins the thread and the processes that it starts to the first processor that it may
// use.
func keepToOneCPU() error {
	var may, first unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("read the CPU affinity: %w", err)
	}
	for cpu := 0; first.Count() == 0; cpu++ {
		if may.IsSet(cpu) {
			first.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		return fmt.Errorf("set the CPU affinity: %w", err)
	}
	return nil
}
