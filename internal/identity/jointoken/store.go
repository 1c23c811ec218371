package jointoken

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/store"
)

// Kind is the kind of token documents in a store.
const Kind = "join_token"

const (
	MaxUses    = 1000
	MaxTTL     = 30 * 24 * time.Hour
	DefaultTTL = time.Hour
	maxTokens  = 10000
	maxOwn     = 5000 // of one tenant
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "open join tokens", Total: maxTokens, Share: []int{maxOwn}, Per: "tenant",
	Beyond: "409 until some are revoked, used or expired",
	Attack: "TestJoinTokensOfOneTenantLeaveRoomForOthers",
})

// Order describes a new token. Zero Uses means one, a zero TTL means DefaultTTL.
type Order struct {
	Scope   Scope
	Cluster api.ClusterID // ForNode: required; ForCluster: the only name allowed, if set
	Uses    int
	TTL     time.Duration
	Tenant  api.Tenant // the owner of the machine that joins
	Open    *bool      // ForCluster: whether it may run the services of all tenants; nil: true if the installation owns it
	By      string     // the user who ordered it
	Note    string
}

// Record is the stored part of a token, without its secret.
type Record struct {
	ID      string            `json:"id"`
	Hash    string            `json:"hash"`
	Scope   Scope             `json:"scope"`
	Cluster api.ClusterID     `json:"cluster,omitempty"`
	Uses    int               `json:"uses"`
	Holders map[string]string `json:"holders,omitempty"` // name of the machine by the fingerprint of its key; "": retired
	Expires time.Time         `json:"expires"`
	Created time.Time         `json:"created"`
	Tenant  api.Tenant        `json:"tenant,omitempty"`
	Open    *bool             `json:"open,omitempty"`
	By      string            `json:"by,omitempty"`
	Note    string            `json:"note,omitempty"`
}

func (r Record) Left() int { return r.Uses - len(r.Holders) }

// Public returns the token as the REST APIs show it.
func (r Record) Public() api.JoinToken {
	return api.JoinToken{ID: r.ID, Kind: string(r.Scope), Cluster: r.Cluster, Tenant: r.Tenant, Uses: r.Left(), Expires: r.Expires}
}

// Claim is a request to redeem a token.
type Claim struct {
	Secret  []byte
	Scope   Scope
	Cluster api.ClusterID // ForNode: the cluster that redeems; ForCluster: the requested name
	Key     string        // ca.Fingerprint of the certificate request
	Name    string        // the requested name; empty: the name bound to Key, or Default
	Default string        // ForNode: the name if none is requested or bound
}

// Store makes and redeems tokens. It is safe for concurrent use.
type Store struct {
	url   string
	ca    func() [sha256.Size]byte
	now   func() time.Time
	table *docs.Table[Record]
}

// NewStore returns the token store of the server at url whose newest root certificate has the hash
// that ca returns, with the tokens among loaded.
func NewStore(st store.Store, loaded []store.Doc, url string, ca func() [sha256.Size]byte, now func() time.Time) (*Store, error) {
	d := &Store{url: url, ca: ca, now: now, table: docs.New[Record](Kind, st)}
	return d, d.table.Load(loaded)
}

// Create makes a token. Only the returned token has the secret.
func (d *Store) Create(ctx context.Context, o Order) (Token, Record, error) {
	o.Uses = cmp.Or(o.Uses, 1)
	o.TTL = cmp.Or(o.TTL, DefaultTTL)
	if o.Scope != ForCluster && o.Scope != ForNode {
		return Token{}, Record{}, fmt.Errorf("join token of scope %q, want %q or %q: %w", o.Scope, ForCluster, ForNode, api.ErrInvalid)
	}
	if o.Uses < 1 || o.Uses > MaxUses || o.TTL < time.Second || o.TTL > MaxTTL {
		return Token{}, Record{}, fmt.Errorf("join token for %d uses within %s, want 1 to %d uses and 1s to %s: %w",
			o.Uses, o.TTL, MaxUses, MaxTTL, api.ErrInvalid)
	}
	if err := d.Sweep(ctx); err != nil {
		return Token{}, Record{}, err
	}
	if d.table.Len() >= maxTokens {
		return Token{}, Record{}, fmt.Errorf("%d join tokens are open, revoke some: %w", maxTokens, api.ErrConflict)
	}
	top, own := o.Tenant.Top(), 0
	for r := range d.table.Each() {
		if r.Tenant.Top() == top {
			own++
		}
	}
	if own >= maxOwn {
		return Token{}, Record{}, fmt.Errorf("tenant %q has %d open join tokens, revoke some: %w", top, maxOwn, api.ErrConflict)
	}
	now := d.now()
	t := Token{
		URL: d.url, CA: d.ca(), Scope: o.Scope, Cluster: o.Cluster,
		Expires: now.Add(o.TTL).Truncate(time.Second), Secret: make([]byte, secretSize),
	}
	_, _ = rand.Read(t.Secret) // never fails
	if err := t.check(); err != nil {
		return Token{}, Record{}, err
	}
	r := Record{
		ID: t.ID(), Hash: hashOf(t.Secret), Scope: o.Scope, Cluster: o.Cluster, Uses: o.Uses,
		Expires: t.Expires, Created: now, Tenant: o.Tenant, Open: o.Open, By: o.By, Note: o.Note,
	}
	err := d.table.Update(ctx, r.ID, func(_ Record, taken bool) (Record, error) {
		if taken {
			return Record{}, fmt.Errorf("join token %s exists, try again: %w", r.ID, api.ErrConflict)
		}
		return r, nil
	})
	return t, r, err
}

