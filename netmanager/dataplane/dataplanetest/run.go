package dataplanetest

import (
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// worlds is how many worlds run at once: the tests mostly wait.
const worlds = 6

// Run tests the planes of f with each kind of path between the hosts. Each test has a world of
// its own.
func Run(t *testing.T, f Factory) {
	var all sync.WaitGroup
	room := make(chan struct{}, worlds)
	for _, path := range []api.PathKind{api.PathRoute, api.PathVXLAN, api.PathDirect} {
		all.Go(func() {
			t.Run(string(path), func(t *testing.T) {
				var each sync.WaitGroup
				for _, promise := range promises {
					each.Go(func() {
						room <- struct{}{}
						defer func() { <-room }()
						t.Run(promise.name, func(t *testing.T) { promise.test(t, NewWorld(t, f, path)) })
					})
				}
				each.Wait()
			})
		})
	}
	all.Wait()
}

// promises are the tests, which must pass for each kind of path.
var promises = []struct {
	name string
	test func(*testing.T, *World)
}{
	{"InstancesReachOneAnother", instancesReachOneAnother},
	{"NewFlowsGoToBackendsInTurn", newFlowsGoToBackendsInTurn},
	{"NoBackendIsRefusedAtOnce", noBackendIsRefusedAtOnce},
	{"FlowsStayWithTheirBackend", flowsStayWithTheirBackend},
	{"UDPFlowsTimeOut", udpFlowsTimeOut},
	{"EndedFlowsAreReset", endedFlowsAreReset},
	{"TheUnansweredTryAgain", theUnansweredTryAgain},
	{"AnInstanceMayBeItsOwnBackend", anInstanceMayBeItsOwnBackend},
	{"PortsAreNobodysAlone", portsAreNobodysAlone},
	{"EchoIsAnswered", echoIsAnswered},
	{"SCTPPasses", sctpPasses},
	{"SCTPAssociates", sctpAssociates},
	{"DatagramsOfQUICsShapePass", datagramsOfQUICsShapePass},
	{"SizesPass", sizesPass},
	{"NarrowWaysAreSaid", narrowWaysAreSaid},
	{"DeniedFlowsAreDropped", deniedFlowsAreDropped},
	{"ForgedSourcesAreDropped", forgedSourcesAreDropped},
	{"WaysAreTold", waysAreTold},
	{"EachWayThatIsTakenIsTakenIn", eachWayThatIsTakenIsTakenIn},
	{"TheUnknownIsHeld", theUnknownIsHeld},
	{"TheUnknownCallerIsHeld", theUnknownCallerIsHeld},
	{"NobodyTakesTheHold", nobodyTakesTheHold},
	{"HostsAreClosed", hostsAreClosed},
	{"TheResolverIsReached", theResolverIsReached},
	{"PortsArePublished", portsArePublished},
	{"PublishedPortsLeaveTheHostsOwn", publishedPortsLeaveTheHostsOwn},
	{"NobodyTakesAllRoom", nobodyTakesAllRoom},
	{"FlowsOutliveThePlane", flowsOutliveThePlane},
	{"ChangesDisturbNobody", changesDisturbNobody},
	{"AChangeIsWholeOrNot", aChangeIsWholeOrNot},
	{"UseIsCounted", useIsCounted},
	{"RemoveLeavesNothing", removeLeavesNothing},
}

// both returns an address of the ranges and its twin.
func both(a netip.Addr) []netip.Addr { return []netip.Addr{a, ranges.Twin(a)} }

// vip returns the n-th semantic address.
func vip(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, 0, n}) }

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// serveAll starts a server on port 80 of each container.
func (w *World) serveAll() {
	for n := 1; n <= 6; n++ {
		c := w.C(n)
		c.Serve(c.Label, 80)
	}
}

// service returns the service with semantic address vip(n) and ident 100+n, whose backends are
// the containers of these numbers, all of weight 1.
func (w *World) service(n byte, backends ...int) plane.Service {
	s := plane.Service{Address: vip(n), Ident: plane.Ident(100 + int(n))}
	for _, b := range backends {
		s.Backends = append(s.Backends, plane.Backend{Address: w.C(b).Addr, Weight: 1})
	}
	return s
}

// publish adds services to h's plane and allows everyone to call them.
func (h *Host) publish(services ...plane.Service) {
	h.t.Helper()
	c := plane.Change{SetServices: services}
	for _, s := range services {
		for n := range plane.Ident(6) {
			c.Allow = append(c.Allow, plane.Pair{From: n + 1, To: s.Ident})
		}
	}
	h.MustApply(c)
}

// must returns the answer of Ask, and fails the test on an error.
func must(t testing.TB) func(string, error) string {
	return func(s string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func processors() int { return runtime.NumCPU() }
