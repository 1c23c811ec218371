package relay

import "sync/atomic"

// Stats counts what a relay has done since its start.
type Stats struct {
	Datagrams, Bytes uint64 // forwarded, without headers
	Bindings         uint64
	Streams          int64 // TLS connections now

	Unknown   uint64 // slot does not exist, or another ticket
	Unbound   uint64 // slot without a binding
	Limited   uint64 // beyond the slot's rate
	Full      uint64 // the node's TLS connection is too slow
	Denied    uint64 // to a relay that is in no route
	Failed    uint64 // refused by the kernel
	Malformed uint64
	Strangers uint64 // bindings that are not authentic
}

// cause is why a run is not forwarded.
type cause int

const (
	forwarded cause = iota
	unknownSlot
	unbound
	limited
)

type counters struct {
	datagrams, bytes, bindings                                            atomic.Uint64
	unknown, unbound, limited, full, denied, failed, malformed, strangers atomic.Uint64
	streams                                                               atomic.Int64
}

func (c *counters) drop(why cause) {
	switch why {
	case unknownSlot:
		c.unknown.Add(1)
	case unbound:
		c.unbound.Add(1)
	case limited:
		c.limited.Add(1)
	}
}

// Stats returns the present counts.
func (r *Relay) Stats() Stats {
	return Stats{
		Datagrams: r.n.datagrams.Load(), Bytes: r.n.bytes.Load(), Bindings: r.n.bindings.Load(), Streams: r.n.streams.Load(),
		Unknown: r.n.unknown.Load(), Unbound: r.n.unbound.Load(), Limited: r.n.limited.Load(), Full: r.n.full.Load(),
		Denied: r.n.denied.Load(), Failed: r.n.failed.Load(), Malformed: r.n.malformed.Load(), Strangers: r.n.strangers.Load(),
	}
}
