package wire

// Each link has one message type per direction, and a handler with one method per message, so
// that a handler that lacks a message does not compile. Messages that no core sends
// (StreamRequest, Revocations, Probed) and NetUp, which is alone on its link, have no such type.

// RootToCluster is a message that the root's core sends to a cluster.
type RootToCluster interface{ DeliverToCluster(RootToClusterHandler) }

// RootToClusterHandler handles the messages of the root's core to a cluster.
type RootToClusterHandler interface {
	Desired(Desired)
	ReportAck(ReportAck)
	RootNet(RootNet)
}

// DeliverToCluster calls h.Desired.
func (m Desired) DeliverToCluster(h RootToClusterHandler) { h.Desired(m) }

// DeliverToCluster calls h.ReportAck.
func (m ReportAck) DeliverToCluster(h RootToClusterHandler) { h.ReportAck(m) }

// DeliverToCluster calls h.RootNet.
func (m RootNet) DeliverToCluster(h RootToClusterHandler) { h.RootNet(m) }

// ClusterToRoot is a message that a cluster's core sends to its root.
type ClusterToRoot interface{ DeliverToRoot(ClusterToRootHandler) }

// ClusterToRootHandler handles the messages of a cluster's core to the root.
type ClusterToRootHandler interface {
	Hello(Hello)
	Report(Report)
}

// DeliverToRoot calls h.Hello.
func (m Hello) DeliverToRoot(h ClusterToRootHandler) { h.Hello(m) }

// DeliverToRoot calls h.Report.
func (m Report) DeliverToRoot(h ClusterToRootHandler) { h.Report(m) }

// ClusterToNode is a message that a cluster's core sends to a node.
type ClusterToNode interface{ DeliverToNode(ClusterToNodeHandler) }

// ClusterToNodeHandler handles the messages of a cluster's core to a node.
type ClusterToNodeHandler interface {
	Desired(Desired)
	Lease(Lease)
	NetDown(NetDown)
	ProbeOrder(ProbeOrder)
}

// DeliverToNode calls h.Desired.
func (m Desired) DeliverToNode(h ClusterToNodeHandler) { h.Desired(m) }

// DeliverToNode calls h.Lease.
func (m Lease) DeliverToNode(h ClusterToNodeHandler) { h.Lease(m) }

// DeliverToNode calls h.NetDown.
func (m NetDown) DeliverToNode(h ClusterToNodeHandler) { h.NetDown(m) }

// DeliverToNode calls h.ProbeOrder.
func (m ProbeOrder) DeliverToNode(h ClusterToNodeHandler) { h.ProbeOrder(m) }

// NodeToCluster is a message that a node engine's core sends to its cluster.
type NodeToCluster interface{ DeliverFromNode(NodeToClusterHandler) }

// NodeToClusterHandler handles the messages of a node engine's core to its cluster.
type NodeToClusterHandler interface {
	NodeReport(NodeReport)
	Alive(Alive)
}

// DeliverFromNode calls h.NodeReport.
func (m NodeReport) DeliverFromNode(h NodeToClusterHandler) { h.NodeReport(m) }

// DeliverFromNode calls h.Alive.
func (m Alive) DeliverFromNode(h NodeToClusterHandler) { h.Alive(m) }

// WorkloadOrder is an order of a node's core to its runtime.
type WorkloadOrder interface {
	Of() Key // the placement that the order is for
	Deliver(WorkloadOrderHandler)
}

// WorkloadOrderHandler handles the orders of a node's core to its runtime.
type WorkloadOrderHandler interface {
	Fetch(FetchWorkload)
	Create(CreateWorkload)
	Start(StartWorkload)
	Stop(StopWorkload)
	Update(UpdateFiles)
	Kill(KillWorkload)
	SetReady(ReadyWorkload)
	Detach(DetachWorkload)
	Guard(GuardWorkload)
}

// Of returns k.
func (k Key) Of() Key { return k }

// Deliver calls h.Fetch.
func (o FetchWorkload) Deliver(h WorkloadOrderHandler) { h.Fetch(o) }

// Deliver calls h.Create.
func (o CreateWorkload) Deliver(h WorkloadOrderHandler) { h.Create(o) }

// Deliver calls h.Start.
func (o StartWorkload) Deliver(h WorkloadOrderHandler) { h.Start(o) }

// Deliver calls h.Stop.
func (o StopWorkload) Deliver(h WorkloadOrderHandler) { h.Stop(o) }

// Deliver calls h.Update.
func (o UpdateFiles) Deliver(h WorkloadOrderHandler) { h.Update(o) }

// Deliver calls h.Kill.
func (o KillWorkload) Deliver(h WorkloadOrderHandler) { h.Kill(o) }

// Deliver calls h.SetReady.
func (o ReadyWorkload) Deliver(h WorkloadOrderHandler) { h.SetReady(o) }

// Deliver calls h.Detach.
func (o DetachWorkload) Deliver(h WorkloadOrderHandler) { h.Detach(o) }

// Deliver calls h.Guard.
func (o GuardWorkload) Deliver(h WorkloadOrderHandler) { h.Guard(o) }
