// Package tiers tests the complete cluster orchestrator and node engine in one process, with real
// TLS, the real broker and real stores. Root and runtime are fakes.
package tiers
