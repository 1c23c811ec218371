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

// Announce is for how long a new key only verifies before it signs. It exceeds the longest time after which clusters
// fetch the keys, so that they verify the first token that it signs.
const Announce = 90 * time.Minute

// Ring has the signing key, the one that will follow it, and the earlier keys whose tokens may still be valid. It is safe
// for concurrent use.
type Ring struct {
	mu     sync.RWMutex // guards all
	keys   []ringKey    // the newest first
	public PublicKeys   // replaced as a whole, never modified
}

type ringKey struct {
	Seed  []byte    `json:"seed"`
	Made  time.Time `json:"made"`
	Signs time.Time `json:"signs,omitzero"` // from when on, if later than Made
}

func (k *ringKey) from() time.Time {
	if k.Signs.After(k.Made) {
		return k.Signs
	}
	return k.Made
}

func (k *ringKey) private() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(k.Seed) }

func (k *ringKey) id() string { return KeyID(k.private().Public().(ed25519.PublicKey)) }

func NewRing(now time.Time) *Ring {
	r := &Ring{}
	r.Rotate(now, 0, 0)
	return r
}

// Rotate makes a new key, which signs after the time announce, and drops the keys that were replaced more than keep
// ago. keep is the longest lifetime of a token (that of personal tokens), or 0 to drop all old keys, which
// invalidates all tokens, after the theft of a key.
func (r *Ring) Rotate(now time.Time, announce, keep time.Duration) {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails
	r.mu.Lock()
	defer r.mu.Unlock()
	if keep == 0 {
		announce, r.keys = 0, nil
	}
	next := ringKey{Seed: seed, Made: now}
	if announce > 0 {
		next.Signs = now.Add(announce)
	}
	r.keys = append([]ringKey{next}, r.keys...)
	r.expire(now, keep)
	r.derive()
}

// Expire drops the keys that were replaced more than keep ago.
func (r *Ring) Expire(now time.Time, keep time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.keys); r.expire(now, keep) < n {
		r.derive()
	}
}

func (r *Ring) expire(now time.Time, keep time.Duration) int {
	for i := 1; i < len(r.keys); i++ {
		if !r.keys[i-1].from().Add(keep).After(now) {
			r.keys = r.keys[:i:i]
		}
	}
	return len(r.keys)
}

// Use replaces the keys by those of other.
func (r *Ring) Use(other *Ring) {
	other.mu.RLock()
	keys, public := other.keys, other.public
	other.mu.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys, r.public = keys, public
}

// Status describes the keys, the newest first, if keys are dropped after keep.
func (r *Ring) Status(keep time.Duration) (all []api.SigningKey) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := range r.keys {
		k := api.SigningKey{ID: r.keys[i].id(), Made: r.keys[i].Made, Signs: r.keys[i].from()}
		if i > 0 {
			k.Replaced = r.keys[i-1].from()
			k.Ends = k.Replaced.Add(keep)
		}
		all = append(all, k)
	}
	return all
}

// derive computes public from the seeds.
func (r *Ring) derive() {
	r.public = PublicKeys{}
	for i := range r.keys {
		r.public[r.keys[i].id()] = r.keys[i].private().Public().(ed25519.PublicKey)
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

// signing returns the key that signs at now.
func (r *Ring) signing(now time.Time) ed25519.PrivateKey {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := range r.keys {
		if !r.keys[i].from().After(now) {
			return r.keys[i].private()
		}
	}
	return r.keys[len(r.keys)-1].private() // the clock was set back
}
