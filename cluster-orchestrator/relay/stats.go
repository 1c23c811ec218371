package relay

import "sync/atomic"

// Stats counts what a relay has done since its start.
type Stats struct {
	Datagrams, Bytes uint64 // forwarded, without headers
	Bindings         uint64
	Streams          int64 // TLS connections now

	Unknown   uint64 // no such slot, or not its ticket
	Unbound   uint64 // the slot's node has not said where it is
	Limited   uint64 // more than the slot's rate
	Full      uint64 // its TLS connection is too slow
	Denied    uint64 // to a relay that no route names
	Failed    uint64 // the kernel refused it
	Malformed uint64
	Strangers uint64 // bindings that nobody's secret made
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

// Stats are the present counts.
func (r *Relay) Stats() Stats {
	return Stats{
		Datagrams: r.n.datagrams.Load(), Bytes: r.n.bytes.Load(), Bindings: r.n.bindings.Load(), Streams: r.n.streams.Load(),
		Unknown: r.n.unknown.Load(), Unbound: r.n.unbound.Load(), Limited: r.n.limited.Load(), Full: r.n.full.Load(),
		Denied: r.n.denied.Load(), Failed: r.n.failed.Load(), Malformed: r.n.malformed.Load(), Strangers: r.n.strangers.Load(),
	}
}
