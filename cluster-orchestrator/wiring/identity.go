package wiring

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// OperatorFile holds the operator's token, mode 0600. Who can read it can read
// the cluster's key beside it.
const OperatorFile = "operator-token"

const (
	refreshEvery = 7 * 24 * time.Hour // of what the root told us, the keys for tokens above all
	refreshGap   = 10 * time.Minute   // between two that tokens with unknown keys ask for
	refreshRetry = time.Minute
)

// identities is all by which the cluster knows itself and others.
type identities struct {
	dir      *os.Root
	log      *slog.Logger
	verifier *trust.Verifier
	keeper   *keeper.Keeper // of the server's and client's certificate
	operator [sha256.Size]byte
	tokens   *jwt.Verifier
	unknown  chan struct{} // a token has a key that we do not know

	mu    sync.Mutex // guards the fields below
	creds rootlink.Credentials
	ca    *ca.Authority
	keys  jwt.PublicKeys
}

// join is the cluster's credentials, or those it gets for its token. A root that
// cannot be reached is asked again until ctx ends.
func join(ctx context.Context, cfg Config, dir *os.Root, version string, log *slog.Logger) (rootlink.Credentials, error) {
	creds, err := rootlink.Load(dir)
	switch {
	case err == nil && cfg.Name != "" && cfg.Name != string(creds.Info.ID):
		return creds, fmt.Errorf("%s is cluster %s's, not %s's: a cluster keeps its name: %w", cfg.Data, creds.Info.ID, cfg.Name, api.ErrConflict)
	case err == nil || !errors.Is(err, api.ErrNotFound):
		return creds, err
	case cfg.Name == "" || cfg.Token == "":
		return creds, fmt.Errorf("this cluster has not joined a root: give it a name and a join token (the root's operator makes one with treeline token create --cluster): %w", err)
	}
	info := api.ClusterInfo{ID: api.ClusterID(cfg.Name), Location: cfg.Location, Version: version}
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		creds, err = rootlink.Join(ctx, dir, cfg.Token.Reveal(), info)
		if err == nil {
			log.Info("joined", "cluster", creds.Info.ID, "root", creds.URL, "tenant", creds.Info.Tenant)
			return creds, nil
		}
		if !errors.Is(err, api.ErrUnavailable) || ctx.Err() != nil {
			return creds, err
		}
		wait := pause/2 + mathrand.N(pause)
		log.Warn("the root cannot be reached; joining again", "retry_in", wait.Round(time.Millisecond), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return creds, err
		}
	}
}

func openIdentity(cfg Config, dir *os.Root, creds rootlink.Credentials, names []string, log *slog.Logger) (*identities, error) {
	id := &identities{dir: dir, log: log, verifier: trust.New(creds.Pair.Root()), unknown: make(chan struct{}, 1)}
	if err := id.use(creds); err != nil {
		return nil, err
	}
	id.tokens = jwt.NewVerifier(jwt.VerifierOptions{
		Keys: id.key, Issuer: api.TokenIssuer, Audience: api.TokenAudience, Leeway: jwt.MaxLeeway,
	})
	var err error
	if id.keeper, err = id.openKeeper(names); err != nil {
		return nil, err
	}
	token := cfg.OperatorToken.Reveal()
	if token == "" {
		if token, err = operatorToken(dir); err != nil {
			return nil, err
		}
	}
	id.operator = sha256.Sum256([]byte(token))
	return id, nil
}

func (id *identities) use(creds rootlink.Credentials) error {
	authority, err := ca.New(creds.Pair)
	if err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.creds, id.ca, id.keys = creds, authority, creds.Keys()
	return nil
}

// openKeeper makes the cluster's own certificate. The cluster signs its own, so
// that a fresh one at each start, with today's names, costs nothing.
func (id *identities) openKeeper(names []string) (*keeper.Keeper, error) {
	key, csr, err := ca.NewRequest()
	if err != nil {
		return nil, err
	}
	chain, err := id.authority().SignOwn(time.Now(), csr, names...)
	if err != nil {
		return nil, err
	}
	return keeper.New(keeper.Options{
		Pair: ca.Pair{Chain: chain, Key: key}, Log: id.log,
		Renew: func(_ context.Context, csr []byte) ([]*x509.Certificate, error) {
			return id.authority().SignOwn(time.Now(), csr, names...)
		},
	})
}

func (id *identities) authority() *ca.Authority {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.ca
}

func (id *identities) credentials() rootlink.Credentials {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.creds
}

func (id *identities) info() api.ClusterInfo { return id.credentials().Info }

func (id *identities) key(kid string) (ed25519.PublicKey, bool) {
	id.mu.Lock()
	k, ok := id.keys.Key(kid)
	id.mu.Unlock()
	if !ok {
		select {
		case id.unknown <- struct{}{}:
		default:
		}
	}
	return k, ok
}

// authenticate finds out who a bearer token speaks for: a person that the root
// knows, or the operator of this cluster.
func (id *identities) authenticate(token string) (rights.Principal, error) {
	sum := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(sum[:], id.operator[:]) == 1 {
		return rights.Principal{User: "operator", Tenant: rights.System, Roles: []rights.Role{rights.Admin}}, nil
	}
	c, err := id.tokens.Verify(token, jwt.UseAccess)
	if err != nil {
		return rights.Principal{}, err
	}
	return c.Principal(), nil
}

// keepMembership renews the authority's certificate and what else the root told
// us, until ctx ends. A root that is away is asked again.
func (id *identities) keepMembership(ctx context.Context, client *http.Client) error {
	last := time.Now()
	next := time.NewTimer(id.untilRenewal())
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-id.unknown:
			if time.Since(last) < refreshGap {
				continue
			}
		case <-next.C:
		}
		last = time.Now()
		wait := refreshRetry
		if err := id.renew(ctx, client); err == nil {
			wait = id.untilRenewal()
		} else if ctx.Err() == nil {
			id.log.Warn("membership not renewed", "retry_in", wait, "err", err)
		}
		next.Reset(wait)
	}
}

func (id *identities) untilRenewal() time.Duration {
	due := time.Until(keeper.Due(id.credentials().Pair))
	return max(refreshRetry, min(due, refreshEvery))
}

func (id *identities) renew(ctx context.Context, client *http.Client) error {
	creds, err := id.credentials().Renew(ctx, client)
	if err != nil {
		return err
	}
	if err := creds.Save(id.dir); err != nil {
		return err
	}
	id.log.Info("membership renewed", "ends", creds.Pair.Chain[0].NotAfter)
	return id.use(creds)
}

// operatorToken is the token in the data directory; at the first start it is
// made, and printed once.
func operatorToken(dir *os.Root) (string, error) {
	text, err := dir.ReadFile(OperatorFile)
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the operator's token: %w", err)
	}
	token := "TLO." + rand.Text()
	if err := ca.WriteFile(dir, OperatorFile, []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}
	fmt.Printf("The operator's token for this cluster, also in %s/%s:\n\n  %s\n\n", dir.Name(), OperatorFile, token)
	return token, nil
}