// Redeem counts one use, binds it to the claim's key and name, and returns the name. Because
// answers may be lost, a claim with the same key gets the same name again without another use. It
// fails with ErrUnauthenticated if the token is unknown, used up, expired, revoked or retired, and
// with ErrForbidden if the token is for another scope or cluster, or the key has another name.
func (d *Store) Redeem(ctx context.Context, c Claim) (name string, r Record, err error) {
	refused := fmt.Errorf("join token is unknown, used up, expired or revoked; ask for a new one: %w", api.ErrUnauthenticated)
	fresh := c.Name
	if fresh == "" && c.Scope == ForNode {
		fresh = c.Default
	}
	if len(c.Secret) != secretSize || c.Key == "" || fresh == "" {
		return "", Record{}, fmt.Errorf("claim lacks a secret, a key or a name: %w", api.ErrInvalid)
	}
	hash := hashOf(c.Secret)
	err = d.table.Update(ctx, idOf(hash), func(old Record, ok bool) (Record, error) {
		r = old
		same := subtle.ConstantTimeCompare([]byte(old.Hash), []byte(hash)) == 1
		if !ok || !same || !d.now().Before(old.Expires) {
			return old, refused
		}
		if old.Scope != c.Scope || old.Cluster != "" && old.Cluster != c.Cluster {
			return old, fmt.Errorf("join token is for a %s %s, not for %s %s: %w", old.Scope, old.Cluster, c.Scope, c.Cluster, api.ErrForbidden)
		}
		if had, again := old.Holders[c.Key]; again {
			switch {
			case had == "":
				return old, refused
			case c.Name != "" && c.Name != had:
				return old, fmt.Errorf("join token was used for %s %s and not for %s; ask for another token: %w", old.Scope, had, c.Name, api.ErrForbidden)
			}
			name = had
			return old, errAgain
		}
		if old.Left() <= 0 {
			return old, refused
		}
		// Documents are shared: change a copy.
		r.Holders = maps.Clone(old.Holders)
		if r.Holders == nil {
			r.Holders = map[string]string{}
		}
		r.Holders[c.Key], name = fresh, fresh
		return r, nil
	})
	if errors.Is(err, errAgain) {
		err = nil
	}
	if err != nil {
		return "", Record{}, err
	}
	return name, r, nil
}

var errAgain = errors.New("jointoken: redeemed before by the same key")

// RevokeUses invalidates all uses of tokens by the named machine, which was removed. The machine
// needs a new token to join again.
func (d *Store) RevokeUses(ctx context.Context, scope Scope, name string) error {
	for _, r := range d.table.All() {
		if r.Scope != scope || !slices.Contains(slices.Collect(maps.Values(r.Holders)), name) {
			continue
		}
		err := d.table.Update(ctx, r.ID, func(old Record, ok bool) (Record, error) {
			if !ok {
				return old, docs.ErrDelete
			}
			old.Holders = maps.Clone(old.Holders)
			for key, had := range old.Holders {
				if had == name {
					old.Holders[key] = ""
				}
			}
			return old, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// List returns the tokens that have not expired, including used ones.
func (d *Store) List() []Record {
	var open []Record
	for _, r := range d.table.All() {
		if d.now().Before(r.Expires) {
			open = append(open, r)
		}
	}
	return open
}

// Get returns the token with the id, or ErrNotFound.
func (d *Store) Get(id string) (Record, error) {
	r, ok := d.table.Get(id)
	if !ok {
		return Record{}, fmt.Errorf("join token %s: %w", id, api.ErrNotFound)
	}
	return r, nil
}

// Revoke invalidates a token at once. It fails with ErrNotFound if the token does not exist.
func (d *Store) Revoke(ctx context.Context, id string) error {
	return d.table.Update(ctx, id, func(old Record, ok bool) (Record, error) {
		if !ok {
			return old, fmt.Errorf("revoke join token %s: %w", id, api.ErrNotFound)
		}
		return old, docs.ErrDelete
	})
}

func (d *Store) Sweep(ctx context.Context) error {
	now := d.now()
	return d.table.DeleteWhere(ctx, func(r Record) bool { return !now.Before(r.Expires) })
}
