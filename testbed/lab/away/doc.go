// Package away holds what the network promises while nobody leads it: root and
// cluster are dead for ten minutes, and flows, new connections by address and by
// name, datagrams and QUIC go on without a single loss, by the tunnel and by the
// kernel's paths. Meanwhile netmanagers and a node engine are killed, too.
//
// Its lab's network lies in ranges of its own, so that none of this rests on the
// defaults, and what needs such a lab for a moment only is asked of it beforehand.
// The labs of package lab are short; this one takes eleven minutes, of which it
// works for hardly any: scripts/test has it run beside everything else.
//
//	go test -timeout=20m ./testbed/lab/away
package away
