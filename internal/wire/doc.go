// Package wire has the messages between the tiers: root and cluster, cluster and
// node, node engine and netmanager, and a node engine's core and its runtime. They
// are built of the types in api, which has the SLA and the REST API only.
//
// A message may be lost, duplicated or delayed; every receiver converges by repetition.
// JSON keys and binary layouts are stable: release N works with N−1.
package wire
