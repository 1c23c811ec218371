package bounds

import (
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Sizes that several rules share.
const (
	shortWord = 64   // bytes of a constant
	longWord  = 256  // bytes of a name
	idWord    = 512  // bytes of the id of a service or an instance
	sentence  = 2048 // bytes of an explanation for people
	evidence  = 8 << 10

	maxBoot  = wire.MaxBoot
	maxCount = 1 << 53 // sequence numbers and generations
	maxEpoch = 1 << 62

	maxNodes      = 1_000_000 // of a cluster
	maxInstances  = 1 << 17   // in one report
	maxSubscribed = 1 << 17   // subscriptions in one message
	maxRecords    = 1 << 16   // of the network, in one message
	maxShares     = 1 << 16   // shares of a cluster
	maxLists      = 64        // elements of short lists
	maxDevices    = 1024      // of a node
)

// The maximum resources of one node and of one cluster, far above any real machine or cluster.
var (
	noResources   = api.Resources{}
	maxOfNode     = api.Resources{MilliCPU: 8192_000, MemoryMB: 1 << 27, StorageMB: 1 << 32, InMbit: 1e7, OutMbit: 1e7}
	maxOfCluster  = api.Resources{MilliCPU: 1e9, MemoryMB: 1 << 34, StorageMB: 1 << 40, InMbit: 1e10, OutMbit: 1e10}
	minOfCluster  = api.Resources{MilliCPU: -1e9, MemoryMB: -(1 << 34), StorageMB: -(1 << 40), InMbit: -1e10, OutMbit: -1e10}
	ofNode        = amount(noResources, maxOfNode)
	ofCluster     = amount(noResources, maxOfCluster)
	freeOfCluster = amount(minOfCluster, maxOfCluster) // negative if more is placed than the operator offers

	revision = anything("compared with revisions of the same author only; it chooses which of its own records is newer")
	port     = anything("each value of 16 bits is a port")
	words    = set(maxLists, itself, word(longWord))
)

// types has the rules by type, for fields without a rule in table.
var types = map[reflect.Type]check{
	reflect.TypeFor[api.NodeID]():     machine[api.NodeID](),
	reflect.TypeFor[api.ClusterID]():  machine[api.ClusterID](),
	reflect.TypeFor[api.Tenant]():     word(longWord),
	reflect.TypeFor[api.ServiceID]():  word(idWord),
	reflect.TypeFor[api.InstanceID](): word(idWord),
	reflect.TypeFor[api.Epoch]():      between(0, maxEpoch),
	reflect.TypeFor[api.Generation](): between(0, maxCount),
	reflect.TypeFor[api.Digest]():     anything("digests are compared for equality only"),
	reflect.TypeFor[api.Reason]():     word(shortWord),
	reflect.TypeFor[api.State](): oneOf(api.Registered, api.Requested, api.ClusterScheduled, api.NodeScheduled, api.Created,
		api.Running, api.Completed, api.Dormant, api.Failed, api.Terminated),
	reflect.TypeFor[api.Coordinate](): coordinate,
	reflect.TypeFor[api.Geo]():        place,
	reflect.TypeFor[netip.Addr]():     address4,
	reflect.TypeFor[netip.AddrPort](): endpoint,
	reflect.TypeFor[netip.Prefix]():   prefix4,
}

// table has the rules by "Type.Field". They take precedence over types. A field of a struct type
// without a rule is checked by the rules of its fields.
var table = map[string]check{
	// Node to cluster.
	"NodeReport.Boot":     between(0, maxBoot),
	"NodeReport.Seq":      between(0, maxCount),
	"NodeReport.Observed": listOf(maxInstances),
	"NodeReport.Usage":    listOf(maxInstances),

	"InstanceUsage.MilliCPU":    between(-1, 1<<20),
	"InstanceUsage.MemoryMB":    between(-1, 1<<30),
	"InstanceUsage.Connections": between(0, 1<<31),
	"InstanceUsage.Idle":        between(-1, int64(30*24*time.Hour)),
	"InstanceUsage.Requests":    between(-1, 1<<40),
	"InstanceUsage.Fault":       text(sentence),

	"NodeSample.Workloads": listOf(maxInstances),
	"Usage.MilliCPU":       between(-1, api.MaxUsedMilliCPU),
	"Usage.Memory":         between(-1, api.MaxUsedBytes),
	"Usage.In":             between(-1, api.MaxUsedBytes),
	"Usage.Out":            between(-1, api.MaxUsedBytes),

	"NodeInfo.Hostname":     word(253),
	"NodeInfo.Address":      word(253),
	"NodeInfo.Arch":         word(shortWord),
	"NodeInfo.OS":           word(shortWord),
	"NodeInfo.Capacity":     ofNode,
	"NodeInfo.Runtimes":     words,
	"NodeInfo.Labels":       dict(maxLists, word(longWord), word(longWord)),
	"NodeInfo.Version":      word(longWord),
	"NodeInfo.RuntimeError": text(sentence),
	"NodeInfo.Network":      oneOf("", api.NetworkOverlay, api.NetworkHost, api.NetworkNone),
	"NodeInfo.NetworkError": text(sentence),
	"NodeInfo.Devices":      set(maxDevices, func(v reflect.Value) string { return v.FieldByName("ID").String() }),
	"NodeInfo.Addons":       words,
	"NodeInfo.Areas":        words,
	"NodeInfo.Features":     words,
	"NodeInfo.Brokers":      listOf(wire.MaxBrokers, word(longWord)),
	"NodeInfo.Volumes":      set(api.MaxNodeVolumes, func(v reflect.Value) string { return v.FieldByName("ID").String() }),

	"NodePorts.Publish": strict(1024),
	"NodePorts.Own":     strict(1 << 17),
	"PortRange.First":   port,
	"PortRange.Last":    port,
	"HostPort.Port":     port,
	"HostPort.Protocol": oneOf("", "tcp", "udp", "sctp"),

	"NodeVolume.ID":     is("the id of a volume", func(v api.VolumeID) bool { _, err := api.ParseVolumeID(string(v)); return err == nil && !v.Shared() }),
	"NodeVolume.SizeMB": between(0, api.MaxVolumeMB),

	"NodeInfo.CSI":     set(8, func(v reflect.Value) string { return v.FieldByName("Driver").String() }),
	"NodeCSI.Driver":   is("the name of a CSI driver", api.ValidCSIDriver),
	"NodeCSI.NodeID":   text(256),
	"NodeCSI.Topology": dict(64, text(1024), text(1024)),

	"NodeDevice.ID":    word(longWord),
	"NodeDevice.Kinds": words,
	"NodeDevice.Model": text(longWord),

	"Alive.Boot":    between(0, maxBoot),
	"Alive.Seq":     between(0, maxCount),
	"Alive.CPUUsed": percent,
	"Alive.MemUsed": percent,

	"NetUp.Boot":        between(0, maxBoot),
	"NetUp.Seq":         between(0, maxCount),
	"NetUp.Subscribe":   listOf(maxSubscribed),
	"NetUp.Unsubscribe": listOf(maxSubscribed),
	"NetUp.Rev":         revision,
	"NetUp.Between":     listOf(wire.MaxNetPairs),
	"NetUp.Demand":      listOf(wire.MaxDemands),

	"NetSelf.Key":       peerKey,
	"NetSelf.Endpoints": strict(32),
	"NetSelf.Mapped":    strict(32),
	"NetSelf.Chain":     strict(4, raw(evidence)),
	"NetSelf.Proof":     raw(512),

	"NetPair.Node":        word(idWord),
	"NetPair.Least":       between(1, int64(wire.MaxNetPairRTT)),
	"NetPair.Connections": between(1, 1<<31),
	"NetPair.Age":         between(0, int64(wire.MaxNetPairAge)-1),

	"Probed.ID":    anything("a probe's number that is not open does nothing"),
	"Probed.RTT":   between(0, int64(time.Minute)),
	"Probed.How":   oneOf("", "icmp", "tcp"),
	"Probed.Error": text(512),

	"NodePurging.Failed": text(sentence),

	"WantVolume.Name": is("the name of a volume", api.ValidMachineName),

	"WantValue.Kind":    oneOf(api.KindConfig, api.KindSecret),
	"WantValue.Name":    word(shortWord),
	"WantValue.Version": between(0, maxCount),

	// Cluster to root.
	"ClusterInfo.Location": word(longWord),
	"ClusterInfo.Version":  word(longWord),
	"ClusterInfo.Block":    between(0, 1<<31),

	"Report.Boot":      between(0, maxBoot),
	"Report.Seq":       between(0, maxCount),
	"Report.Aggregate": unit,
	"Report.Observed":  listOf(maxInstances),
	"Report.Notices":   listOf(maxLists),

	"Notice.No":      between(0, maxCount),
	"Notice.Text":    text(sentence),
	"Notice.Times":   between(0, 1<<31),
	"Notice.Dropped": between(0, 1<<31),

	"Aggregate.Nodes":            between(0, maxNodes),
	"Aggregate.Overlay":          between(0, maxNodes),
	"Aggregate.Capacity":         ofCluster,
	"Aggregate.Free":             freeOfCluster,
	"Aggregate.Mean":             freeOfCluster,
	"Aggregate.StdDev":           ofCluster,
	"Aggregate.Largest":          freeOfCluster,
	"Aggregate.Slots":            set(1024, slotName),
	"Aggregate.Hull":             strict(4096),
	"Aggregate.Unplaced":         between(0, maxNodes),
	"Aggregate.BandwidthUnknown": between(0, maxNodes),
	"Aggregate.Preemptible":      strict(len(api.Priorities)),
	"Aggregate.Features":         words,

	"Slot.Runtime":          word(longWord),
	"Slot.Arch":             word(shortWord),
	"Slot.Areas":            words,
	"Slot.Addons":           words,
	"Slot.Features":         words,
	"Slot.Nodes":            between(0, maxNodes),
	"Slot.Free":             freeOfCluster,
	"Slot.Largest":          freeOfCluster,
	"Slot.BandwidthUnknown": between(0, maxNodes),
	"Slot.Devices":          set(maxLists*4, func(v reflect.Value) string { return v.FieldByName("Name").String() }),

	"SlotDevice.Name":    word(longWord),
	"SlotDevice.Free":    between(0, maxNodes*maxDevices),
	"SlotDevice.Largest": between(0, maxDevices),

	"Preemptible.Urgency": between(0, int64(len(api.Priorities))-1),
	"Preemptible.Free":    freeOfCluster,
	"Preemptible.Largest": freeOfCluster,

	"CoordSpread.Radius": between(0, int64(time.Hour)),
	"CoordSpread.Nodes":  between(0, maxNodes),

	"ClusterNet.Subnets":     between(0, maxNodes),
	"ClusterNet.Shares":      listOf(maxShares),
	"ClusterNet.Returned":    listOf(maxShares),
	"ClusterNet.Subscribe":   listOf(maxSubscribed),
	"ClusterNet.Unsubscribe": listOf(maxSubscribed),
	"ClusterNet.InUse":       listOf(maxRecords),
	"ClusterNet.Rev":         revision,
	"ClusterNet.Demand":      listOf(wire.MaxDemands),

	"ServiceAddress.Address": address,

	"Records.Routes":          listOf(maxRecords),
	"Records.Sources":         listOf(maxRecords),
	"Records.Peers":           listOf(maxRecords),
	"Records.Refused":         listOf(maxSubscribed),
	"Records.RemovedRoutes":   listOf(maxRecords, word(idWord)),
	"Records.RemovedSources":  listOf(maxRecords, address),
	"Records.RemovedPeers":    listOf(maxRecords, peerKey),
	"Records.RemovedRefusals": listOf(maxSubscribed),

	"Span.After": word(2 * sentence),
	"Span.To":    word(2 * sentence),

	"Subscription.Address": address,

	"Route.Rev":      revision,
	"Route.Ports":    listOf(1024),
	"Route.Backends": listOf(2 * api.MaxReplicas),
	"Route.Peers":    listOf(2 * api.MaxReplicas),

	"PortMap.Host":     port,
	"PortMap.Instance": port,
	"PortMap.Protocol": oneOf("", "tcp", "udp", "sctp"),

	"ServiceAddresses.Instances": dict(2*api.MaxReplicas, between(0, 1<<31), address4),

	"Access.Callers": strict(1024, word(idWord)),
	"Access.Calls":   strict(1024, word(idWord)),

	"Backend.Peer":  anything("a backend counts only behind a peer that is named with it"),
	"Backend.State": oneOf("", api.BackendUp, api.BackendDraining, api.BackendStarting),
	"Backend.Load":  percent,

	"Peer.Key":       anything("a peer's record counts only with a proof by its certificate over the key"),
	"Peer.Subnets":   strict(8),
	"Peer.Endpoints": listOf(32),
	"Peer.Chain":     strict(4, raw(evidence)),
	"Peer.Proof":     raw(evidence),
	"Peer.Rev":       revision,

	"Relay.Addr":   word(idWord),
	"Relay.Slot":   anything("a relay refuses a slot that it did not give"),
	"Relay.Ticket": anything("a relay refuses a ticket that it did not give"),

	"Source.Rev": revision,

	// Both links.
	"Observed.Detail":     text(sentence),
	"Observed.Restarts":   between(0, 1<<31),
	"Observed.Failures":   between(0, 1<<31),
	"Observed.ExitCode":   between(-1<<31, 1<<32),
	"Observed.Violated":   text(sentence),
	"Observed.ScaleFault": text(sentence),
	"Observed.Moves":      listOf(wire.MaxMoves, moment),
	"Observed.Runs":       listOf(api.MaxRuns),
	"Observed.Decided":    moment,
	"Run.At":              moment,
	"Run.Started":         moment,
	"Run.Ended":           moment,
	"Run.Result":          word(shortWord),
	"Run.Detail":          text(sentence),
	"Run.ExitCode":        between(-1<<31, 1<<32),
	"Observed.Devices":    set(maxDevices, itself, word(longWord)),

	"Explanation.Considered": between(0, maxNodes),
	"Explanation.Causes":     listOf(maxLists),
	"Explanation.Candidates": listOf(maxLists),

	"ClusterLatencies.Links": listOf(api.MaxLatencies),
	"LinkStatus.To":          word(idWord),
	"LinkStatus.Limit":       between(0, int64(time.Hour)),
	"LinkStatus.RTT":         between(0, int64(time.Minute)),
	"LinkStatus.By":          oneOf(api.ByConnections, api.ByNode, api.ByCoordinates),

	"ScaleStanding.Assigned": between(0, maxInstances),
	"ScaleStanding.Awake":    between(0, maxInstances),
	"ScaleStanding.Running":  between(0, maxInstances),
	"ScaleStanding.Metrics":  listOf(8),
	"ScaleStanding.Why":      text(sentence),
	"ScaleStanding.Fault":    text(sentence),
	"ScaleStanding.Waits":    text(sentence),
	"ScaleStanding.Idle":     real(0, 1e9),

	"ScaleMetric.Name":   word(shortWord),
	"ScaleMetric.Unit":   word(shortWord),
	"ScaleMetric.Target": real(0, 1e9),
	"ScaleMetric.Value":  real(-1e300, 1e300),
	"ScaleMetric.Wants":  between(0, maxInstances),

	"Cause.Constraint": word(longWord),
	"Cause.Count":      between(0, maxNodes),
	"Cause.Detail":     text(sentence),

	"Rejection.Candidate":  word(longWord),
	"Rejection.Constraint": word(longWord),
	"Rejection.Need":       text(sentence),
	"Rejection.Have":       text(sentence),
	"Rejection.Short":      text(sentence),
	"Rejection.Shortfall":  real(0, 1e9),
}

// required are the pointers for which nil permits more than any value. If their value is refused,
// the struct with the pointer is refused.
var required = map[string]bool{
	"NodeInfo.Ports":    true, // nil: all ports may be published
	"Aggregate.Overlay": true, // nil: each node may be on the overlay network
}

// wholes are checks across the fields of a struct, which are each within their bounds.
var wholes = map[reflect.Type]check{
	reflect.TypeFor[wire.NetPair](): is("both services, a node and a round trip", wire.NetPair.Valid),
	reflect.TypeFor[wire.NetSelf](): is("a certificate", func(s wire.NetSelf) bool { return len(s.Chain) > 0 }),
	reflect.TypeFor[wire.Probed](): is("either a round trip or an error", func(p wire.Probed) bool {
		return (p.RTT == 0) == (p.Error != "") && (p.RTT == 0 || !p.Refused)
	}),
}

func slotName(v reflect.Value) string {
	s, _ := v.Interface().(api.Slot)
	return fmt.Sprintf("%q %q %v %v %q %q %q", s.Runtime, s.Arch, s.Privileged, s.Network, s.Areas, s.Addons, s.Features)
}
