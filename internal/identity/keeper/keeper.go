// Package keeper renews a machine's certificate at two thirds of its lifetime and provides it to
// crypto/tls. Open connections stay open; the next handshake uses the new certificate.
//
//	k, err := keeper.New(keeper.Options{Pair: p, Renew: askCluster, Save: toFile})
//	go k.Run(ctx)
//	cfg := verifier.Server(k.GetCertificate, true)
package keeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/internal/identity/ca"
)

// Retries wait minRetry to maxRetry, ±50%. A sleep is at most maxSleep, because timers do not
// advance while a machine is suspended.
const (
	minRetry = 10 * time.Second
	maxRetry = 10 * time.Minute
	maxSleep = time.Hour
)

type Options struct {
	Pair ca.Pair // used until the first renewal

	// Renew gets a certificate for the request (PKCS #10, DER). After an error it may be
	// called again with another request.
	Renew func(ctx context.Context, csr []byte) ([]*x509.Certificate, error)
	Save  func(ca.Pair) error // makes a renewed pair durable before it is served; nil: nothing to do

	KeepKey bool // renew with the same key, as authorities do

	Now   func() time.Time                     // nil: time.Now
	After func(time.Duration) <-chan time.Time // nil: time.After
	Log   *slog.Logger                         // nil: slog.Default
}

// Keeper provides and renews one certificate. It is safe for concurrent use.
type Keeper struct {
	opt     Options
	turn    chan struct{} // has a value while a renewal is under way
	current atomic.Pointer[served]
}

type served struct {
	pair           ca.Pair
	server, client *tls.Certificate
}

// New checks the pair (ErrInvalid). Run renews it.
func New(o Options) (*Keeper, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	if err := o.Pair.Check(); err != nil {
		return nil, err
	}
	k := &Keeper{opt: o, turn: make(chan struct{}, 1)}
	k.serve(o.Pair)
	return k, nil
}

// Own returns a keeper of a certificate that the machine signs itself with sign, now and at each
// renewal, with a new key each time. It ignores o.Pair and o.Renew, and saves the first pair too.
func Own(o Options, sign func(csr []byte) ([]*x509.Certificate, error)) (*Keeper, error) {
	key, csr, err := ca.NewRequest()
	if err != nil {
		return nil, err
	}
	chain, err := sign(csr)
	if err != nil {
		return nil, err
	}
	o.Pair = ca.Pair{Chain: chain, Key: key}
	if o.Save != nil {
		if err := o.Save(o.Pair); err != nil {
			return nil, err
		}
	}
	o.Renew = func(_ context.Context, csr []byte) ([]*x509.Certificate, error) { return sign(csr) }
	return New(o)
}

func (k *Keeper) serve(p ca.Pair) {
	k.current.Store(&served{pair: p, server: p.TLS(true), client: p.TLS(false)})
}

func (k *Keeper) Pair() ca.Pair { return k.current.Load().pair }

// GetCertificate is for the tls.Config of servers. The chain includes the root's certificate for
// joining machines, which have only its hash.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return k.current.Load().server, nil
}

// GetClientCertificate is for the tls.Config of clients.
func (k *Keeper) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return k.current.Load().client, nil
}

// Due returns when the pair's certificate is due for renewal: at two thirds of its lifetime.
func Due(p ca.Pair) time.Time {
	c := p.Chain[0]
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 3 * 2)
}

// Run renews the certificate until ctx ends, and then returns nil. It retries failed renewals,
// even after the certificate has expired.
func (k *Keeper) Run(ctx context.Context) error {
	retry := time.Duration(0)
	for {
		wait := k.untilDue()
		if wait <= 0 {
			if err := k.renew(ctx); err != nil && ctx.Err() == nil {
				retry = min(max(2*retry, minRetry), maxRetry)
				wait = retry/2 + rand.N(retry) // spreads the retries of many machines
				k.opt.Log.Warn("certificate not renewed", "error", err, "retry_in", wait.Round(time.Second),
					"ends", k.Pair().Chain[0].NotAfter)
			} else {
				retry = 0
				wait = k.untilDue()
			}
		}
		// No busy loop if the new certificate is due at once, because its signer is near expiry.
		wait = max(min(wait, maxSleep), time.Second)
		select {
		case <-ctx.Done():
			return nil
		case <-k.opt.After(wait):
		}
	}
}

// Renew renews the certificate now.
func (k *Keeper) Renew(ctx context.Context) error { return k.renew(ctx) }

// Use replaces the pair, which the caller has saved. It waits for a renewal under way, which cannot replace it then.
func (k *Keeper) Use(p ca.Pair) error {
	if err := p.Check(); err != nil {
		return err
	}
	k.turn <- struct{}{}
	k.serve(p)
	<-k.turn
	return nil
}

func (k *Keeper) untilDue() time.Duration { return Due(k.Pair()).Sub(k.opt.Now()) }

func (k *Keeper) renew(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	old := k.Pair()
	next := ca.Pair{Key: old.Key}
	if !k.opt.KeepKey {
		key, err := ca.NewKey()
		if err != nil {
			return err
		}
		next.Key = key
	}
	csr, err := ca.Request(next.Key)
	if err != nil {
		return err
	}
	if next.Chain, err = k.opt.Renew(ctx, csr); err != nil {
		return fmt.Errorf("renew the certificate of %q: %w", old.Chain[0].Subject.CommonName, err)
	}
	if next.Chain, err = k.accept(old, next); err != nil {
		return fmt.Errorf("renew the certificate of %q: %w", old.Chain[0].Subject.CommonName, err)
	}
	if k.opt.Save != nil {
		if err := k.opt.Save(next); err != nil {
			return fmt.Errorf("save the renewed certificate of %q: %w", old.Chain[0].Subject.CommonName, err)
		}
	}
	k.serve(next)
	k.opt.Log.Info("certificate renewed", "ends", next.Chain[0].NotAfter)
	return nil
}

// accept returns the chain to keep, or an error if the new certificate would disconnect the machine: it has another
// identity or another root, or has expired.
func (k *Keeper) accept(old, next ca.Pair) ([]*x509.Certificate, error) {
	if err := next.Check(); err != nil {
		return nil, err
	}
	was, is := old.Chain[0], next.Chain[0]
	if len(is.URIs) != 1 || len(was.URIs) != 1 || is.URIs[0].String() != was.URIs[0].String() {
		return nil, fmt.Errorf("the new certificate names %v, not %v: %w", is.URIs, was.URIs, api.ErrInvalid)
	}
	if !is.NotAfter.After(k.opt.Now()) {
		return nil, fmt.Errorf("the new certificate expired at %s: %w", is.NotAfter.UTC().Format(time.RFC3339), api.ErrInvalid)
	}
	return roots.Renewed(k.opt.Now(), old.Roots(), next.Chain)
}
