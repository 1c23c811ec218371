package relaywire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"time"
)

// Sizes in bytes. Answers are never longer than their request, so that a relay cannot be used for
// amplification; a request for a late answer is as long as both answers.
const (
	RequestLen     = 80
	LongRequestLen = 2 * RequestLen
	AnswerLen      = RequestLen
	macLen         = sha256.Size
)

// MaxLate is the longest delay of a late answer.
const MaxLate = 4 * time.Minute

// Request is a node's binding request. It is authenticated with the secret of the node's lease.
type Request struct {
	Slot uint32
	// Seq increases with every request of a slot, even over restarts, such as the nanoseconds of
	// a clock. The relay refuses lower ones, so that a recorded request cannot redirect the
	// slot's traffic.
	Seq uint64
	// Bind binds the slot to the source address of the request. Without it the relay only
	// answers, which tests whether UDP works.
	Bind bool
	// Late requests a second answer after that time, in whole seconds up to MaxLate. It tests
	// whether the NAT keeps its mapping.
	Late time.Duration
}

// Result is the result of a request.
type Result uint8

// The results of a request.
const (
	Seen  Result = iota // answered; the binding is unchanged
	Bound               // the slot is bound to Answer.Addr
	Stale               // Seq is not above Answer.Last; repeat the request with a higher one
)

// Answer is the relay's answer, authenticated with the same secret.
type Answer struct {
	Late   bool // the second answer
	Result Result
	Slot   uint32
	Seq    uint64         // the request's
	Last   uint64         // the highest Seq that the relay has accepted for the slot
	Addr   netip.AddrPort // source address of the request at the relay
	Alt    uint16         // another UDP port of the relay that answers with Seen; 0: none
}

const flagBind = 1

// Append appends the request and its authentication.
func (r Request) Append(b, secret []byte) []byte {
	start := len(b)
	var flags byte
	if r.Bind {
		flags |= flagBind
	}
	late := uint16(min(max(r.Late, 0), MaxLate) / time.Second)
	b = append(b, TypeRequest, flags)
	b = binary.BigEndian.AppendUint16(b, late)
	b = binary.BigEndian.AppendUint32(b, r.Slot)
	b = binary.BigEndian.AppendUint64(b, r.Seq)
	size := RequestLen
	if late > 0 {
		size = LongRequestLen
	}
	b = append(b, make([]byte, size-macLen-(len(b)-start))...)
	return seal(b, start, secret)
}

// ParseRequest parses a request. The caller must check it with Authentic and the slot's secret.
func ParseRequest(b []byte) (Request, error) {
	if len(b) < RequestLen || b[0] != TypeRequest || b[1]&^flagBind != 0 {
		return Request{}, ErrMalformed
	}
	r := Request{
		Bind: b[1]&flagBind != 0,
		Late: time.Duration(binary.BigEndian.Uint16(b[2:])) * time.Second,
		Slot: binary.BigEndian.Uint32(b[4:]),
		Seq:  binary.BigEndian.Uint64(b[8:]),
	}
	if r.Late > MaxLate || (r.Late > 0) != (len(b) == LongRequestLen) || r.Late == 0 && len(b) != RequestLen {
		return Request{}, ErrMalformed
	}
	return r, nil
}

// Append appends the answer and its authentication.
func (a Answer) Append(b, secret []byte) []byte {
	start := len(b)
	kind := byte(TypeAnswer)
	if a.Late {
		kind = TypeLate
	}
	b = append(b, kind, byte(a.Result))
	b = binary.BigEndian.AppendUint16(b, a.Alt)
	b = binary.BigEndian.AppendUint32(b, a.Slot)
	b = binary.BigEndian.AppendUint64(b, a.Seq)
	b = binary.BigEndian.AppendUint64(b, a.Last)
	b = appendAddr(b, a.Addr)
	b = append(b, make([]byte, AnswerLen-macLen-(len(b)-start))...)
	return seal(b, start, secret)
}

// ParseAnswer parses an answer. It fails with ErrMalformed if it is not authentic with the secret.
func ParseAnswer(b, secret []byte) (Answer, error) {
	if len(b) != AnswerLen || b[0] != TypeAnswer && b[0] != TypeLate || Result(b[1]) > Stale || !Authentic(b, secret) {
		return Answer{}, ErrMalformed
	}
	return Answer{
		Late: b[0] == TypeLate, Result: Result(b[1]),
		Alt:  binary.BigEndian.Uint16(b[2:]),
		Slot: binary.BigEndian.Uint32(b[4:]),
		Seq:  binary.BigEndian.Uint64(b[8:]),
		Last: binary.BigEndian.Uint64(b[16:]),
		Addr: parseAddr(b[24:]),
	}, nil
}

// Authentic reports whether a request or an answer was made with the secret. It returns false if
// the secret is empty.
func Authentic(b, secret []byte) bool {
	if len(b) < macLen || len(secret) == 0 {
		return false
	}
	body, mac := b[:len(b)-macLen], b[len(b)-macLen:]
	return hmac.Equal(mac, sum(body, secret))
}

func seal(b []byte, start int, secret []byte) []byte { return append(b, sum(b[start:], secret)...) }

func sum(body, secret []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("treeline relay binding v1\x00"))
	h.Write(body)
	return h.Sum(nil)
}
