// Package proof binds a node's key on the overlay network to its certificate: the node signs the
// overlay key with its certificate's key. Every machine that trusts the root can then verify which
// node has the overlay key. Package trust verifies the chain. Likewise the key of a cluster's
// authority signs the key that replaces it.
//
//	sig, err := proof.Sign(pair.Key, key)
//	who, err := proof.Check(verifier, peer) // of an api.Peer from another node
package proof

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Sign returns Peer.Proof: the signature of the overlay key with own, the certificate's key.
func Sign(own crypto.Signer, key api.PeerKey) ([]byte, error) {
	sig, err := sign(own, wire.ProofText(key))
	if err != nil {
		return nil, fmt.Errorf("prove the overlay key: %w", err)
	}
	return sig, nil
}

// SignRotation returns the signature with which own, the key of cluster id's authority, hands over to the key of a
// request (PKCS #10, DER).
func SignRotation(own crypto.Signer, id api.ClusterID, csr []byte) ([]byte, error) {
	sig, err := sign(own, wire.RotationText(id, csr))
	if err != nil {
		return nil, fmt.Errorf("sign the new key of the authority of cluster %s: %w", id, err)
	}
	return sig, nil
}

// CheckRotation reports whether sig is by the key of the certificate of cluster id's authority.
func CheckRotation(authority *x509.Certificate, id api.ClusterID, csr, sig []byte) bool {
	return len(sig) <= maxProof && signed(authority, wire.RotationText(id, csr), sig)
}

func sign(own crypto.Signer, text []byte) ([]byte, error) {
	opts := crypto.Hash(0)
	if _, ok := own.Public().(ed25519.PublicKey); !ok {
		sum := sha256.Sum256(text)
		text, opts = sum[:], crypto.SHA256
	}
	return own.Sign(rand.Reader, text, opts)
}

// The bounds of a peer's chain (certificates) and proof (bytes).
const (
	maxChain = 3
	maxProof = 512
)

// Check returns the identity of the node with the peer's overlay key. It fails with
// ErrUnauthenticated unless v trusts the chain, the certificate belongs to the node and cluster in
// the record, and the certificate's key signed the proof.
func Check(v *trust.Verifier, p api.Peer) (identity.Identity, error) {
	bad := func(format string, args ...any) (identity.Identity, error) {
		return identity.Identity{}, fmt.Errorf("peer %s: %w: %w", p.Key, fmt.Errorf(format, args...), api.ErrUnauthenticated)
	}
	if len(p.Chain) == 0 || len(p.Chain) > maxChain || len(p.Proof) > maxProof {
		return bad("%d certificates and a proof of %d bytes", len(p.Chain), len(p.Proof))
	}
	chain := make([]*x509.Certificate, 0, len(p.Chain))
	for _, der := range p.Chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return bad("its certificate cannot be read: %w", err)
		}
		chain = append(chain, c)
	}
	who, err := v.Chain(chain)
	if err != nil {
		return bad("%w", err)
	}
	if who.Kind != identity.Node || who.Cluster != p.Cluster || p.Node != "" && p.Node != who.Node {
		return bad("it is called %s of %s and its certificate is of %s", p.Node, p.Cluster, who)
	}
	if !signed(chain[0], wire.ProofText(p.Key), p.Proof) {
		return bad("the proof is not by the key of %s", who)
	}
	return who, nil
}

func signed(c *x509.Certificate, text, sig []byte) bool {
	switch pub := c.PublicKey.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(pub, text, sig)
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(text)
		return ecdsa.VerifyASN1(pub, sum[:], sig)
	}
	return false // package ca signs no other keys
}
