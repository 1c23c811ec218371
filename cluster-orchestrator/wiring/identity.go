package wiring

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/cluster-orchestrator/operators"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/revoke"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/seal"
)

// OperatorFile has the operator's token, with mode 0600 like the cluster's key in the same
// directory.
const OperatorFile = "operator-token"

// valuesKeyFile has the key of the configs and secrets in the store.
const valuesKeyFile = "secrets.key"

// maxDetachAfter is below the time that a node waits for a volume.
const maxDetachAfter = 4 * time.Minute

// minOperatorToken is the minimum length of the operator's token.
const minOperatorToken = 20

const (
	keysEvery = jwt.Announce - 30*time.Minute // between fetches; bounds how long a key that the root has retired is accepted
	keysGap   = time.Minute                   // after an error, and the minimum time between fetches because of unknown keys
)

// identities has the cluster's certificates and keys, and verifies those of others.
type identities struct {
	dir      *os.Root
	log      *slog.Logger
	verifier *trust.Verifier
	keeper   *keeper.Keeper    // of the server and client certificate
	upper    *keeper.Keeper    // of the authority's certificate, which the root signs
	life     time.Duration     // of certificates that the authority signs; 0: the default
	operator [sha256.Size]byte // hash of the operator's token
	// operators has the named tokens; the cluster's store, which is opened later, has them.
	operators *operators.Store
	tokens    *jwt.Verifier
	revoked   revoke.List
	sealer    *seal.Sealer  // of configs and secrets in the store
	unknown   chan struct{} // signals a token with an unknown key
	outdated  chan struct{} // signals that the root has another key than the one of the authority's certificate
	// anchors returns further certificates for the external broker, as PEM; nil: there are none.
	anchors atomic.Pointer[func() []byte]

	saving sync.Mutex // serialises changes of the credentials, including the save

	mu    sync.Mutex // guards the fields below
	creds rootlink.Credentials
	ca    *ca.Authority
	keys  jwt.PublicKeys
}

// join returns the stored credentials, or joins with the token. It retries an unreachable
// root until ctx ends.
func join(ctx context.Context, cfg Config, dir *os.Root, version string, log *slog.Logger) (rootlink.Credentials, error) {
	creds, err := rootlink.Load(dir)
	switch {
	case err == nil && cfg.Name != "" && cfg.Name != string(creds.Info.ID):
		return creds, fmt.Errorf("data directory %s belongs to cluster %s, not %s; a cluster cannot be renamed: %w", cfg.Data, creds.Info.ID, cfg.Name, api.ErrConflict)
	case err == nil || !errors.Is(err, api.ErrNotFound):
		return creds, err
	case cfg.Name == "" || cfg.Token == "":
		return creds, fmt.Errorf("this cluster has not joined a root: give it a name and a join token (the root's operator makes one with treeline token create --cluster): %w", err)
	}
	info := api.ClusterInfo{ID: api.ClusterID(cfg.Name), Location: cfg.Location, Version: version}
	creds, err = enrol.Retry(ctx, log, func() (rootlink.Credentials, error) {
		return rootlink.Join(ctx, dir, cfg.Token.Reveal(), info, cfg.Root...)
	})
	if err == nil {
		log.Info("joined", "cluster", creds.Info.ID, "root", creds.URL, "tenant", creds.Info.Tenant)
	}
	return creds, err
}

