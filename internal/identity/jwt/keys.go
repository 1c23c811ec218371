// Package jwt signs and verifies access tokens: JSON Web Tokens, signed with Ed25519 by a key of
// a known set. Clusters verify the root's tokens offline with its public keys.
//
// A token has the roles that its user had when it was signed. It is therefore valid for minutes
// only; package account checks the current roles.
//
//	ring := jwt.NewRing(now)
//	s := jwt.Signer{Ring: ring, Issuer: "treeline-root", Now: time.Now}
//	text, err := s.Sign(jwt.Claims{Subject: "acme/alice", …}, []string{"treeline"}, 10*time.Minute)
//	v := jwt.NewVerifier(jwt.VerifierOptions{Keys: ring.Key, Issuer: "treeline-root", Audience: "treeline"})
//	claims, err := v.Verify(text, jwt.UseAccess)
package jwt

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// PublicKeys are the keys for verification by key id. The root sends them to its clusters as
// JSON.
type PublicKeys map[string]ed25519.PublicKey

// KeyID returns the key's id, a hash of it.
func KeyID(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// Ring has the signing key and the earlier keys whose tokens may still be valid. It is safe
// for concurrent use.
type Ring struct {
	mu     sync.RWMutex // guards all
	keys   []ringKey    // the newest, which signs, first
	signer ed25519.PrivateKey
	public PublicKeys // replaced as a whole, never modified
}

type ringKey struct {
	Seed []byte    `json:"seed"`
	Made time.Time `json:"made"`
}

func NewRing(now time.Time) *Ring {
	r := &Ring{}
	r.Rotate(now, 0)
	return r
}

// Rotate makes a new signing key, and drops the keys that were replaced more than keep ago. keep
// is the longest lifetime of a token (that of personal tokens), or 0 to drop all old keys, which
// invalidates all tokens, after the theft of a key.
func (r *Ring) Rotate(now time.Time, keep time.Duration) {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := []ringKey{{Seed: seed, Made: now}}
	replaced := now
	for _, k := range r.keys {
		if replaced.After(now.Add(-keep)) {
			kept = append(kept, k)
		}
		replaced = k.Made
	}
	r.keys = kept
	r.derive()
}

// derive computes signer and public from the seeds.
func (r *Ring) derive() {
	r.signer = ed25519.NewKeyFromSeed(r.keys[0].Seed)
	r.public = PublicKeys{}
	for _, k := range r.keys {
		pub := ed25519.NewKeyFromSeed(k.Seed).Public().(ed25519.PublicKey)
		r.public[KeyID(pub)] = pub
	}
}

// Public returns the public keys of the ring. The caller must not change the map.
func (r *Ring) Public() PublicKeys {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.public
}

func (r *Ring) Key(kid string) (ed25519.PublicKey, bool) { return r.Public().Key(kid) }

func (p PublicKeys) Key(kid string) (ed25519.PublicKey, bool) {
	pub, ok := p[kid]
	return pub, ok && len(pub) == ed25519.PublicKeySize
}

// Marshal encodes the ring with its private keys, for a file of mode 0600.
func (r *Ring) Marshal() ([]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return json.Marshal(r.keys)
}

// ParseRing decodes what Marshal returned (ErrInvalid).
func ParseRing(data []byte) (*Ring, error) {
	r := &Ring{}
	if err := json.Unmarshal(data, &r.keys); err != nil {
		return nil, fmt.Errorf("decode the token keys: %w: %w", err, api.ErrInvalid)
	}
	if len(r.keys) == 0 {
		return nil, fmt.Errorf("decode the token keys: there is none: %w", api.ErrInvalid)
	}
	for _, k := range r.keys {
		if len(k.Seed) != ed25519.SeedSize {
			return nil, fmt.Errorf("decode the token keys: a key has %d bytes: %w", len(k.Seed), api.ErrInvalid)
		}
	}
	r.derive()
	return r, nil
}

func (r *Ring) signing() ed25519.PrivateKey {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.signer
}
