package dataplanetest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// Space is a network namespace.
type Space struct {
	t    testing.TB
	Name string
	fd   int
}

var spaces atomic.Int64

// NewSpace returns a namespace that ends with the test. Its lo is up.
func NewSpace(t testing.TB, name string) *Space {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("network namespaces need root")
	}
	programtest.Need(t, "ip", "nft", "nsenter", "tc")
	s := &Space{t: t, Name: fmt.Sprintf("dpt%d-%d-%s", os.Getpid(), spaces.Add(1), name)}
	command(t, "ip", "netns", "add", s.Name)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", s.Name).Run() })
	fd, err := unix.Open(s.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.fd = fd
	t.Cleanup(func() { unix.Close(fd) })
	// Duplicate address detection would delay each test by a second.
	s.Sysctl("net/ipv6/conf/all/accept_dad", "0")
	s.Sysctl("net/ipv6/conf/default/accept_dad", "0")
	// New namespaces inherit the machine's settings.
	s.Sysctl("net/ipv4/ip_forward", "0")
	s.Sysctl("net/ipv6/conf/all/forwarding", "0")
	s.IP("link set lo up")
	return s
}

// Path returns the path of the namespace.
func (s *Space) Path() string { return "/run/netns/" + s.Name }

// Do runs f on a thread in the namespace. Sockets that f opens stay in it, whichever thread
// uses them. Goroutines that f starts run outside.
func (s *Space) Do(f func()) {
	done := make(chan any)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		var died any
		defer func() { done <- died }()
		defer func() { died = recover() }()
		if err := unix.Setns(s.fd, unix.CLONE_NEWNET); err != nil {
			panic(fmt.Sprintf("enter %s: %v", s.Name, err))
		}
		f()
	}()
	if died := <-done; died != nil {
		panic(died)
	}
}

// IP runs lines of ip(8) in the namespace.
func (s *Space) IP(lines ...string) {
	s.t.Helper()
	cmd := exec.Command("ip", "-n", s.Name, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("ip -n %s: %v: %s\n%s", s.Name, err, out, strings.Join(lines, "\n"))
	}
}

// Sysctl sets a sysctl of the namespace; key is its path below /proc/sys.
func (s *Space) Sysctl(key, value string) {
	s.t.Helper()
	s.Do(func() {
		if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644); err != nil {
			panic(err)
		}
	})
}

// Output runs a program in the namespace and returns its output.
func (s *Space) Output(name string, args ...string) string {
	s.t.Helper()
	// --net only: ip-netns would mount another /sys.
	return command(s.t, "nsenter", append([]string{"--net=" + s.Path(), name}, args...)...)
}

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