func openIdentity(cfg Config, dir *os.Root, creds rootlink.Credentials, names []string, log *slog.Logger) (*identities, error) {
	id := &identities{
		dir: dir, log: log, verifier: trust.New(), unknown: make(chan struct{}, 1), outdated: make(chan struct{}, 1), life: cfg.CertLife,
	}
	if err := id.use(creds); err != nil {
		return nil, err
	}
	id.tokens = jwt.NewVerifier(jwt.VerifierOptions{
		Keys: id.key, Issuer: api.TokenIssuer, Audience: api.ClusterAudience(creds.Info.ID), Leeway: jwt.MaxLeeway,
	})
	var err error
	id.keeper, err = keeper.Own(keeper.Options{Log: log.With("of", "server")}, func(csr []byte) ([]*x509.Certificate, error) {
		return id.authority().SignOwn(time.Now(), csr, names...)
	})
	if err != nil {
		return nil, err
	}
	// Without its key, the values in the store are fetched again.
	keys, err := seal.KeyFile(dir, valuesKeyFile, false)
	if err != nil {
		return nil, err
	}
	id.sealer = seal.New(keys)
	token := cfg.OperatorToken.Reveal()
	if token == "" {
		if token, err = operatorToken(dir, log); err != nil {
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
	id.verifier.Learn(creds.Pair.Chain)
	id.mu.Lock()
	defer id.mu.Unlock()
	id.creds, id.ca, id.keys = creds, authority.WithLife(id.life), creds.Keys()
	return nil
}

func (id *identities) authority() *ca.Authority {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.ca
}

// pin returns the hash of the newest root certificate, for join tokens.
func (id *identities) pin() [sha256.Size]byte { return id.authority().Hash() }

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

// authenticate returns the holder of a bearer token at the cluster's own port: the cluster's
// operator, the holder of a named token, or a user with a token that the root issued for this cluster. Other tokens of the
// root have another audience and are refused.
func (id *identities) authenticate(token string) (httpapi.Caller, error) {
	sum := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(sum[:], id.operator[:]) == 1 {
		operator := rights.Principal{User: "operator", Tenant: rights.System, Roles: []rights.Role{rights.Admin}}
		return httpapi.Caller{Principal: operator, Own: true, Good: func() error { return nil }}, nil
	}
	if strings.HasPrefix(token, operators.Prefix) {
		r, err := id.operators.Verify(token)
		if err != nil {
			return httpapi.Caller{}, err
		}
		who := rights.Principal{User: r.User(), Tenant: id.info().Tenant, Roles: r.Roles}
		if who.Has(rights.Admin) {
			who.Tenant = rights.System
		}
		return httpapi.Caller{Principal: who, Life: time.Until(r.Expires), Good: func() error { return id.operators.Good(r) }}, nil
	}
	c, err := id.tokens.Verify(token, jwt.UseAccess)
	if err != nil {
		return httpapi.Caller{}, fmt.Errorf("%w; exchange a token for this cluster at the root, or use the operator's", err)
	}
	return id.caller(c, max(1, time.Until(c.Expires)))
}

// authenticateOnce returns the user on whose behalf the root sends the request object. A token is valid
// once. A stream that it opens does not expire here: the root closes it when the user's own
// token expires, and revocations end it.
func (id *identities) authenticateOnce(token, object string) (httpapi.Caller, error) {
	c, err := id.tokens.VerifyOnce(token, jwt.UseCall)
	if err != nil {
		return httpapi.Caller{}, err
	}
	if c.Object != object {
		return httpapi.Caller{}, fmt.Errorf("token of %s was delegated for another request: %w", c.Subject, api.ErrForbidden)
	}
	return id.caller(c, 0)
}

func (id *identities) caller(c jwt.Claims, life time.Duration) (httpapi.Caller, error) {
	good := func() error { return id.revoked.Check(c.Subject, c.PAT, c.Mark) }
	return httpapi.Caller{Principal: c.Principal(), Life: life, Good: good}, good()
}

// openUpper creates the keeper of the authority's certificate. Renewal does not change the
// key, so that the certificates that it has signed stay valid.
func (id *identities) openUpper(client *http.Client) (err error) {
	var renewed rootlink.Credentials // passed from Renew to Save, which one goroutine calls
	id.upper, err = keeper.New(keeper.Options{
		Pair: id.credentials().Pair, KeepKey: true, Log: id.log.With("of", "authority"),
		Renew: func(ctx context.Context, csr []byte) (_ []*x509.Certificate, err error) {
			renewed, err = id.credentials().Renew(ctx, client, csr)
			return renewed.Pair.Chain, err
		},
		Save: func(ca.Pair) error { return id.saveRenewed(renewed) },
	})
	return err
}

// saveRenewed saves and uses the credentials of a renewal. It leaves the keys that verify users'
// tokens to fetchKeys, which may have saved newer ones since the root answered the renewal.
func (id *identities) saveRenewed(renewed rootlink.Credentials) error {
	id.saving.Lock()
	defer id.saving.Unlock()
	now := id.credentials()
	if had, ok := now.Pair.Key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !had.Equal(renewed.Pair.Key.Public()) {
		return fmt.Errorf("the key of the certificate authority was replaced meanwhile: %w", api.ErrConflict)
	}
	renewed.JWTKeys = now.JWTKeys
	return id.keep(renewed)
}

// replace saves and uses another pair of the authority, and renews the cluster's own certificates with it. outer is the
// keeper of an external broker's certificate; nil: there is none.
func (id *identities) replace(ctx context.Context, pair ca.Pair, outer *keeper.Keeper) error {
	id.saving.Lock()
	creds := id.credentials()
	creds.Pair = pair
	err := id.keep(creds)
	id.saving.Unlock()
	if err != nil {
		return err
	}
	if err := id.upper.Use(pair); err != nil {
		return err
	}
	err = id.keeper.Renew(ctx)
	if outer != nil {
		err = errors.Join(err, outer.Renew(ctx))
	}
	return err
}

// keep saves credentials and then uses them. The caller holds saving.
func (id *identities) keep(creds rootlink.Credentials) error {
	if err := creds.Save(id.dir); err != nil {
		return err
	}
	return id.use(creds)
}

// followKeys fetches the keys that verify users' tokens: at once, every keysEvery, keysGap after an
// error, and when a token has an unknown key, until ctx ends.
func (id *identities) followKeys(ctx context.Context, client *http.Client) error {
	var last time.Time // of the fetches after the first one
	due := time.NewTimer(id.tryKeys(ctx, client))
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-id.unknown:
			if left := time.Until(last.Add(keysGap)); left > 0 {
				due.Reset(left)
				continue
			}
		case <-due.C:
		}
		last = time.Now()
		due.Reset(id.tryKeys(ctx, client))
	}
}

