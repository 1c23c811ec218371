// Package away tests the network without orchestrators. Root and cluster are down for ten
// minutes, and netmanagers and a node engine are killed in that time. Existing flows, new
// connections by address and by name, datagrams and QUIC must continue without a loss,
// through the tunnel and on kernel paths.
//
// The lab uses network ranges other than the defaults, and first runs some short checks that
// need such a lab. The test takes eleven minutes, of which it mostly waits; scripts/test
// therefore runs it in parallel with all others.
//
//	go test -timeout=20m ./testbed/lab/away
package away
