// Package tiers holds tests of the cluster orchestrator and the node engine as
// they are wired, in one process: real TLS, the real broker, real stores, beneath
// a root that is played by the test and over a runtime that is fake and called so.
package tiers
