// Package account manages tenants, users with their roles and passwords, personal tokens, refresh
// tokens and one-use codes. There is no default password: Bootstrap makes the first admin with a
// code that its caller prints once.
//
// The package authenticates users. It does not authorize: its callers check package rights before
// they call it.
//
//	s, err := account.New(account.Options{Store: st, Loaded: loaded, Ring: ring, Issuer: "root", Audience: "treeline"})
//	code, err := s.Bootstrap(ctx)                       // code.Text is shown once
//	session, err := s.Redeem(ctx, code.User, code.Text, newPassword)
//	who, err := s.Authenticate(session.Access)          // Authenticated
package account

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/revoke"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/refusals"
	"github.com/treeline-edge/treeline/internal/store"
)

// The kinds of the service's documents in a store.
const (
	KindTenant  = "tenant"
	KindUser    = "user"
	KindPAT     = "pat"
	KindOTP     = "otp"
	KindRefresh = "refresh"
)

var Kinds = []string{KindTenant, KindUser, KindPAT, KindOTP, KindRefresh}

// UserID is a user's id: "acme/alice", or "admin" in the system tenant.
type UserID string

func (u UserID) Tenant() api.Tenant {
	return api.Tenant(u[:max(strings.LastIndexByte(string(u), '/'), 0)])
}

func (u UserID) Name() string { return string(u[strings.LastIndexByte(string(u), '/')+1:]) }

var userRE = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9._@-]{0,62}[a-zA-Z0-9])?$`)

// Check fails with ErrInvalid if the id is malformed.
func (u UserID) Check() error {
	if t := u.Tenant(); t != rights.System && !api.ValidTenant(t) || !userRE.MatchString(u.Name()) || strings.HasPrefix(string(u), "/") {
		return fmt.Errorf("user %q is not <tenant>/<name>, a name of 1 to 64 letters, digits and inner . _ @ -: %w", u, api.ErrInvalid)
	}
	return nil
}

// Tenant is an organisation, or a part of one.
type Tenant struct {
	Path    api.Tenant `json:"path"`
	Title   string     `json:"title,omitempty"`
	Created time.Time  `json:"created"`
}

// User is a user or robot, without the password.
type User struct {
	ID       UserID        `json:"id"`
	Email    string        `json:"email,omitempty"`
	Roles    []rights.Role `json:"roles"`
	Disabled bool          `json:"disabled,omitempty"`
	Pending  bool          `json:"pending,omitempty"` // has no password yet
	Created  time.Time     `json:"created"`
}

// userDoc is a user as stored.
type userDoc struct {
	User
	Hash string    `json:"hash,omitempty"`
	From time.Time `json:"from,omitzero"`  // access tokens that were issued earlier are invalid
	Mark int64     `json:"mark,omitempty"` // so are those up to this mark; From has whole seconds only
}

func (d userDoc) public() User {
	d.Pending = d.Hash == ""
	d.Roles = slices.Clone(d.Roles)
	return d.User
}

// Options configures the service. The comments give the defaults of zero fields.
type Options struct {
	Store    store.Store
	Loaded   []store.Doc // the documents in the store; other kinds are ignored
	Ring     *jwt.Ring
	Issuer   string
	Audience string // of access tokens

	AccessLife  time.Duration // 10 min
	RefreshLife time.Duration // 7 d since the last use
	SessionLife time.Duration // 30 d since the sign-in
	CodeLife    time.Duration // 10 min

	Cost Cost             // DefaultCost
	Now  func() time.Time // time.Now
	Log  *slog.Logger     // slog.Default
}

// Service has the accounts of one installation. It is safe for concurrent use.
type Service struct {
	opt      Options
	hasher   *hasher
	signer   jwt.Signer
	verifier *jwt.Verifier
	revoked  *revoke.Log
	refused  *refusals.Log // sign-ins

	tenants *docs.Table[Tenant]
	users   *docs.Table[userDoc]
	pats    *docs.Table[patDoc]
	codes   *docs.Table[codeDoc]
	refresh *docs.Table[refreshDoc]
}

// New makes the service with loaded documents.
func New(o Options) (*Service, error) {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.AccessLife, jwt.AccessLife)
	set(&o.RefreshLife, 7*24*time.Hour)
	set(&o.SessionLife, 30*24*time.Hour)
	set(&o.CodeLife, 10*time.Minute)
	if o.Cost == (Cost{}) {
		o.Cost = DefaultCost
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	s := &Service{
		opt: o, hasher: newHasher(o.Cost), revoked: revoke.NewLog(o.Now),
		refused: refusals.New(o.Log, "sign-in refused"),
		signer:  jwt.Signer{Ring: o.Ring, Issuer: o.Issuer, Now: o.Now},
		verifier: jwt.NewVerifier(jwt.VerifierOptions{
			Keys: o.Ring.Key, Issuer: o.Issuer, Audience: o.Audience, Now: o.Now,
		}),
		tenants: docs.New[Tenant](KindTenant, o.Store),
		users:   docs.New[userDoc](KindUser, o.Store),
		pats:    docs.New[patDoc](KindPAT, o.Store),
		codes:   docs.New[codeDoc](KindOTP, o.Store),
		refresh: docs.New[refreshDoc](KindRefresh, o.Store),
	}
	for _, d := range o.Loaded {
		if err := s.Adopt(d); err != nil {
			return nil, fmt.Errorf("load the accounts: %w", err)
		}
	}
	for _, d := range s.users.All() {
		s.revoked.Raise(d.Mark)
	}
	return s, nil
}

// Adopt adds or replaces a stored document, or removes one without Data. It ignores other kinds. After New, it is for a
// copy of the accounts that another process changes; Authenticate is all that a copy is used for.
func (s *Service) Adopt(d store.Doc) error {
	for _, take := range []func(store.Doc) error{s.tenants.Adopt, s.users.Adopt, s.pats.Adopt, s.codes.Adopt, s.refresh.Adopt} {
		if err := take(d); err != nil {
			return err
		}
	}
	return nil
}

// Revocations returns the log of revocations since the service's start: of users that were
// deleted, disabled, lost a role or changed the password, and of personal tokens.
func (s *Service) Revocations() *revoke.Log { return s.revoked }

// hashSecret returns the stored hash of a random secret of 128 bits or more, which needs no
// slow hash.
func hashSecret(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// newSecret returns 130 random bits as 26 letters and digits.
func newSecret() string { return rand.Text() }
