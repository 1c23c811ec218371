package broker

import "sync/atomic"

// Stats counts what the broker does, for metrics. Bytes are those of MQTT, without TLS.
type Stats struct {
	Clients     atomic.Int64 // connected now
	Connects    atomic.Int64 // sessions that were let in
	Refusals    atomic.Int64 // handshakes, CONNECTs, topics and filters that were refused
	MessagesIn  atomic.Int64 // published by nodes
	MessagesOut atomic.Int64 // delivered to nodes
	Dropped     atomic.Int64 // messages lost because a node reads too slowly
	BytesIn     atomic.Int64
	BytesOut    atomic.Int64
	Panics      atomic.Int64 // connections ended by a fault in the broker's own parser
}
