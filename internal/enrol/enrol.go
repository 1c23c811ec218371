// Package enrol is what clusters and nodes share when they ask for certificates:
// the key of a join that may have to be repeated, and requests as text.
//
//	key, err := enrol.Key(dir, "join.pem")       // the same until Forget
//	text, err := enrol.Request(key)              // for api.JoinNode.CSR
//	der, err := enrol.ParseRequest(text)         // at the other end
package enrol

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
)

const (
	pemKey     = "PRIVATE KEY"
	pemRequest = "CERTIFICATE REQUEST"
)

// Key is the private key of a join under way, kept in the file name of dir, mode
// 0600, so that a join whose answer was lost is repeated with the same key, and
// costs its token no second use.
func Key(dir *os.Root, name string) (crypto.Signer, error) {
	text, err := dir.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the key of a join: %w", err)
	}
	if b, _ := pem.Decode(text); b != nil && b.Type == pemKey {
		if key, err := x509.ParsePKCS8PrivateKey(b.Bytes); err == nil {
			if s, ok := key.(crypto.Signer); ok {
				return s, nil
			}
		}
	}
	key, err := ca.NewKey()
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of a join: %w", err)
	}
	return key, ca.WriteFile(dir, name, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), 0o600)
}

// Forget removes the key of a join that has ended.
func Forget(dir *os.Root, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the key of a join: %w", err)
	}
	return nil
}

// Request is a certificate request for the key, as PEM.
func Request(key crypto.Signer) (string, error) {
	csr, err := ca.Request(key)
	return Text(csr), err
}

// Text is a request (PKCS #10, DER) as PEM.
func Text(csr []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: csr}))
}

// ParseRequest is Text backwards; anything else is ErrInvalid.
func ParseRequest(text string) ([]byte, error) {
	b, _ := pem.Decode([]byte(text))
	if b == nil || b.Type != pemRequest {
		return nil, fmt.Errorf("the CSR is no PEM certificate request: %w", api.ErrInvalid)
	}
	return b.Bytes, nil
}
