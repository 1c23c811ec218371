package broker

import "sync/atomic"

// Stats has the broker's counters for metrics. Bytes are those of MQTT, without TLS.
type Stats struct {
	Clients     atomic.Int64  // current connections
	Connects    atomic.Uint64 // sessions that were accepted
	Refusals    atomic.Uint64 // handshakes, CONNECTs, topics and filters that were refused
	MessagesIn  atomic.Uint64 // published by nodes
	MessagesOut atomic.Uint64 // delivered to nodes
	Dropped     atomic.Uint64 // messages lost because a node reads too slowly
	BytesIn     atomic.Uint64
	BytesOut    atomic.Uint64
	Panics      atomic.Uint64 // connections ended by a panic of mochi-mqtt
}
