package wiring

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/signing"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/clusterlink"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/rootca"
)

// The secret files in the data directory.
const (
	authorityFile = "root-ca.pem"
	ringFile      = "token-keys.json"
	valuesKeyFile = "secrets.key"
)

// identities has the root's certificates, keys and accounts.
type identities struct {
	rootca   *rootca.Rotation
	keeper   *keeper.Keeper
	verifier *trust.Verifier
	ring     *jwt.Ring
	signing  *signing.Keys
	accounts *account.Service
	tokens   *jointoken.Store
	issued   *clusterlink.Issued
	sealer   *seal.Sealer
}

func openIdentity(cfg Config, dir *os.Root, pair ca.Pair, sealer *seal.Sealer, st store.Store, loaded []store.Doc, external string, names []string, log *slog.Logger) (*identities, error) {
	id := &identities{sealer: sealer}
	var err error
	if id.ring, err = openRing(dir, len(loaded) > 0, log); err != nil {
		return nil, err
	}
	id.signing, err = signing.Open(signing.Options{
		Store: st, Loaded: loaded, Ring: id.ring, Sealer: id.sealer, Share: cfg.Replica, Log: log, Now: time.Now,
		File: func(text []byte) error { return ca.WriteFile(dir, ringFile, text, 0o600) },
	})
	if err != nil {
		return nil, err
	}
	if id.issued, err = clusterlink.NewIssued(st, loaded); err != nil {
		return nil, err
	}
	id.rootca, err = rootca.Open(rootca.Options{
		Store: st, Loaded: loaded, Sealer: id.sealer, Pair: pair, Life: cfg.CertLife, Now: time.Now, Log: log,
		Save: func(ctx context.Context, p ca.Pair) error {
			if err := saveAuthority(dir, p); err != nil {
				return err
			}
			return storemark.Replace(ctx, st, p.Chain[0])
		},
	})
	if err != nil {
		return nil, err
	}
	id.verifier = trust.New()
	id.verifier.Learn(pair.Chain)
	id.verifier.Revoked = id.issued.Revoked
	if id.keeper, err = openKeeper(id.rootca.Authority, names, log); err != nil {
		return nil, err
	}
	id.accounts, err = account.New(account.Options{
		Store: st, Loaded: loaded, Ring: id.ring, Issuer: api.TokenIssuer, Audience: api.TokenAudience, Log: log,
	})
	if err != nil {
		return nil, err
	}
	id.tokens, err = jointoken.NewStore(st, loaded, external, id.rootca.Hash, time.Now)
	return id, err
}

// openSealer opens the key of the values in the store, or creates it if the store has none.
func openSealer(cfg Config, dir *os.Root, loaded []store.Doc) (*seal.Sealer, error) {
	used := slices.ContainsFunc(loaded, func(d store.Doc) bool {
		return d.Kind == root.KindValues || d.Kind == signing.Kind || d.Kind == rootca.Kind
	})
	keys, err := seal.KeyFile(dir, valuesKeyFile, used && !cfg.NewKey)
	if err != nil {
		return nil, err
	}
	return seal.New(keys), nil
}

// saveAuthority writes the files of the root's authority.
func saveAuthority(dir *os.Root, p ca.Pair) error {
	if err := ca.SavePair(dir, authorityFile, p); err != nil {
		return err
	}
	return ca.WriteFile(dir, CAFile, rootPEM(p), 0o644)
}

// replaced has another pair of the authority used: by the root's own certificate, by its verifier, and by clusters.
func (id *identities) replaced(ctx context.Context, link *clusterlink.Link) error {
	id.verifier.Learn(id.rootca.Authority().Pair().Chain)
	if err := id.keeper.Renew(ctx); err != nil {
		return err
	}
	link.RootKeysChanged()
	return nil
}

// openAuthority reads the root's authority, or creates one at the first start. It returns
// ErrNotFound if the key is missing although the store is in use: clusters would not accept a new
// key.
func openAuthority(dir *os.Root, used bool) (*ca.Authority, error) {
	pair, err := ca.LoadPair(dir, authorityFile)
	if err == nil {
		return ca.New(pair)
	}
	if !errors.Is(err, api.ErrNotFound) {
		return nil, err
	}
	if used {
		return nil, fmt.Errorf("the store belongs to an installation whose key, %s/%s, is missing; restore it from a backup, because clusters accept no other key: %w",
			dir.Name(), authorityFile, api.ErrNotFound)
	}
	a, err := ca.NewRoot(time.Now())
	if err != nil {
		return nil, err
	}
	return a, ca.SavePair(dir, authorityFile, a.Pair())
}

// openRing reads the keys that sign tokens, or creates them if they are missing; all users then
// have to sign in again.
func openRing(dir *os.Root, used bool, log *slog.Logger) (*jwt.Ring, error) {
	text, err := dir.ReadFile(ringFile)
	if err == nil {
		return jwt.ParseRing(text)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the token keys: %w", err)
	}
	if used {
		log.Warn("token keys missing, creating new ones; all sessions and tokens are invalid", "file", ringFile)
	}
	ring := jwt.NewRing(time.Now())
	if text, err = ring.Marshal(); err != nil {
		return nil, fmt.Errorf("encode the token keys: %w", err)
	}
	return ring, ca.WriteFile(dir, ringFile, text, 0o600)
}

// openKeeper creates a new server certificate for the configured names, signed by the root.
func openKeeper(a func() *ca.Authority, names []string, log *slog.Logger) (*keeper.Keeper, error) {
	return keeper.Own(keeper.Options{Log: log}, func(csr []byte) ([]*x509.Certificate, error) {
		return a().SignOwn(time.Now(), csr, names...)
	})
}
