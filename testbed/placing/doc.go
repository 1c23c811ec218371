// Package placing runs the cores of root and clusters with nodes that carry out their orders. There
// are no faults and no network, and time advances only by Pass, so that only decisions are tested.
// Package sim tests everything else.
//
//	w := placing.New()
//	w.Cluster(cluster.Config{ID: "c1"}, placing.Node("n1"), placing.Node("n2"))
//	err := w.Apply("vcpus: 2")
//	w.Place("svc", 0)
package placing
