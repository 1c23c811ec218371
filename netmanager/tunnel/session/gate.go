package session

import (
	"crypto/hmac"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/time/rate"

	"github.com/treeline-edge/treeline/api"
)

// A handshake message ends in two MACs. The first is keyed by the receiver's public key, so a node does
// not answer senders that do not have it, such as scanners. The second proves that the sender received a
// cookie at its address. It is required under load.

// macKey returns the key of the first MAC of messages to peer.
func macKey(peer api.PeerKey) [32]byte {
	return blake2s.Sum256(append([]byte("treeline tunnel mac1"), peer[:]...))
}

func mac(key, b []byte) (out [macLen]byte) {
	h, _ := blake2s.New128(key) // fails only for keys of more than 32 bytes
	h.Write(b)
	h.Sum(out[:0])
	return out
}

func cookieAEAD(owner api.PeerKey) interface {
	Seal(dst, nonce, plaintext, data []byte) []byte
	Open(dst, nonce, ciphertext, data []byte) ([]byte, error)
} {
	key := blake2s.Sum256(append([]byte("treeline tunnel cookie"), owner[:]...))
	a, _ := chacha20poly1305.NewX(key[:])
	return a
}

// Sign sets the MACs of a handshake message to peer. The zero cookie means none.
func Sign(msg []byte, peer api.PeerKey, cookie [macLen]byte) {
	n := len(msg) - 2*macLen
	key := macKey(peer)
	m := mac(key[:], msg[:n])
	copy(msg[n:], m[:])
	m = [macLen]byte{}
	if cookie != m {
		m = mac(cookie[:], msg[:n+macLen])
	}
	copy(msg[n+macLen:], m[:])
}

func checkMAC1(key [32]byte, msg []byte) bool {
	n := len(msg) - 2*macLen
	m := mac(key[:], msg[:n])
	return hmac.Equal(m[:], msg[n:n+macLen])
}

// Cookie returns the cookie in a peer's reply to msg, the message that this node sent.
func Cookie(reply, msg []byte, peer api.PeerKey) (cookie [macLen]byte, err error) {
	if Type(reply) != TypeCookie || len(msg) < 2*macLen {
		return cookie, ErrMalformed
	}
	n := len(msg) - 2*macLen
	if _, err := cookieAEAD(peer).Open(cookie[:0], reply[8:32], reply[32:], msg[n:n+macLen]); err != nil {
		return cookie, ErrDenied
	}
	return cookie, nil
}

// Gate decides which handshake messages are worth a Diffie-Hellman computation. It is for one goroutine.
type Gate struct {
	id      Identity
	secret  [2][32]byte // current and previous: a cookie is valid for one to two cookieAge
	rotated time.Time
	buckets [Slots]*rate.Limiter // nil: not used yet
}

// Slots is the number of slots of addresses.
const Slots = 1 << 10

// Cookies change every cookieAge. Under load an address may send perSource messages a second, and burst
// at once. Addresses in the same bucket share its rate.
const (
	cookieAge = 120 * time.Second
	perSource = 20
	burst     = 5
)

// Verdict is what to do with a handshake message.
type Verdict int

// The verdicts.
const (
	Drop      Verdict = iota
	Pass              // process the message
	AskCookie         // answer with Reply
)

// NewGate returns the gate of an identity.
func NewGate(id Identity) *Gate { return &Gate{id: id} }

// Check decides about an initiation from an address. busy means load: cookies are required. Relayed
// messages cannot be answered before they are opened. They are only rate-limited; the relay authenticates
// their senders.
func (g *Gate) Check(now time.Time, msg []byte, from netip.AddrPort, relayed, busy bool) Verdict {
	if !checkMAC1(g.id.gate, msg) {
		return Drop
	}
	if !busy {
		return Pass
	}
	if !relayed && !g.hasCookie(now, msg, from) {
		return AskCookie
	}
	b := &g.buckets[g.Slot(from)]
	if *b == nil {
		*b = rate.NewLimiter(perSource, burst)
	}
	if !(*b).AllowN(now, 1) {
		return Drop
	}
	return Pass
}

// Slot returns the bucket of an address. It depends on the secret, so that an attacker cannot choose
// addresses that share a bucket.
func (g *Gate) Slot(from netip.AddrPort) int {
	m := mac(g.secret[0][:], from.Addr().Unmap().AsSlice())
	return int(binary.BigEndian.Uint16(m[:])) % Slots
}

func (g *Gate) hasCookie(now time.Time, msg []byte, from netip.AddrPort) bool {
	n := len(msg) - macLen
	if [macLen]byte(msg[n:]) == ([macLen]byte{}) {
		return false // the sender claims none
	}
	for i := range g.secret {
		if g.rotated.IsZero() || now.Sub(g.rotated) >= cookieAge*time.Duration(2-i) {
			continue
		}
		cookie := g.cookie(i, from)
		m := mac(cookie[:], msg[:n])
		if hmac.Equal(m[:], msg[n:]) {
			return true
		}
	}
	return false
}

func (g *Gate) cookie(i int, from netip.AddrPort) [macLen]byte {
	a := from.Addr().Unmap().AsSlice()
	return mac(g.secret[i][:], binary.BigEndian.AppendUint16(a, from.Port()))
}

// Reply returns the cookie message for the sender of msg. It is shorter than msg.
func (g *Gate) Reply(rand io.Reader, now time.Time, msg []byte, from netip.AddrPort) ([]byte, error) {
	if age := now.Sub(g.rotated); g.rotated.IsZero() || age >= cookieAge {
		var fresh [2][32]byte
		for i := range fresh {
			if _, err := io.ReadFull(rand, fresh[i][:]); err != nil {
				return nil, fmt.Errorf("create cookie secret: %w", err)
			}
		}
		if !g.rotated.IsZero() && age < 2*cookieAge {
			fresh[1] = g.secret[0]
		}
		g.secret, g.rotated = fresh, now
	}
	reply := make([]byte, 32, CookieLen)
	reply[0] = TypeCookie
	copy(reply[4:8], msg[4:8])
	if _, err := io.ReadFull(rand, reply[8:32]); err != nil {
		return nil, fmt.Errorf("create cookie: %w", err)
	}
	cookie := g.cookie(0, from)
	n := len(msg) - 2*macLen
	return cookieAEAD(g.id.Public()).Seal(reply, reply[8:32], cookie[:], msg[n:n+macLen]), nil
}
