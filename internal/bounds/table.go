package bounds

import (
	"fmt"
	"reflect"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Sizes that several rules share.
const (
	shortWord = 64   // bytes of a word for programs
	longWord  = 256  // bytes of a name that an operator chose
	idWord    = 512  // bytes of the id of a service or an instance
	sentence  = 2048 // bytes of a sentence for people
	evidence  = 8 << 10

	mostBoot  = 1 << 40 // boot numbers follow the wall clock in seconds
	mostCount = 1 << 53 // sequence numbers and generations
	mostEpoch = 1 << 62

	mostNodes     = 1_000_000 // of a cluster
	mostInstances = 1 << 17   // in one report
	mostWants     = 1 << 17   // in one message
	mostRecords   = 1 << 16   // of the network, in one message
	mostShares    = 1 << 16   // as many as a network can be cut into
	mostLists     = 64        // short lists of words
	mostDevices   = 1024      // of a node
)

// The most that one node and one cluster can have. The figures are far above any real
// machine or cluster.
var (
	noResources   = api.Resources{}
	nodeMost      = api.Resources{MilliCPU: 8192_000, MemoryMB: 1 << 27, StorageMB: 1 << 32, InMbit: 1e7, OutMbit: 1e7}
	clusterMost   = api.Resources{MilliCPU: 1e9, MemoryMB: 1 << 34, StorageMB: 1 << 40, InMbit: 1e10, OutMbit: 1e10}
	clusterLeast  = api.Resources{MilliCPU: -1e9, MemoryMB: -(1 << 34), StorageMB: -(1 << 40), InMbit: -1e10, OutMbit: -1e10}
	ofNode        = amount(noResources, nodeMost)
	ofCluster     = amount(noResources, clusterMost)
	freeOfCluster = amount(clusterLeast, clusterMost) // below 0 where more is placed than the operator offers

	digest   = anything("digests are compared for equality only")
	revision = anything("compared with revisions of the same author only; it chooses which of its own records is newer")
	states   = oneOf(api.Registered, api.Requested, api.ClusterScheduled, api.NodeScheduled, api.Created, api.Running, api.Completed, api.Failed, api.Terminated)
	words    = set(mostLists, word(longWord), itself)
)

// table has the rule of each field, by "Type.Field". A field of a struct type without a
// rule is checked by the rules of its fields.
var table = map[string]check{
	// Node to cluster.
	"NodeReport.Node":     machine[api.NodeID](),
	"NodeReport.Boot":     between(0, mostBoot),
	"NodeReport.Seq":      between(0, mostCount),
	"NodeReport.Gen":      between(0, mostCount),
	"NodeReport.Observed": listOf(mostInstances, nil),

	"NodeInfo.ID":           machine[api.NodeID](),
	"NodeInfo.Hostname":     word(253),
	"NodeInfo.Arch":         word(shortWord),
	"NodeInfo.OS":           word(shortWord),
	"NodeInfo.Capacity":     ofNode,
	"NodeInfo.Runtimes":     words,
	"NodeInfo.Labels":       dict(mostLists, word(longWord), word(longWord)),
	"NodeInfo.Version":      word(longWord),
	"NodeInfo.RuntimeError": text(sentence),
	"NodeInfo.Network":      oneOf("", api.NetworkOverlay, api.NetworkHost, api.NetworkNone),
	"NodeInfo.NetworkError": text(sentence),
	"NodeInfo.Devices":      set(mostDevices, nil, func(v reflect.Value) string { return v.FieldByName("ID").String() }),
	"NodeInfo.Addons":       words,
	"NodeInfo.Location":     place,
	"NodeInfo.Areas":        words,
	"NodeInfo.Brokers":      listOf(wire.MaxBrokers, word(longWord)),

	"NodePorts.Publish": strict(1024, nil),
	"NodePorts.Own":     strict(1<<17, nil),
	"PortRange.First":   anything("each value of 16 bits is a port, and a range may be empty"),
	"PortRange.Last":    anything("each value of 16 bits is a port, and a range may be empty"),
	"HostPort.Port":     anything("each value of 16 bits is a port, and 0 is none"),
	"HostPort.Protocol": oneOf("", "tcp", "udp", "sctp"),

	"NodeDevice.ID":    word(longWord),
	"NodeDevice.Kinds": words,
	"NodeDevice.Model": text(longWord),

	"Alive.Boot":     between(0, mostBoot),
	"Alive.Seq":      between(0, mostCount),
	"Alive.Gen":      between(0, mostCount),
	"Alive.Desired":  digest,
	"Alive.Observed": digest,
	"Alive.CPUUsed":  percent,
	"Alive.MemUsed":  percent,

	"NetUp.Boot":        between(0, mostBoot),
	"NetUp.Seq":         between(0, mostCount),
	"NetUp.Subscribe":   listOf(mostWants, nil),
	"NetUp.Unsubscribe": listOf(mostWants, nil),
	"NetUp.Held":        digest,
	"NetUp.Rev":         revision,
	"NetUp.Lease":       digest,
	"NetUp.Subnet":      prefix4,
	"NetUp.Measure":     digest,
	"NetUp.Between":     listOf(wire.MaxNetPairs, nil),

	"NetSelf.Key":       peerKey,
	"NetSelf.Endpoints": strict(32, endpoint),
	"NetSelf.Mapped":    strict(32, endpoint),
	"NetSelf.Chain":     strict(4, raw(evidence)),
	"NetSelf.Proof":     raw(512),
	"NetSelf.Coord":     coordinate,

	"NetPair.Local":       word(idWord),
	"NetPair.Remote":      word(idWord),
	"NetPair.Node":        word(idWord),
	"NetPair.Cluster":     machine[api.ClusterID](),
	"NetPair.Least":       between(1, int64(wire.MaxNetPairRTT)),
	"NetPair.Connections": between(1, 1<<31),
	"NetPair.Age":         between(0, int64(wire.MaxNetPairAge)-1),

	"Probed.ID":    anything("a probe's number that is not open does nothing"),
	"Probed.RTT":   between(0, int64(time.Minute)),
	"Probed.How":   oneOf("", "icmp", "tcp"),
	"Probed.Error": text(512),

	"NodePurging.Failed": text(sentence),

	// Cluster to root.
	"Hello.Cluster": machine[api.ClusterID](),
	"Hello.Since":   between(0, mostCount),
	"Hello.Digest":  digest,

	"ClusterInfo.ID":       machine[api.ClusterID](),
	"ClusterInfo.Location": word(longWord),
	"ClusterInfo.Tenant":   word(longWord),
	"ClusterInfo.Version":  word(longWord),
	"ClusterInfo.Block":    between(0, 1<<31),

	"Report.Cluster":   machine[api.ClusterID](),
	"Report.Boot":      between(0, mostBoot),
	"Report.Seq":       between(0, mostCount),
	"Report.Gen":       between(0, mostCount),
	"Report.Desired":   digest,
	"Report.Known":     digest,
	"Report.Aggregate": unit,
	"Report.Observed":  listOf(mostInstances, nil),
	"Report.Notices":   listOf(mostLists, nil),

	"Notice.No":     between(0, mostCount),
	"Notice.Reason": word(shortWord),
	"Notice.Text":   text(sentence),
	"Notice.Times":  between(0, 1<<31),

	"Aggregate.Nodes":            between(0, mostNodes),
	"Aggregate.Overlay":          between(0, mostNodes),
	"Aggregate.Capacity":         ofCluster,
	"Aggregate.Free":             freeOfCluster,
	"Aggregate.Mean":             freeOfCluster,
	"Aggregate.StdDev":           ofCluster,
	"Aggregate.Largest":          freeOfCluster,
	"Aggregate.Slots":            set(1024, nil, slotName),
	"Aggregate.Hull":             strict(4096, place),
	"Aggregate.Unplaced":         between(0, mostNodes),
	"Aggregate.BandwidthUnknown": between(0, mostNodes),
	"Aggregate.Yields":           strict(len(api.Priorities), nil),

	"Slot.Runtime":          word(longWord),
	"Slot.Arch":             word(shortWord),
	"Slot.Areas":            words,
	"Slot.Addons":           words,
	"Slot.Nodes":            between(0, mostNodes),
	"Slot.Free":             freeOfCluster,
	"Slot.Largest":          freeOfCluster,
	"Slot.BandwidthUnknown": between(0, mostNodes),
	"Slot.Devices":          set(mostLists*4, nil, func(v reflect.Value) string { return v.FieldByName("Name").String() }),

	"SlotDevice.Name":    word(longWord),
	"SlotDevice.Free":    between(0, mostNodes*mostDevices),
	"SlotDevice.Largest": between(0, mostDevices),

	"Yield.Urgency": between(0, int64(len(api.Priorities))-1),
	"Yield.Free":    freeOfCluster,
	"Yield.Largest": freeOfCluster,

	"CoordSpread.Center": coordinate,
	"CoordSpread.Radius": between(0, int64(time.Hour)),
	"CoordSpread.Nodes":  between(0, mostNodes),

	"ClusterNet.Subnets":     between(0, mostNodes),
	"ClusterNet.Shares":      listOf(mostShares, prefix4),
	"ClusterNet.Returned":    listOf(mostShares, prefix4),
	"ClusterNet.Subscribe":   listOf(mostWants, nil),
	"ClusterNet.Unsubscribe": listOf(mostWants, nil),
	"ClusterNet.InUse":       listOf(mostRecords, nil),
	"ClusterNet.Subscribed":  digest,
	"ClusterNet.Published":   digest,
	"ClusterNet.Rev":         revision,
	"ClusterNet.Held":        digest,

	"ServiceAddress.Address": address,
	"ServiceAddress.Service": word(idWord),

	"Records.Routes":          listOf(mostRecords, nil),
	"Records.Sources":         listOf(mostRecords, nil),
	"Records.Peers":           listOf(mostRecords, nil),
	"Records.Refused":         listOf(mostWants, nil),
	"Records.RemovedRoutes":   listOf(mostRecords, word(idWord)),
	"Records.RemovedSources":  listOf(mostRecords, address),
	"Records.RemovedPeers":    listOf(mostRecords, peerKey),
	"Records.RemovedRefusals": listOf(mostWants, nil),

	"Span.After": word(2 * sentence),
	"Span.To":    word(2 * sentence),

	"Subscription.Address": address,
	"Subscription.Service": word(idWord),
	"Subscription.For":     word(idWord),

	"Route.Service":  word(idWord),
	"Route.Rev":      revision,
	"Route.Ports":    listOf(1024, nil),
	"Route.Backends": listOf(2*api.MaxReplicas, nil),
	"Route.Peers":    listOf(2*api.MaxReplicas, nil),

	"PortMap.Host":     anything("each value of 16 bits is a port, and 0 is none"),
	"PortMap.Instance": anything("each value of 16 bits is a port, and 0 is none"),
	"PortMap.Protocol": oneOf("", "tcp", "udp", "sctp"),

	"ServiceAddresses.RoundRobin": address4,
	"ServiceAddresses.Closest":    address4,
	"ServiceAddresses.Instances":  dict(2*api.MaxReplicas, between(0, 1<<31), address4),

	"Access.Callers": strict(1024, word(idWord)),
	"Access.Calls":   strict(1024, word(idWord)),

	"Backend.Instance": word(idWord),
	"Backend.Epoch":    between(0, mostEpoch),
	"Backend.Address":  address4,
	"Backend.Peer":     anything("a backend counts only behind a peer that is named with it"),
	"Backend.State":    oneOf("", api.BackendUp, api.BackendDraining, api.BackendStarting),
	"Backend.Load":     percent,

	"Peer.Key":       anything("a peer's record counts only with a proof by its certificate over the key"),
	"Peer.Cluster":   machine[api.ClusterID](),
	"Peer.Node":      machine[api.NodeID](),
	"Peer.Subnets":   strict(8, prefix4),
	"Peer.Endpoints": listOf(32, endpoint),
	"Peer.Chain":     strict(4, raw(evidence)),
	"Peer.Proof":     raw(evidence),
	"Peer.Coord":     coordinate,
	"Peer.Rev":       revision,

	"Relay.Addr":   word(idWord),
	"Relay.Slot":   anything("a relay refuses a slot that it did not give"),
	"Relay.Ticket": anything("a relay refuses a ticket that it did not give"),

	"Source.Address": address4,
	"Source.Rev":     revision,
	"Source.Service": word(idWord),

	// Both links.
	"Observed.Instance": word(idWord),
	"Observed.Epoch":    between(0, mostEpoch),
	"Observed.State":    states,
	"Observed.Reason":   word(shortWord),
	"Observed.Detail":   text(sentence),
	"Observed.Restarts": between(0, 1<<31),
	"Observed.Failures": between(0, 1<<31),
	"Observed.ExitCode": between(-1<<31, 1<<32),
	"Observed.Node":     machine[api.NodeID](),
	"Observed.Address":  address4,
	"Observed.Violated": text(sentence),
	"Observed.Moves":    listOf(wire.MaxMoves, moment),
	"Observed.Devices":  set(mostDevices, word(longWord), itself),

	"Explanation.Considered": between(0, mostNodes),
	"Explanation.Causes":     listOf(mostLists, nil),
	"Explanation.Candidates": listOf(mostLists, nil),

	"Cause.Constraint": word(longWord),
	"Cause.Count":      between(0, mostNodes),
	"Cause.Detail":     text(sentence),

	"Rejection.Candidate":  word(longWord),
	"Rejection.Constraint": word(longWord),
	"Rejection.Need":       text(sentence),
	"Rejection.Have":       text(sentence),
	"Rejection.Short":      text(sentence),
	"Rejection.Shortfall":  real(0, 1e9),

	"Position.Geo":   place,
	"Position.Node":  machine[api.NodeID](),
	"Position.Coord": coordinate,
}

// required are pointers for which nil permits more than any value. If their value is
// refused, the struct that has the pointer is refused.
var required = map[string]bool{
	"NodeInfo.Ports":    true, // nil: all ports may be published
	"Aggregate.Overlay": true, // nil: any of its nodes may have an overlay network
}

// wholes are checks of structs across fields that are each within their bounds.
var wholes = map[reflect.Type]check{
	reflect.TypeFor[wire.NetPair](): leaf(func(p wire.NetPair) string {
		if p.Valid() {
			return ""
		}
		return "both services, a node and a round trip"
	}),
	reflect.TypeFor[wire.NetSelf](): leaf(func(s wire.NetSelf) string {
		if len(s.Chain) > 0 {
			return ""
		}
		return "a certificate"
	}),
	reflect.TypeFor[wire.Probed](): leaf(func(p wire.Probed) string {
		if (p.RTT == 0) == (p.Error != "") && (p.RTT == 0 || !p.Refused) {
			return ""
		}
		return "either a round trip or an error"
	}),
}

func slotName(v reflect.Value) string {
	s, _ := v.Interface().(api.Slot)
	return fmt.Sprintf("%q %q %v %v %q %q", s.Runtime, s.Arch, s.Privileged, s.Network, s.Areas, s.Addons)
}
