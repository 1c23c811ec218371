// Package roots follows the root certificates of an installation when the key of the root's certificate authority is replaced. The
// new key has a self-signed certificate, which machines trust from then on, and a link: a certificate for the same key that the key
// before has signed. A machine that trusts the earlier certificate verifies through the link, and learns the new one from it.
//
//	trusted = roots.Follow(now, trusted, shown)             // by a client, from a server's certificates
//	chain, err = roots.Renewed(now, roots.Of(had), renewed) // by a machine, from its renewed certificate
package roots

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// The bounds of what is looked at in certificates that a peer has sent.
const (
	maxShown = 10 // certificates
	maxLinks = 4  // rotations
)

// identity is the name of the root in its certificates.
const identity = "treeline://root"

// Of returns the root certificates in a machine's own chain, the newest first.
func Of(chain []*x509.Certificate) []*x509.Certificate {
	var all []*x509.Certificate
	for _, c := range chain[:min(len(chain), maxShown)] {
		if Is(c) {
			all = append(all, c)
		}
	}
	return all
}

// Is reports whether a certificate is a self-signed one of a root. A link is not.
func Is(c *x509.Certificate) bool { return named(c) && c.CheckSignatureFrom(c) == nil }

func named(c *x509.Certificate) bool {
	return c.IsCA && len(c.URIs) == 1 && c.URIs[0].String() == identity
}

// Follow returns the certificates to trust, the newest first, after a peer has shown certificates: trusted, preceded by those to
// which a link leads. trusted is not empty, the newest is first, and only that one's key can sign a link: the holder of an earlier
// key cannot lead a machine away that has learnt the next one. Nothing else in shown has to be verified.
func Follow(now time.Time, trusted, shown []*x509.Certificate) []*x509.Certificate {
	shown = shown[:min(len(shown), maxShown)]
	for range maxLinks {
		next := successor(now, trusted, shown)
		if next == nil {
			break
		}
		trusted = append([]*x509.Certificate{next}, trusted...)
	}
	return trusted
}

func successor(now time.Time, trusted, shown []*x509.Certificate) *x509.Certificate {
	for _, link := range shown {
		if !named(link) || !valid(link, now) || sameKey(link, trusted[0]) || link.CheckSignatureFrom(trusted[0]) != nil {
			continue
		}
		for _, c := range shown {
			if sameKey(c, link) && valid(c, now) && Is(c) && !slices.ContainsFunc(trusted, func(t *x509.Certificate) bool { return sameKey(t, c) }) {
				return c
			}
		}
	}
	return nil
}

func valid(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && !now.After(c.NotAfter)
}

func sameKey(a, b *x509.Certificate) bool {
	key, ok := a.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b.PublicKey)
}

// Contains reports whether c is among the certificates.
func Contains(all []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(all, func(o *x509.Certificate) bool { return bytes.Equal(o.Raw, c.Raw) })
}

// Renewed returns what a machine keeps of a renewed chain, whose certificates are each signed by the next. It leaves out root
// certificates that are neither in trusted nor reached from there by links, so that the issuer cannot add one. The roots in the
// result are those that the machine trusts from then on: an earlier one that the chain does not have any more is retired.
//
// It returns ErrInvalid if the chain is not of the newest root certificate.
func Renewed(now time.Time, trusted, chain []*x509.Certificate) ([]*x509.Certificate, error) {
	if len(chain) > maxShown {
		return nil, fmt.Errorf("the new certificate has a chain of %d, want at most %d: %w", len(chain), maxShown, api.ErrInvalid)
	}
	if len(trusted) == 0 {
		return nil, fmt.Errorf("the present certificate has no root: %w", api.ErrInvalid)
	}
	after := Follow(now, trusted, chain)
	i := slices.IndexFunc(chain, named)
	switch {
	case i < 0 || !Is(chain[i]):
		return nil, fmt.Errorf("the new certificate has no root: %w", api.ErrInvalid)
	case Contains(after[1:], chain[i]):
		return nil, fmt.Errorf("the new certificate is of the root's earlier key: %w", api.ErrInvalid)
	case !chain[i].Equal(after[0]):
		return nil, fmt.Errorf("the new certificate has another root: %w", api.ErrInvalid)
	}
	var kept []*x509.Certificate
	for _, c := range chain {
		if !Is(c) || Contains(after, c) {
			kept = append(kept, c)
		}
	}
	return kept, nil
}
