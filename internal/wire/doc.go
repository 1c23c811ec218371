// Package wire has the messages between root and cluster, cluster and node, node engine and
// netmanager, and a node engine's core and its runtime. They use the types of package api.
//
// A message may be lost, duplicated or delayed; every receiver converges by repetition.
// JSON keys and binary layouts are stable: release N works with N−1.
package wire
