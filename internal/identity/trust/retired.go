package trust

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/internal/identity"
)

// retired has the oldest key of each cluster's authority that is not retired, as the certificates that
// were verified say. Only the root signs these certificates, so that neither a cluster nor the holder of
// a stolen key can retire a key of another cluster, and a replayed one does not make a key valid again.
// It has at most one entry for each cluster that the root has signed such a certificate for.
type retired struct {
	mu      sync.Mutex // guards the fields below
	oldest  map[api.ClusterID]uint64
	changes uint64
}

// check learns from a verified chain, and returns ErrForbidden if an authority in it is retired.
func (r *retired) check(chain []*x509.Certificate) error {
	for _, c := range chain {
		id, g, ok, err := generation(c)
		switch {
		case err != nil:
			return err
		case ok:
			if err := r.note(id, g); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *retired) note(id api.ClusterID, g identity.Generation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := r.oldest[id]
	if g.Key < oldest {
		return fmt.Errorf("the cluster has retired the key %d of its certificate authority, with which it was issued, the oldest that is valid is %d; "+
			"delete the node and let it join again with a new token (treeline token create --node): %w", g.Key, oldest, api.ErrForbidden)
	}
	if g.Oldest > oldest {
		if r.oldest == nil {
			r.oldest = map[api.ClusterID]uint64{}
		}
		r.oldest[id] = g.Oldest
		r.changes++
	}
	return nil
}

// generation returns the generation of a cluster's authority; ok is false for other certificates.
func generation(c *x509.Certificate) (_ api.ClusterID, g identity.Generation, ok bool, err error) {
	if !c.IsCA {
		return "", g, false, nil
	}
	id, err := identity.Of(c)
	if err != nil || id.Kind != identity.Cluster {
		return "", g, false, err
	}
	g, err = identity.GenerationOf(c)
	return id.Cluster, g, true, err
}

// Learn takes which authorities are retired from a machine's own chain, which was verified when it was
// issued, and trusts the root certificates in it from then on, and no others. Without it, a machine would forget it with each
// restart.
func (v *Verifier) Learn(own []*x509.Certificate) {
	_ = v.retired.check(own)
	all := roots.Of(own)
	if len(all) == 0 {
		return
	}
	next := New(all...).Roots
	if had := v.Pool(); had == nil || !had.Equal(next) {
		v.current.Store(next)
		v.retired.mu.Lock()
		v.retired.changes++
		v.retired.mu.Unlock()
	}
}

// Retirements counts how often an authority was found to be retired, or the trusted roots have changed. Results of Chain and Peer from before the last
// one may differ now.
func (v *Verifier) Retirements() uint64 {
	v.retired.mu.Lock()
	defer v.retired.mu.Unlock()
	return v.retired.changes
}

// Retired returns ErrForbidden if the issuer of a chain is known to be retired.
func (v *Verifier) Retired(chain []*x509.Certificate) error {
	if v.Retirements() == 0 {
		return nil
	}
	return v.retired.check(chain)
}

// unretired refuses to use a certificate whose issuer is retired.
func (v *Verifier) unretired(cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if cert == nil {
		return nil
	}
	return func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		own, err := cert(r)
		if err != nil || v.Retirements() == 0 {
			return own, err
		}
		var chain []*x509.Certificate
		for _, der := range own.Certificate {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, fmt.Errorf("read the own certificate: %w", err)
			}
			chain = append(chain, c)
		}
		if err := v.retired.check(chain); err != nil {
			return nil, fmt.Errorf("own certificate of %s: %w", chain[0].Subject.CommonName, err)
		}
		return own, nil
	}
}
