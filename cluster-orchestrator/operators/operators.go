// Package operators keeps the named tokens for a cluster's own API, with which further operators work
// while the root is away. Unlike the token in operator-token they have an end, may have fewer rights, and
// are revoked one by one.
//
//	s, err := operators.New(st, docs, time.Now)
//	token, r, err := s.Create(ctx, operators.Order{Name: "night", TTL: 24 * time.Hour, By: "operator"})
//	r, err = s.Verify(token)
package operators

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/store"
)

// Prefix begins every named token.
const Prefix = "TLN."

// Kind is the kind of the documents in the cluster's store.
const Kind = "operator_token"

const (
	minTTL = time.Minute
	maxTTL = 366 * 24 * time.Hour
)

var kept = fairshare.Declare(fairshare.Bound{
	Resource: "named operator tokens of a cluster", Total: 64, Per: "cluster",
	Beyond: "409 until some are revoked or expired", Attack: "TestNamedTokensAreBounded",
})

// Roles are the roles that a named token may have.
var Roles = []rights.Role{rights.Admin, rights.InfrastructureProvider}

// Order describes a new token.
type Order struct {
	Name  string
	Roles []rights.Role // none: Infrastructure_Provider
	TTL   time.Duration
	By    string // the user who ordered it
}

// Record is the stored part of a token, without its secret.
type Record struct {
	Name    string        `json:"name"`
	Hash    string        `json:"hash"`
	Roles   []rights.Role `json:"roles"`
	Created time.Time     `json:"created"`
	Expires time.Time     `json:"expires"`
	By      string        `json:"by"`
}

const userPrefix = "operator:" // no user of the root has a colon in the name

// UserOf returns the user that records and limits name for the holder of a token.
func UserOf(name string) string { return userPrefix + name }

// User is UserOf the token's name.
func (r Record) User() string { return UserOf(r.Name) }

// Named reports whether a user is the holder of a named token.
func Named(user string) bool { return strings.HasPrefix(user, userPrefix) }

// Public returns the token as the REST API shows it.
func (r Record) Public() api.OperatorToken {
	t := api.OperatorToken{Name: r.Name, Created: r.Created, Expires: r.Expires, By: r.By}
	for _, role := range r.Roles {
		t.Roles = append(t.Roles, string(role))
	}
	return t
}

// Store keeps the tokens. It is safe for concurrent use.
type Store struct {
	now   func() time.Time
	table *docs.Table[Record]
}

// New returns the tokens in a store, of which loaded are the documents.
func New(st store.Store, loaded []store.Doc, now func() time.Time) (*Store, error) {
	s := &Store{now: now, table: docs.New[Record](Kind, st)}
	return s, s.table.Load(loaded)
}

// Create makes a token. Only the returned text has the secret. The token is durable when it returns.
func (s *Store) Create(ctx context.Context, o Order) (string, Record, error) {
	if len(o.Roles) == 0 {
		o.Roles = []rights.Role{rights.InfrastructureProvider}
	}
	for _, r := range o.Roles {
		if !slices.Contains(Roles, r) {
			return "", Record{}, fmt.Errorf("operator token with role %.64q, want %s or %s: %w", r, Roles[0], Roles[1], api.ErrInvalid)
		}
	}
	switch {
	case !api.ValidMachineName(o.Name):
		return "", Record{}, fmt.Errorf("operator token %.64q: want a name of lower-case letters, digits and inner hyphens: %w", o.Name, api.ErrInvalid)
	case o.TTL < minTTL || o.TTL > maxTTL:
		return "", Record{}, fmt.Errorf("operator token %s within %s, want %s to %s: %w", o.Name, o.TTL, minTTL, maxTTL, api.ErrInvalid)
	}
	now := s.now()
	if err := s.table.DeleteWhere(ctx, func(r Record) bool { return !now.Before(r.Expires) }); err != nil {
		return "", Record{}, err
	}
	if s.table.Len() >= kept.Total {
		return "", Record{}, fmt.Errorf("%d operator tokens exist, revoke some: %w", kept.Total, api.ErrConflict)
	}
	token := Prefix + o.Name + "." + rand.Text()
	r := Record{Name: o.Name, Hash: hash(token), Roles: o.Roles, Created: now, Expires: now.Add(o.TTL), By: o.By}
	err := s.table.Update(ctx, o.Name, func(_ Record, taken bool) (Record, error) {
		if taken {
			return Record{}, fmt.Errorf("operator token %s exists; revoke it, or give another name: %w", o.Name, api.ErrConflict)
		}
		return r, nil
	})
	return token, r, err
}

func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Verify returns the record of a token. It fails with ErrUnauthenticated if the token is unknown, revoked
// or expired.
func (s *Store) Verify(token string) (Record, error) {
	rest, _ := strings.CutPrefix(token, Prefix)
	name, _, _ := strings.Cut(rest, ".")
	r, ok := s.table.Get(name)
	if !ok || subtle.ConstantTimeCompare([]byte(r.Hash), []byte(hash(token))) != 1 {
		return Record{}, fmt.Errorf("operator token is unknown or revoked: %w", api.ErrUnauthenticated)
	}
	return r, s.Good(r)
}

// Good returns ErrUnauthenticated once the token of a record is revoked or expired.
func (s *Store) Good(r Record) error {
	if now, ok := s.table.Get(r.Name); !ok || now.Hash != r.Hash {
		return fmt.Errorf("operator token %s is revoked: %w", r.Name, api.ErrUnauthenticated)
	}
	if !s.now().Before(r.Expires) {
		return fmt.Errorf("operator token %s has expired: %w", r.Name, api.ErrUnauthenticated)
	}
	return nil
}

// Left returns how long the named token of a user lasts, 0 if it has ended, and whether the user is a
// holder of named tokens.
func (s *Store) Left(user string) (left time.Duration, named bool) {
	name, named := strings.CutPrefix(user, userPrefix)
	if !named {
		return 0, false
	}
	r, _ := s.table.Get(name) // the zero record has ended
	return max(0, r.Expires.Sub(s.now())), true
}

// List returns the tokens that have not expired, sorted by name.
func (s *Store) List() (open []Record) {
	for _, r := range s.table.All() {
		if s.now().Before(r.Expires) {
			open = append(open, r)
		}
	}
	return open
}

// Revoke invalidates a token at once and for good. It fails with ErrNotFound if the token does not exist.
func (s *Store) Revoke(ctx context.Context, name string) (revoked Record, err error) {
	err = s.table.Update(ctx, name, func(old Record, ok bool) (Record, error) {
		if !ok {
			return old, fmt.Errorf("revoke operator token %.64q: %w", name, api.ErrNotFound)
		}
		revoked = old
		return old, docs.ErrDelete
	})
	return revoked, err
}
