package session

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"
)

// The lifetime of a session. A node that sends replaces the session after RekeyAfter or RekeyMessages.
// The session is invalid after RejectAfter or RejectMessages, the limit of AES-GCM for packets of up to 2
// KiB (RFC 9001, appendix B.1.1).
const (
	RekeyAfter     = 120 * time.Second
	RejectAfter    = 180 * time.Second
	RekeyMessages  = 1 << 26
	RejectMessages = 1 << 28
)

// HasAES reports whether AES-GCM is faster than ChaCha20-Poly1305 on this processor.
var HasAES = cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ || cpu.ARM64.HasAES && cpu.ARM64.HasPMULL

// Session has the keys of two nodes after a handshake. Seal and the fields may be used
// concurrently, Open by one goroutine at a time.
type Session struct {
	Local, Remote uint32    // indexes at this node and at the peer
	Created       time.Time // by the caller's clock
	Initiator     bool      // this node started the handshake
	AES           bool      // AES-128-GCM; otherwise ChaCha20-Poly1305

	sent   atomic.Uint64
	seal   cipher.AEAD
	open   cipher.AEAD
	window Window
}

// newSession returns a session with Noise's two keys. AES uses the first half of a key: 128 bits match
// the strength of the curve, and AES-128 is a third faster than AES-256.
func newSession(local, remote uint32, initiator, useAES bool, sealKey, openKey [32]byte) *Session {
	aead := func(key [32]byte) cipher.AEAD {
		if !useAES {
			a, _ := chacha20poly1305.New(key[:]) // fails only for other key lengths
			return a
		}
		block, _ := aes.NewCipher(key[:16])
		a, _ := cipher.NewGCM(block)
		return a
	}
	return &Session{Local: local, Remote: remote, Initiator: initiator, AES: useAES, seal: aead(sealKey), open: aead(openKey)}
}

// Seal appends a message with packet to dst and returns it, or nil after RejectMessages. dst and packet
// must not overlap.
func (s *Session) Seal(dst []byte, kind Kind, packet []byte) []byte {
	counter := s.sent.Add(1) - 1
	if counter >= RejectMessages {
		return nil
	}
	at := len(dst)
	dst = append(dst, TypeTransport, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, s.Remote)
	dst = binary.BigEndian.AppendUint64(dst, uint64(kind)<<56|counter)
	// The nonce is the rest of the header: unique because of the counter, and authenticated.
	return s.seal.Seal(dst, dst[at+4:at+HeaderLen], packet, nil)
}

// Open decrypts, in place, a transport message of this session that has passed Type. ErrMalformed means a
// replay or an exhausted counter, ErrDenied a forgery.
func (s *Session) Open(msg []byte) (Kind, []byte, error) {
	nonce := binary.BigEndian.Uint64(msg[8:])
	counter := nonce & (1<<56 - 1)
	if counter >= RejectMessages || !s.window.Fresh(counter) {
		return 0, nil, ErrMalformed
	}
	packet, err := s.open.Open(msg[HeaderLen:HeaderLen], msg[4:HeaderLen], msg[HeaderLen:], nil)
	if err != nil {
		return 0, nil, ErrDenied
	}
	s.window.Take(counter)
	return Kind(nonce >> 56), packet, nil
}

// Sent returns how many messages were sealed.
func (s *Session) Sent() uint64 { return s.sent.Load() }

// Counts returns how many messages were opened, and how many the peer has sent at least. Only the
// goroutine that calls Open may call it.
func (s *Session) Counts() (received, expected uint64) { return s.window.Counts() }

// Usable reports whether the session is still valid.
func (s *Session) Usable(now time.Time) bool {
	return now.Sub(s.Created) < RejectAfter && s.sent.Load() < RejectMessages
}

// Old reports whether a node that sends should start another handshake. It becomes true earlier at the
// initiator, so that both ends do not start one at the same time.
func (s *Session) Old(now time.Time) bool {
	after := RekeyAfter
	if !s.Initiator {
		after += 15 * time.Second
	}
	return now.Sub(s.Created) >= after || s.sent.Load() >= RekeyMessages
}
