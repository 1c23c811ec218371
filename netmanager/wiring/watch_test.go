package wiring

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

// elsewhere is a network namespace of which watchPlace tells.
type elsewhere struct {
	t      *testing.T
	ns     string
	looks  chan bool // whether networks may be others
	failed chan error
	nudge  chan struct{}
}

// watchElsewhere watches a new namespace; during is called with the first look.
func watchElsewhere(t *testing.T, during func()) *elsewhere {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	programtest.Need(t, "ip", "nsenter")
	e := &elsewhere{t: t, looks: make(chan bool, 1000), failed: make(chan error, 1), nudge: make(chan struct{}, 1)}
	enter := make(chan int, 1)
	first := true
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			e.failed <- err
			return
		}
		w, err := watchHost()
		if err != nil {
			e.failed <- err
			return
		}
		enter <- unix.Gettid()
		e.failed <- watchPlace(t.Context(), slog.New(slog.DiscardHandler), w, e.nudge, func(networks bool) {
			e.looks <- networks
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

func (e *elsewhere) ip(batch string) {
	e.t.Helper()
	cmd := exec.Command("nsenter", "--net="+e.ns, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("%v: %s", err, out)
	}
}

func (e *elsewhere) look(what string) (networks bool) {
	e.t.Helper()
	select {
	case networks = <-e.looks:
	case err := <-e.failed:
		e.t.Fatalf("%s: it ended: %v", what, err)
	case <-time.After(time.Minute):
		e.t.Fatalf("%s is not seen", what)
	}
	return networks
}

// settled is how many looks there were, once all is at rest.
func (e *elsewhere) settled() (n int) {
	time.Sleep(2 * settleTime)
	for ; len(e.looks) > 0; n++ {
		<-e.looks
	}
	return n
}

// The library's subscription ends with the first overflow of its socket, which a host
// that starts many containers while the core is busy brings about.
func TestMovesAreSeenAfterABurst(t *testing.T) {
	hold := make(chan struct{})
	e := watchElsewhere(t, func() { <-hold }) // a look takes a while: the core is busy, the relay is told
	e.nudge <- struct{}{}
	e.look("the nudge") // which is heard only once it watches
	var burst strings.Builder
	burst.WriteString("link set lo up\n")
	for i := range 4000 {
		fmt.Fprintf(&burst, "addr add 198.18.%d.%d/32 dev lo\n", i>>8, i&255)
	}
	e.ip(burst.String())
	close(hold)
	e.look("the burst")
	// Of the burst more may follow; what counts is that the moves after it never end to
	// be seen.
	for i := range 3 {
		time.Sleep(watchPause)
		e.settled()
		e.ip(fmt.Sprintf("addr add 192.0.2.%d/32 dev lo\n", i+1))
		e.look("a move after the burst")
	}
}

// A VPN comes, or is told of another network, long after we began: by a route alone.
func TestNetworksThatComeByARouteAreSeen(t *testing.T) {
	e := watchElsewhere(t, func() {})
	e.nudge <- struct{}{}
	if e.look("the nudge") {
		t.Error("a nudge counts as another network")
	}
	// Without addresses of the kernel's own making, which come when it likes.
	e.ip("link add v0 type veth peer name v1\nlink set v0 addrgenmode none\nlink set v1 addrgenmode none\n" +
		"link set lo up\nlink set v0 up\nlink set v1 up\naddr add 192.0.2.1/24 dev v0\n")
	for !e.look("the device's network") {
	}
	for _, other := range []string{
		"route add 100.64.5.0/24 dev v0", "route add 2001:db8:5::/64 dev v0 table 52", "route del 100.64.5.0/24 dev v0",
	} {
		e.settled()
		// Ours, what goes by a router and what is the machine itself connect it to nobody.
		e.ip("route replace 10.30.0.0/16 dev v0 proto " + fmt.Sprint(link.RouteProtocol) + "\nroute replace 198.51.100.0/24 via 192.0.2.9\n" +
			"route replace local 192.0.2.77 dev lo\n")
		if n := e.settled(); n > 0 {
			t.Errorf("routes that connect us to nobody are seen before %q", other)
		}
		e.ip(other + "\n")
		if !e.look(other) {
			t.Errorf("%q is no other network", other)
		}
	}
}
