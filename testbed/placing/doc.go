// Package placing runs the root's core and clusters' cores over nodes that do as
// they are told, without time passing by itself, a network or faults: what is left
// is the decision. The simulator has the rest.
//
//	w := placing.New()
//	w.Cluster(cluster.Config{ID: "c1"}, placing.Node("n1"), placing.Node("n2"))
//	err := w.Apply("vcpus: 2")
//	w.Place("svc", 0)
package placing
