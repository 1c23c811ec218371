// Package jwt makes and checks access tokens: JSON Web Tokens signed with
// Ed25519 and nothing else, by a key of a known set. Clusters check the root's
// tokens offline with its public keys.
//
// Who the user is and what rights hold today is package account's to say; a
// token says what held when it was signed, which is why it lives minutes.
//
//	ring, err := jwt.NewRing(now)
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

// PublicKeys are the keys that tokens may be signed with, by key id. As JSON it
// is what the root gives to its clusters.
type PublicKeys map[string]ed25519.PublicKey

// KeyID is the key's name: a hash of it, so that it names one key for ever.
func KeyID(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// Ring holds the key that signs and the earlier ones whose tokens still live.
// It is safe for concurrent use.
type Ring struct {
	mu     sync.RWMutex // guards all
	keys   []ringKey    // the newest, which signs, first
	signer ed25519.PrivateKey
	public PublicKeys // replaced, never changed
}

type ringKey struct {
	Seed []byte    `json:"seed"`
	Made time.Time `json:"made"`
}

// NewRing is a ring with one new key.
func NewRing(now time.Time) (*Ring, error) {
	r := &Ring{}
	return r, r.Rotate(now, 0)
}

// Rotate makes a new key sign, and drops the keys that were replaced before
// now minus keep, the longest life of a token (personal ones live longest). A
// keep of 0 drops all of them: nothing that a stolen key signed counts.
func (r *Ring) Rotate(now time.Time, keep time.Duration) error {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return fmt.Errorf("make a token key: %w", err)
	}
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
	return nil
}

// derive makes from the seeds what is asked for with every token.
func (r *Ring) derive() {
	r.signer = ed25519.NewKeyFromSeed(r.keys[0].Seed)
	r.public = PublicKeys{}
	for _, k := range r.keys {
		pub := ed25519.NewKeyFromSeed(k.Seed).Public().(ed25519.PublicKey)
		r.public[KeyID(pub)] = pub
	}
}

// Public are the public keys of the ring; the map is not to be changed.
func (r *Ring) Public() PublicKeys {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.public
}

// Key is the public key of the id.
func (r *Ring) Key(kid string) (ed25519.PublicKey, bool) { return r.Public().Key(kid) }

// Key is the public key of the id.
func (p PublicKeys) Key(kid string) (ed25519.PublicKey, bool) {
	pub, ok := p[kid]
	return pub, ok && len(pub) == ed25519.PublicKeySize
}

// Marshal encodes the ring, private keys included: it is a secret, for a file of mode 0600.
func (r *Ring) Marshal() ([]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return json.Marshal(r.keys)
}

// ParseRing decodes what Marshal wrote (ErrInvalid).
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
