package dataplanetest

import (
	"iter"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// worlds is how many worlds run at once: the tests mostly wait.
const worlds = 6

// Run tests the planes of f with the kinds of path between the hosts. Each test has a world of
// its own.
func Run(t *testing.T, f Factory) {
	var all sync.WaitGroup
	room := make(chan struct{}, worlds)
	for _, path := range []api.PathKind{api.PathRoute, api.PathVXLAN, api.PathDirect} {
		all.Go(func() {
			t.Run(string(path), func(t *testing.T) {
				var each sync.WaitGroup
				tests := cases
				if path == api.PathVXLAN {
					tests = slices.Concat(cases, local)
				}
				for _, c := range tests {
					each.Go(func() {
						room <- struct{}{}
						defer func() { <-room }()
						t.Run(c.name, func(t *testing.T) { c.test(t, NewWorld(t, f, path)) })
					})
				}
				each.Wait()
			})
		})
	}
	all.Wait()
}

// test is a test of a plane.
type test struct {
	name string
	test func(*testing.T, *World)
}

// cases are the tests, which must pass for each kind of path.
var cases = []test{
	{"InstancesReachEachOther", instancesReachEachOther},
	{"NewFlowsGoToBackendsInTurn", newFlowsGoToBackendsInTurn},
	{"FlowsStayWithTheirBackend", flowsStayWithTheirBackend},
	{"EndedFlowsAreReset", endedFlowsAreReset},
	{"UnansweredFlowsTryAgain", unansweredFlowsTryAgain},
	{"SCTPPasses", sctpPasses},
	{"SCTPAssociates", sctpAssociates},
	{"QUICPasses", quicPasses},
	{"DatagramsOfAllSizesPass", datagramsOfAllSizesPass},
	{"PathMTUIsReported", pathMTUIsReported},
	{"DeniedFlowsAreDropped", deniedFlowsAreDropped},
	{"ForgedSourcesAreDropped", forgedSourcesAreDropped},
	{"PacketsByAnotherPathAreDropped", packetsByAnotherPathAreDropped},
	{"AllAcceptedPathsAreAccepted", allAcceptedPathsAreAccepted},
	{"PacketsFromUnknownAddressesAreQueued", packetsFromUnknownAddressesAreQueued},
	{"HostsAreClosed", hostsAreClosed},
	{"FlowsOutliveThePlane", flowsOutliveThePlane},
	{"ChangesDoNotAffectOtherFlows", changesDoNotAffectOtherFlows},
	{"UsageIsCounted", usageIsCounted},
	{"RemoveLeavesNothing", removeLeavesNothing},
}

// local are the tests of what a plane does in the same way for all kinds of paths. They run
// with one kind, because each world costs seconds of processor time.
var local = []test{
	{"CallWithoutBackendIsRefused", callWithoutBackendIsRefused},
	{"UDPFlowsTimeOut", udpFlowsTimeOut},
	{"InstanceMayBeItsOwnBackend", instanceMayBeItsOwnBackend},
	{"ClientsMayUseTheSameSourcePort", clientsMayUseTheSameSourcePort},
	{"EchoIsAnswered", echoIsAnswered},
	{"PacketsToUnknownAddressesAreQueued", packetsToUnknownAddressesAreQueued},
	{"QueuedPacketsOfAnInstanceAreLimited", queuedPacketsOfAnInstanceAreLimited},
	{"ResolverIsReachable", resolverIsReachable},
	{"PortsArePublished", portsArePublished},
	{"PublishedPortsDoNotHideLocalServers", publishedPortsDoNotHideLocalServers},
	{"FlowsOfAnInstanceAreLimited", flowsOfAnInstanceAreLimited},
	{"ChangeIsAtomic", changeIsAtomic},
	{"CallsBeforeSyncFail", callsBeforeSyncFail},
}

// both returns an address of the ranges, and the IPv6 address that contains it.
func both(a netip.Addr) []netip.Addr { return []netip.Addr{a, ranges.To6(a)} }

var networks = []string{"tcp", "udp"}

func calls(addrs ...netip.Addr) iter.Seq2[string, netip.Addr] {
	return func(yield func(string, netip.Addr) bool) {
		for _, a := range addrs {
			for _, network := range networks {
				if !yield(network, a) {
					return
				}
			}
		}
	}
}

func vip(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, 0, n}) }

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// serveAll starts a server on port 80 of each container.
func (w *World) serveAll() {
	for n := 1; n <= 6; n++ {
		w.serve(n)
	}
}

// serve starts a server on port 80 of container n.
func (w *World) serve(n int) netip.Addr {
	w.C(n).Serve(w.C(n).Label, 80)
	return w.C(n).Addr
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
	h.MustApply(plane.Change{SetServices: services, Allow: callers(services)})
}

// callers returns the pairs that allow every container to call the services.
func callers(services []plane.Service) (pairs []plane.Pair) {
	for _, s := range services {
		for n := range plane.Ident(6) {
			pairs = append(pairs, plane.Pair{From: n + 1, To: s.Ident})
		}
	}
	return pairs
}

func processors() int { return runtime.NumCPU() }
