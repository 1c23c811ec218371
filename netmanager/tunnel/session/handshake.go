package session

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"

	"github.com/flynn/noise"

	"github.com/treeline-edge/treeline/api"
)

// suite does not use AES: handshakes are rare, and all nodes must use the same suite.
var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashBLAKE2s)

var prologue = []byte("treeline tunnel 1")

// Hello is the encrypted payload of a handshake.
type Hello struct {
	// Stamp grows with each initiation of a node, also across restarts if its clock does not go back. A
	// responder that has recently received from the initiator accepts only greater stamps. Otherwise it
	// accepts any, so that a node whose clock went back is not locked out; a replay then costs a session
	// that is never confirmed. A response has no stamp.
	Stamp uint64
	// AES means that AES-GCM is fast on this node. It is used if it is fast on both nodes.
	AES bool
	// Claim is the first address of the sender's subnet; zero: none. It is not authenticated.
	Claim netip.Addr
}

func (h Hello) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.Stamp)
	flags := byte(0)
	if h.AES {
		flags = 1
	}
	var claim [4]byte
	if h.Claim.Is4() {
		claim = h.Claim.As4()
	}
	return append(append(b, flags), claim[:]...)
}

func parseHello(b []byte) (Hello, error) {
	if len(b) != helloLen {
		return Hello{}, ErrMalformed
	}
	h := Hello{Stamp: binary.BigEndian.Uint64(b), AES: b[8]&1 != 0}
	if claim := netip.AddrFrom4([4]byte(b[9:])); !claim.IsUnspecified() {
		h.Claim = claim
	}
	return h, nil
}

// Identity is a node's static X25519 key pair.
type Identity struct {
	pair noise.DHKey
	gate [32]byte // key of mac1 of messages to this node
}

// NewIdentity returns the identity of a private key.
func NewIdentity(private [32]byte) (Identity, error) {
	pair, err := noise.DH25519.GenerateKeypair(fixed(private[:]))
	if err != nil {
		return Identity{}, fmt.Errorf("derive public key: %w", err)
	}
	id := Identity{pair: pair}
	id.gate = macKey(id.Public())
	return id, nil
}

// Public returns the public key.
func (id Identity) Public() api.PeerKey { return api.PeerKey(id.pair.Public) }

// fixed is a source of randomness that always returns the same bytes.
type fixed []byte

func (f fixed) Read(b []byte) (int, error) { return copy(b, f), nil }

// Initiation is a handshake that this node started and that is not answered yet.
type Initiation struct {
	state *noise.HandshakeState
	local uint32
	aes   bool
	mine  [32]byte // key of the response's first MAC
}

// Initiate starts a handshake with peer. The message lacks only its MACs (Sign). The response will carry
// the index local.
func Initiate(rand io.Reader, id Identity, peer api.PeerKey, local uint32, hello Hello) (*Initiation, []byte, error) {
	state, err := noise.NewHandshakeState(noise.Config{
		CipherSuite: suite, Random: rand, Pattern: noise.HandshakeIK, Initiator: true, Prologue: prologue,
		StaticKeypair: id.pair, PeerStatic: peer[:],
	})
	if err != nil {
		return nil, nil, fmt.Errorf("initiate: %w", err)
	}
	msg := make([]byte, 8, InitiationLen)
	msg[0] = TypeInitiation
	binary.BigEndian.PutUint32(msg[4:], local)
	msg, _, _, err = state.WriteMessage(msg, hello.append(nil))
	if err != nil {
		return nil, nil, fmt.Errorf("initiate: %w", err)
	}
	return &Initiation{state: state, local: local, aes: hello.AES, mine: id.gate}, msg[:InitiationLen], nil
}

// Finish handles the response. Any other message leaves the initiation unchanged, so that the response
// can still be accepted.
func (i *Initiation) Finish(msg []byte) (*Session, Hello, error) {
	if Type(msg) != TypeResponse || Receiver(msg) != i.local || !checkMAC1(i.mine, msg) {
		return nil, Hello{}, ErrMalformed
	}
	payload, send, recv, err := i.state.ReadMessage(nil, msg[12:len(msg)-2*macLen])
	if err != nil {
		return nil, Hello{}, ErrDenied
	}
	hello, err := parseHello(payload)
	if err != nil {
		return nil, Hello{}, err
	}
	remote := binary.BigEndian.Uint32(msg[4:])
	return newSession(i.local, remote, true, i.aes && hello.AES, send.UnsafeKey(), recv.UnsafeKey()), hello, nil
}

// Offer is a received initiation whose sender has proven its key.
type Offer struct {
	Peer  api.PeerKey
	Hello Hello

	state  *noise.HandshakeState
	remote uint32
}

// ReadInitiation opens an initiation, with two Diffie-Hellman computations. It keeps no state. Gate must
// have checked the MACs. Accept uses rand.
func ReadInitiation(rand io.Reader, id Identity, msg []byte) (*Offer, error) {
	if Type(msg) != TypeInitiation {
		return nil, ErrMalformed
	}
	state, err := noise.NewHandshakeState(noise.Config{
		CipherSuite: suite, Random: rand, Pattern: noise.HandshakeIK, Prologue: prologue, StaticKeypair: id.pair,
	})
	if err != nil {
		return nil, fmt.Errorf("read initiation: %w", err)
	}
	payload, _, _, err := state.ReadMessage(nil, msg[8:len(msg)-2*macLen])
	if err != nil {
		return nil, ErrDenied
	}
	hello, err := parseHello(payload)
	if err != nil {
		return nil, err
	}
	return &Offer{Peer: api.PeerKey(state.PeerStatic()), Hello: hello, state: state, remote: binary.BigEndian.Uint32(msg[4:])}, nil
}

// Accept answers the offer. It may be called once. The session must not be used for sending before a
// message was received on it, which proves that the offer was not a replay. The response lacks only its
// MACs.
func (o *Offer) Accept(local uint32, mine Hello) ([]byte, *Session, error) {
	msg := make([]byte, 12, ResponseLen)
	msg[0] = TypeResponse
	binary.BigEndian.PutUint32(msg[4:], local)
	binary.BigEndian.PutUint32(msg[8:], o.remote)
	msg, recv, send, err := o.state.WriteMessage(msg, mine.append(nil))
	if err != nil {
		return nil, nil, fmt.Errorf("accept %s: %w", o.Peer, err)
	}
	return msg[:ResponseLen], newSession(local, o.remote, false, mine.AES && o.Hello.AES, send.UnsafeKey(), recv.UnsafeKey()), nil
}
