// Package enrol joins clusters to their root and nodes to their cluster. A client (the member)
// sends a join token and a certificate request, and a Server answers with a certificate chain. The
// caller decides what the server checks before it signs, and what else the answer contains.
//
//	c, err := enrol.Open(dir, line, jointoken.ForNode) // at the member
//	pair, err := c.Join(ctx, "/v1/join/node", request, &answer, member)
//
//	&enrol.Server[Request, Answer]{Shares: shares, Refused: refused, Admit: admit, Describe: describe}
package enrol

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
)

const (
	pemKey     = "PRIVATE KEY"
	pemRequest = "CERTIFICATE REQUEST"
	keyFile    = "join.pem" // the key of a join that has not ended
)

// Client joins with one token and one key.
type Client struct {
	Token jointoken.Token
	CSR   string // PEM
	// Further are URLs of other replicas of the token's server.
	Further []string
	key     crypto.Signer
}

// Open prepares a join with the token in a join line. It stores the key in dir, mode 0600, until
// RemoveKey, so that a join whose answer was lost can be repeated without another use of the token.
// It fails with ErrInvalid if the token is for another scope.
func Open(dir *os.Root, line string, scope jointoken.Scope) (Client, error) {
	t, err := jointoken.Parse(line)
	if err != nil {
		return Client{}, err
	}
	if t.Scope != scope {
		return Client{}, fmt.Errorf("join token is for a %s, not for a %s: %w", t.Scope, scope, api.ErrInvalid)
	}
	key, err := storedKey(dir)
	if err != nil {
		return Client{}, err
	}
	return NewClient(t, key)
}

// NewClient prepares a join with a key that the member already has.
func NewClient(t jointoken.Token, key crypto.Signer) (Client, error) {
	csr, err := ca.Request(key)
	return Client{Token: t, CSR: EncodeRequest(csr), key: key}, err
}

// Join posts request to the path at the token's server and decodes the answer into answer. Then it
// calls member, which returns the PEM chain in the answer and the identity that the chain must be
// for. Join fails with ErrInvalid if the chain is not for the client's key and that identity, and
// with ErrUnauthenticated if it is from another installation than the token.
func (c Client) Join(ctx context.Context, path string, request, answer any, member func() (chain string, who identity.Identity)) (ca.Pair, error) {
	server := c.Token.HTTPClient()
	server.Transport = replicas.New(append([]string{c.Token.URL}, c.Further...)...).Transport(server.Transport, 0)
	if err := call.JSON(ctx, server, c.Token.URL+path, request, answer); err != nil {
		return ca.Pair{}, err
	}
	chain, who := member()
	pair, err := VerifyChain(c.key, chain, who)
	if err != nil {
		return pair, err
	}
	i := slices.IndexFunc(pair.Chain, func(cert *x509.Certificate) bool { return sha256.Sum256(cert.Raw) == c.Token.CA })
	if i < 0 || !roots.Is(pair.Chain[i]) {
		return pair, fmt.Errorf("the server belongs to another installation than the join token: %w", api.ErrUnauthenticated)
	}
	pair.Chain, err = roots.Renewed(time.Now(), pair.Chain[i:i+1], pair.Chain)
	return pair, err
}

// VerifyChain checks that a PEM chain is for the key and the identity.
func VerifyChain(key crypto.Signer, chain string, who identity.Identity) (ca.Pair, error) {
	certs, err := ca.DecodeChain([]byte(chain))
	if err != nil {
		return ca.Pair{}, err
	}
	pair := ca.Pair{Chain: certs, Key: key}
	if err := pair.Check(); err != nil {
		return ca.Pair{}, err
	}
	got, err := identity.Of(certs[0])
	if err == nil && got != who {
		err = fmt.Errorf("the certificate names %s, want %s: %w", got, who, api.ErrInvalid)
	}
	return pair, err
}

// RemoveKey removes the stored key of a join that has ended.
func RemoveKey(dir *os.Root) error {
	if err := dir.Remove(keyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the key of a join: %w", err)
	}
	return nil
}

// storedKey returns the stored key of a join, or stores a new one.
func storedKey(dir *os.Root) (crypto.Signer, error) {
	text, err := dir.ReadFile(keyFile)
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
	return key, ca.WriteFile(dir, keyFile, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), 0o600)
}

// Load reads stored credentials: the pair from pairFile, and JSON from metaFile into meta. It fails
// with ErrNotFound if the member has not joined.
func Load(dir *os.Root, pairFile, metaFile string, meta any) (ca.Pair, error) {
	text, err := dir.ReadFile(metaFile)
	if errors.Is(err, fs.ErrNotExist) {
		return ca.Pair{}, fmt.Errorf("credentials in %s: %w", dir.Name(), api.ErrNotFound)
	}
	if err == nil {
		err = json.Unmarshal(text, meta)
	}
	if err != nil {
		return ca.Pair{}, fmt.Errorf("credentials in %s: %w", dir.Name(), err)
	}
	return ca.LoadPair(dir, pairFile)
}

// Save stores credentials, mode 0600. It writes metaFile last, because its presence means that the
// member has joined.
func Save(dir *os.Root, pairFile, metaFile string, pair ca.Pair, meta any) error {
	if err := ca.SavePair(dir, pairFile, pair); err != nil {
		return err
	}
	return SaveMeta(dir, metaFile, meta)
}

// SaveMeta stores meta like Save, without the pair.
func SaveMeta(dir *os.Root, metaFile string, meta any) error {
	text, err := json.MarshalIndent(meta, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the credentials: %w", err)
	}
	return ca.WriteFile(dir, metaFile, append(text, '\n'), 0o600)
}

// EncodeRequest returns a certificate request (PKCS #10, DER) as PEM.
func EncodeRequest(csr []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: csr}))
}

// ParseRequest parses a PEM certificate request and returns it with the fingerprint of its key. It
// fails with ErrInvalid if text is anything else.
func ParseRequest(text string) (csr []byte, key string, err error) {
	b, _ := pem.Decode([]byte(text))
	if b == nil || b.Type != pemRequest {
		return nil, "", fmt.Errorf("the CSR is not a PEM certificate request: %w", api.ErrInvalid)
	}
	key, err = ca.Fingerprint(b.Bytes)
	return b.Bytes, key, err
}

// Retry calls join until it succeeds, fails with an error other than ErrUnavailable, or ctx
// ends. The pauses grow from a second to a minute, with jitter.
func Retry[C any](ctx context.Context, log *slog.Logger, join func() (C, error)) (C, error) {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		c, err := join()
		if err == nil || !errors.Is(err, api.ErrUnavailable) || ctx.Err() != nil {
			return c, err
		}
		wait := pause/2 + rand.N(pause)
		log.Warn("cannot join, retrying", "retry_in", wait.Round(time.Millisecond), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return c, err
		}
	}
}
