package machine

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/netmanager/link"
)

// namespace is a network namespace with a running Watch.
type namespace struct {
	t       *testing.T
	ns      string
	reports chan bool // the argument of changed
	failed  chan error
	check   chan struct{}
}

// watchNamespace watches a new namespace. During the first report it calls during.
func watchNamespace(t *testing.T, during func()) *namespace {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	programtest.Need(t, "ip", "nsenter")
	e := &namespace{t: t, reports: make(chan bool, 1000), failed: make(chan error, 1), check: make(chan struct{}, 1)}
	enter := make(chan int, 1)
	first := true
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			e.failed <- err
			return
		}
		w, err := NewWatch(slog.New(slog.DiscardHandler))
		if err != nil {
			e.failed <- err
			return
		}
		enter <- unix.Gettid()
		e.failed <- w.Run(t.Context(), e.check, func(networks bool) {
			e.reports <- networks
			if first {
				first = false
				during()
			}
		})
	}()
	select {
	case tid := <-enter:
		e.ns = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), tid)
	case err := <-e.failed:
		t.Fatal(err)
	}
	return e
}

func (e *namespace) ip(batch string) {
	e.t.Helper()
	cmd := exec.Command("nsenter", "--net="+e.ns, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("%v: %s", err, out)
	}
}

func (e *namespace) await(what string) (networks bool) {
	e.t.Helper()
	select {
	case networks = <-e.reports:
	case err := <-e.failed:
		e.t.Fatalf("wait for a report of %s: Run ended: %v", what, err)
	case <-time.After(time.Minute):
		e.t.Fatalf("no report of %s within a minute", what)
	}
	return networks
}

// settled discards reports until there are none for a while, and returns their number.
func (e *namespace) settled() (n int) {
	time.Sleep(2 * settleTime)
	for ; len(e.reports) > 0; n++ {
		<-e.reports
	}
	return n
}

// The library's subscription ends when its socket overflows, as on a host that starts many
// containers while the core is busy.
func TestChangesAreReportedAfterAnOverflow(t *testing.T) {
	hold := make(chan struct{})
	e := watchNamespace(t, func() { <-hold }) // a report takes a while when the core is busy
	e.check <- struct{}{}
	e.await("the check") // reported only once Run runs
	var burst strings.Builder
	burst.WriteString("link set lo up\n")
	for i := range 4000 {
		fmt.Fprintf(&burst, "addr add 198.18.%d.%d/32 dev lo\n", i>>8, i&255)
	}
	e.ip(burst.String())
	close(hold)
	e.await("the burst")
	// More reports of the burst may follow. Every later change must be reported too.
	for i := range 3 {
		time.Sleep(resubscribePause)
		e.settled()
		e.ip(fmt.Sprintf("addr add 192.0.2.%d/32 dev lo\n", i+1))
		e.await("a change after the burst")
	}
}

// A VPN may add a network by a route alone.
func TestNetworksAddedByRoutesAreReported(t *testing.T) {
	e := watchNamespace(t, func() {})
	e.check <- struct{}{}
	if e.await("the check") {
		t.Error("a check was reported as a change of networks")
	}
	// Without link-local addresses, which the kernel adds at any time.
	e.ip("link add v0 type veth peer name v1\nlink set v0 addrgenmode none\nlink set v1 addrgenmode none\n" +
		"link set lo up\nlink set v0 up\nlink set v1 up\naddr add 192.0.2.1/24 dev v0\n")
	for n := 0; !e.await("the device's network"); n++ {
		if n == 100 {
			t.Fatal("100 reports after a device got a network, none of networks")
		}
	}
	for _, other := range []string{
		"route add 100.64.5.0/24 dev v0", "route add 2001:db8:5::/64 dev v0 table 52", "route del 100.64.5.0/24 dev v0",
	} {
		e.settled()
		// The overlay's routes, routes by a gateway and local routes connect to no network.
		e.ip("route replace 10.30.0.0/16 dev v0 proto " + fmt.Sprint(link.RouteProtocol) + "\nroute replace 198.51.100.0/24 via 192.0.2.9\n" +
			"route replace local 192.0.2.77 dev lo\n")
		if n := e.settled(); n > 0 {
			t.Errorf("%d reports of routes that connect to no network, before %q", n, other)
		}
		e.ip(other + "\n")
		if !e.await(other) {
			t.Errorf("%q was not reported as a change of networks", other)
		}
	}
}