// tryKeys fetches the keys and returns the time until the next fetch.
func (id *identities) tryKeys(ctx context.Context, client *http.Client) time.Duration {
	err := id.fetchKeys(ctx, client)
	if err == nil {
		return keysEvery
	}
	if ctx.Err() == nil {
		id.log.Warn("cannot fetch the keys that verify users' tokens, continuing with the known ones", "err", err)
	}
	return keysGap
}

// learn saves the URLs of the root's replicas, which the root itself has sent.
func (id *identities) learn(roots *replicas.Addresses, urls []string) {
	if !roots.Learn(urls) {
		return
	}
	id.saving.Lock()
	defer id.saving.Unlock()
	now := id.credentials()
	now.Replicas = replicas.Clean(urls)
	id.log.Info("replicas of the root changed", "urls", now.Replicas)
	if err := id.keep(now); err != nil {
		id.log.Warn("the URLs of the root's replicas are not saved", "err", err)
	}
}

func (id *identities) fetchKeys(ctx context.Context, client *http.Client) error {
	creds, behind, err := id.credentials().FetchKeys(ctx, client)
	if err != nil {
		return err
	}
	if behind {
		id.renewUpper()
	}
	id.saving.Lock()
	defer id.saving.Unlock()
	now := id.credentials()
	if maps.Equal(now.JWTKeys, creds.JWTKeys) {
		return nil
	}
	now.JWTKeys = creds.JWTKeys
	id.log.Info("keys that verify users' tokens changed", "keys", len(now.JWTKeys))
	return id.keep(now)
}

// operatorToken returns the operator's token. The first start generates it. It is written to
// OperatorFile and never logged.
func operatorToken(dir *os.Root, log *slog.Logger) (string, error) {
	text, err := dir.ReadFile(OperatorFile)
	if err == nil {
		token := strings.TrimSpace(string(text))
		if len(token) < minOperatorToken {
			return "", fmt.Errorf("%s/%s has %d bytes, want at least %d; delete it and the next start makes one: %w", dir.Name(), OperatorFile, len(token), minOperatorToken, api.ErrInvalid)
		}
		return token, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the operator's token: %w", err)
	}
	token := "TLO." + rand.Text()
	if err := ca.WriteFile(dir, OperatorFile, []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}
	log.Info("operator's token made", "file", dir.Name()+"/"+OperatorFile)
	return token, nil
}
