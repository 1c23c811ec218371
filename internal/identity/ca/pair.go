package ca

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
)

// Pair is a private key with its certificate chain, its own certificate first and the root's
// last. While two keys of the root are valid, the newer root certificate is followed by the link and the earlier one (package roots).
type Pair struct {
	Chain []*x509.Certificate
	Key   crypto.Signer
}

// TLS returns the pair for crypto/tls. withRoot includes the root's certificates, for peers that
// have only a hash or do not know the newest; without them, handshakes are shorter.
func (p Pair) TLS(withRoot bool) *tls.Certificate {
	c := &tls.Certificate{PrivateKey: p.Key, Leaf: p.Chain[0]}
	for i, cert := range p.Chain {
		if i > 0 && !withRoot && roots.Is(cert) {
			continue
		}
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}

// Root returns the newest root certificate in the chain.
func (p Pair) Root() *x509.Certificate {
	if all := p.Roots(); len(all) > 0 {
		return all[0]
	}
	return p.Chain[len(p.Chain)-1]
}

// Roots returns the root certificates that the holder of the pair trusts, the newest first.
func (p Pair) Roots() []*x509.Certificate { return roots.Of(p.Chain) }

// Check fails with ErrInvalid unless the key belongs to the first certificate and each
// certificate is signed by the next.
func (p Pair) Check() error {
	if len(p.Chain) == 0 || p.Key == nil {
		return fmt.Errorf("key pair: a certificate or the key is missing: %w", api.ErrInvalid)
	}
	pub, ok := p.Key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !pub.Equal(p.Chain[0].PublicKey) {
		return fmt.Errorf("key pair of %q: the key is not the certificate's: %w", p.Chain[0].Subject.CommonName, api.ErrInvalid)
	}
	for i, c := range p.Chain[1:] {
		if err := p.Chain[i].CheckSignatureFrom(c); err != nil {
			return fmt.Errorf("key pair of %q: %q has not signed %q: %w: %w",
				p.Chain[0].Subject.CommonName, c.Subject.CommonName, p.Chain[i].Subject.CommonName, err, api.ErrInvalid)
		}
	}
	return nil
}

const (
	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY"
)

// PEM returns the key (PKCS #8) and the chain in one file, so that one rename replaces both.
// OpenSSL and Mosquitto accept it as certificate file and as key file.
func (p Pair) PEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(p.Key)
	if err != nil {
		return nil, fmt.Errorf("encode a private key: %w", err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), EncodeChain(p.Chain)...), nil
}

// ParsePair parses and checks what PEM returned (ErrInvalid).
func ParsePair(text []byte) (Pair, error) {
	chain, err := DecodeChain(text)
	if err != nil {
		return Pair{}, err
	}
	p := Pair{Chain: chain}
	for b, rest := pem.Decode(text); b != nil; b, rest = pem.Decode(rest) {
		if b.Type != pemKey {
			continue
		}
		key, err := x509.ParsePKCS8PrivateKey(b.Bytes)
		if err != nil {
			return Pair{}, fmt.Errorf("decode a private key: %w: %w", err, api.ErrInvalid)
		}
		p.Key, _ = key.(crypto.Signer)
	}
	return p, p.Check()
}

// EncodeChain returns the chain as PEM.
func EncodeChain(chain []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range chain {
		_ = pem.Encode(&b, &pem.Block{Type: pemCert, Bytes: c.Raw}) // a buffer does not fail
	}
	return b.Bytes()
}

// DecodeChain parses the certificates in text, at least one (ErrInvalid).
func DecodeChain(text []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for b, rest := pem.Decode(text); b != nil; b, rest = pem.Decode(rest) {
		if b.Type != pemCert {
			continue
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("decode a certificate: %w: %w", err, api.ErrInvalid)
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, fmt.Errorf("decode a certificate: no PEM certificate in %d bytes: %w", len(text), api.ErrInvalid)
	}
	return chain, nil
}
