package paths

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// ErrMalformed is returned by Parse.
var ErrMalformed = errors.New("malformed path message")

// MaxCandidates bounds the addresses that a peer may send.
const MaxCandidates = 8

// Message is a message between two machines inside their session: Probe, Reply,
// Candidates or Ack. Bytes after it are padding.
type Message interface {
	// Append appends the encoded message to b.
	Append(b []byte) []byte
}

// Probe requests a Reply on the same path. It is as long as a Reply.
type Probe struct {
	Token uint64 // cannot be guessed, so that a Reply proves receipt
}

// Reply answers a Probe.
type Reply struct {
	Token uint64
	Seen  netip.AddrPort // the probe's source as the peer sees it; zero: a relay
	// Coord is the sender's present coordinate in the latency space, or nil. It has single precision, no
	// Adjustment, and at most maxDimensions dimensions.
	Coord *api.Coordinate
}

// Candidates are the addresses of a machine. A higher Rev replaces a lower one.
type Candidates struct {
	Boot     uint32 // of the process: not 0, and different after a restart
	Rev      uint32
	NAT      NAT
	Lifetime time.Duration // how long the NAT keeps a mapping; whole seconds, 0: not known
	Punch    bool          // probe these now: the sender probes the receiver's
	Moved    bool          // the sender changed networks: no path is proven any more
	List     []Candidate
}

// Candidate is an address of a machine.
type Candidate struct {
	Origin Origin
	Addr   netip.AddrPort
}

// Ack acknowledges Candidates.
type Ack struct{ Rev uint32 }

// Origin is how an address became known.
type Origin uint8

// The origins of addresses.
const (
	Own       Origin = iota // of an interface of the machine
	Mapped                  // as the machine's relay sees it
	Static                  // configured by the operator
	Record                  // in the record from the cluster
	Reflexive               // source of an authentic message
)

// NAT is the kind of NAT that a machine is behind.
type NAT uint8

// The kinds of NAT.
const (
	Unknown NAT = iota
	Open        // none: the relay sees the machine at an address of its own
	Easy        // one mapping for all destinations
	Hard        // a mapping per destination ("symmetric")
	Blocked     // UDP is blocked
)

const (
	typeProbe = iota + 1
	typeReply
	typeCandidates
	typeAck

	addrLen       = 18
	maxDimensions = 8
	coordLen      = 1 + 4*(2+maxDimensions)
	probeLen      = 1 + 8 + addrLen + coordLen
	candidateLen  = 1 + addrLen

	flagPunch = 1
	flagMoved = 2
)

// Append implements Message.
func (p Probe) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, typeProbe), p.Token)
	return append(b, make([]byte, probeLen-9)...)
}

// Append implements Message.
func (r Reply) Append(b []byte) []byte {
	return appendCoord(appendAddr(binary.BigEndian.AppendUint64(append(b, typeReply), r.Token), r.Seen), r.Coord)
}

// Append implements Message. It encodes the first MaxCandidates.
func (c Candidates) Append(b []byte) []byte {
	var flags byte
	if c.Punch {
		flags |= flagPunch
	}
	if c.Moved {
		flags |= flagMoved
	}
	list := c.List[:min(len(c.List), MaxCandidates)]
	b = binary.BigEndian.AppendUint32(append(b, typeCandidates), c.Boot)
	b = binary.BigEndian.AppendUint32(b, c.Rev)
	b = append(b, byte(c.NAT), flags, byte(len(list)), byte(min(max(c.Lifetime, 0)/time.Second, 255)))
	for _, x := range list {
		b = appendAddr(append(b, byte(x.Origin)), x.Addr)
	}
	return b
}

// Append implements Message.
func (a Ack) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, typeAck), a.Rev)
}

// Parse decodes a message. It allocates no more than len(b) justifies.
func Parse(b []byte) (Message, error) {
	if len(b) == 0 {
		return nil, ErrMalformed
	}
	switch body := b[1:]; b[0] {
	case typeProbe:
		if len(b) >= probeLen {
			return Probe{binary.BigEndian.Uint64(body)}, nil
		}
	case typeReply:
		if len(body) >= 8+addrLen {
			return Reply{binary.BigEndian.Uint64(body), parseAddr(body[8:]), parseCoord(body[8+addrLen:])}, nil
		}
	case typeAck:
		if len(body) >= 4 {
			return Ack{binary.BigEndian.Uint32(body)}, nil
		}
	case typeCandidates:
		return parseCandidates(body)
	}
	return nil, ErrMalformed
}

func parseCandidates(b []byte) (Message, error) {
	const head = 12
	if len(b) < head {
		return nil, ErrMalformed
	}
	c := Candidates{
		Boot: binary.BigEndian.Uint32(b), Rev: binary.BigEndian.Uint32(b[4:]),
		NAT: NAT(b[8]), Punch: b[9]&flagPunch != 0, Moved: b[9]&flagMoved != 0,
		Lifetime: time.Duration(b[11]) * time.Second,
	}
	n := int(b[10])
	if c.Boot == 0 || n > MaxCandidates || len(b) < head+n*candidateLen || c.NAT > Blocked {
		return nil, ErrMalformed
	}
	for b = b[head:]; n > 0; n-- {
		o := Origin(b[0])
		if o > Static {
			return nil, ErrMalformed
		}
		c.List = append(c.List, Candidate{o, parseAddr(b[1:])})
		b = b[candidateLen:]
	}
	return c, nil
}

// appendAddr appends the address as IPv6 (IPv4 mapped) and its port. The zero AddrPort
// is encoded as zeros.
func appendAddr(b []byte, a netip.AddrPort) []byte {
	var ip [16]byte
	if a.IsValid() {
		ip = a.Addr().As16()
	}
	return binary.BigEndian.AppendUint16(append(b, ip[:]...), a.Port())
}

func parseAddr(b []byte) netip.AddrPort {
	ip, port := netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:])
	if ip == netip.IPv6Unspecified() && port == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip, port)
}

// appendCoord appends the number of dimensions, error, height and vector, or nothing if there is no
// coordinate.
func appendCoord(b []byte, c *api.Coordinate) []byte {
	if c == nil || len(c.Vec) == 0 || len(c.Vec) > maxDimensions {
		return b
	}
	b = append(b, byte(len(c.Vec)))
	for _, v := range append([]float64{c.Error, c.Height}, c.Vec...) {
		b = binary.BigEndian.AppendUint32(b, math.Float32bits(float32(v)))
	}
	return b
}

// parseCoord decodes a coordinate; nil if there is none. The caller has to validate the numbers.
func parseCoord(b []byte) *api.Coordinate {
	if len(b) == 0 || b[0] == 0 || b[0] > maxDimensions || len(b) < 1+4*(2+int(b[0])) {
		return nil
	}
	c := &api.Coordinate{Vec: make([]float64, b[0])}
	next := func() float64 {
		v := math.Float32frombits(binary.BigEndian.Uint32(b))
		b = b[4:]
		return float64(v)
	}
	b = b[1:]
	c.Error, c.Height = next(), next()
	for i := range c.Vec {
		c.Vec[i] = next()
	}
	return c
}
