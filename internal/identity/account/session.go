package account

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// Session is the result of a sign-in: a short-lived access token, and a refresh token that can be
// exchanged once for a new Session.
type Session struct {
	User           User      `json:"user"`
	Access         string    `json:"access"`
	AccessExpires  time.Time `json:"access_expires"`
	Refresh        string    `json:"refresh"`
	RefreshExpires time.Time `json:"refresh_expires"`
}

// refreshDoc is the family of a session's refresh tokens. Only the newest is valid. Another one
// was used before, perhaps by a thief, and ends the session. A token is "<family>.<secret>".
type refreshDoc struct {
	Family  string    `json:"family"`
	User    UserID    `json:"user"`
	Hash    string    `json:"hash"`
	Expires time.Time `json:"expires"`
	Ends    time.Time `json:"ends"`
}

var errRefused = fmt.Errorf("the name or the password is wrong: %w", api.ErrUnauthenticated)

// Login opens a session. It fails with ErrUnauthenticated, after the same time, if the user does
// not exist or is disabled, or if the password is wrong.
func (s *Service) Login(ctx context.Context, id UserID, password string) (Session, error) {
	mark := s.revoked.Mark() // before the user is read: see Authenticated.Mark
	d, err := s.check(ctx, id, password)
	if err != nil {
		return Session{}, err
	}
	return s.open(ctx, d, mark)
}

func (s *Service) check(ctx context.Context, id UserID, password string) (userDoc, error) {
	d, _ := s.users.Get(string(id)) // an unknown user has an empty hash, which no password matches
	ok, err := s.hasher.matches(ctx, d.Hash, password)
	if err != nil {
		return userDoc{}, err
	}
	if !ok || d.Disabled {
		from := originOf(ctx)
		s.refused.Warn(from.path, "user", id, "from", from.path[len(from.path)-1])
		return userDoc{}, errRefused
	}
	return d, nil
}

// maxSessions bounds the sessions of one user. A further one ends the least recently used.
const maxSessions = 100

// open opens a session of the user, who was d when the password was checked. It fails with
// errRefused if the user was removed or disabled since, or the password changed.
func (s *Service) open(ctx context.Context, d userDoc, mark int64) (Session, error) {
	now := s.opt.Now()
	family, secret := newSecret(), newSecret()
	r := refreshDoc{
		Family: family, User: d.ID, Hash: hashSecret(secret),
		Expires: now.Add(s.opt.RefreshLife), Ends: now.Add(s.opt.SessionLife),
	}
	err := s.refresh.Update(ctx, family, func(refreshDoc, bool) (refreshDoc, error) {
		// SignOut ends the session after a later change.
		if is, ok := s.users.Get(string(d.ID)); !ok || is.Disabled || is.Hash != d.Hash {
			return refreshDoc{}, errRefused
		}
		return r, nil
	})
	if err != nil {
		return Session{}, err
	}
	if err := s.endOldest(ctx, d.ID); err != nil {
		return Session{}, err
	}
	return s.session(d, r, secret, mark)
}

// endOldest ends the sessions of the user beyond maxSessions.
func (s *Service) endOldest(ctx context.Context, id UserID) error {
	var own []refreshDoc
	for r := range s.refresh.Each() {
		if r.User == id {
			own = append(own, r)
		}
	}
	slices.SortFunc(own, func(a, b refreshDoc) int { return a.Expires.Compare(b.Expires) })
	for _, r := range own[:max(0, len(own)-maxSessions)] {
		if err := s.refresh.Delete(ctx, r.Family); err != nil {
			return err
		}
	}
	return nil
}

// session signs an access token for the session. mark is from before d was read.
func (s *Service) session(d userDoc, r refreshDoc, secret string, mark int64) (Session, error) {
	access, c, err := s.signer.Sign(jwt.Claims{
		Subject: string(d.ID), Tenant: d.ID.Tenant(), Roles: d.Roles, Use: jwt.UseAccess, Mark: mark,
	}, []string{s.opt.Audience}, s.opt.AccessLife)
	if err != nil {
		return Session{}, err
	}
	return Session{
		User: d.public(), Access: access, AccessExpires: c.Expires,
		Refresh: r.Family + "." + secret, RefreshExpires: r.Expires,
	}, nil
}

// Refresh exchanges a refresh token for new tokens with the user's current roles. A token that was
// used before ends the session. An invalid token is ErrUnauthenticated.
func (s *Service) Refresh(ctx context.Context, token string) (Session, error) {
	refused := fmt.Errorf("the session has ended, sign in again: %w", api.ErrUnauthenticated)
	family, secret, ok := strings.Cut(token, ".")
	if !ok || len(token) > 64 {
		return Session{}, refused
	}
	next, mark := newSecret(), s.revoked.Mark()
	var r refreshDoc
	var user userDoc
	var reused bool
	err := s.refresh.Update(ctx, family, func(old refreshDoc, ok bool) (refreshDoc, error) {
		if !ok {
			return old, refused
		}
		now := s.opt.Now()
		var known bool
		user, known = s.users.Get(string(old.User))
		right := subtle.ConstantTimeCompare([]byte(old.Hash), []byte(hashSecret(secret))) == 1
		if reused = !right; !right || !known || user.Disabled || !now.Before(old.Expires) {
			return old, docs.ErrDelete
		}
		r = old
		r.Hash, r.Expires = hashSecret(next), now.Add(s.opt.RefreshLife)
		if r.Expires.After(r.Ends) {
			r.Expires = r.Ends
		}
		return r, nil
	})
	if err != nil {
		return Session{}, err
	}
	if r.Family == "" {
		if reused {
			s.opt.Log.Warn("refresh token used twice, session ended", "user", string(user.ID))
		}
		return Session{}, refused
	}
	return s.session(user, r, next, mark)
}

// SignOut ends all sessions of the user. Access tokens stay valid until they expire.
func (s *Service) SignOut(ctx context.Context, id UserID) error {
	return s.refresh.DeleteWhere(ctx, func(r refreshDoc) bool { return r.User == id })
}

// End ends the session of a refresh token. It returns nil if the session has already ended.
func (s *Service) End(ctx context.Context, token string) error {
	family, secret, _ := strings.Cut(token, ".")
	return s.refresh.Update(ctx, family, func(old refreshDoc, ok bool) (refreshDoc, error) {
		if ok && subtle.ConstantTimeCompare([]byte(old.Hash), []byte(hashSecret(secret))) != 1 {
			return old, fmt.Errorf("end a session: %w", api.ErrUnauthenticated)
		}
		return old, docs.ErrDelete
	})
}

// Authenticated is the holder of a token.
type Authenticated struct {
	rights.Principal
	Expires time.Time // of the token
	// Mark is from before the user and the token were looked up. Delegated tokens get this mark,
	// so that a revocation after the look-up invalidates them too.
	Mark int64
}

// Authenticate returns the holder of an access token or personal token, with the roles that both
// the token and the user have now. It fails with ErrUnauthenticated if the token is invalid, and
// with ErrForbidden if it is for another use.
func (s *Service) Authenticate(bearer string) (Authenticated, error) {
	mark := s.revoked.Mark()
	c, err := s.verifier.Verify(bearer, jwt.UseAccess)
	if err != nil {
		return Authenticated{}, err
	}
	d, ok := s.users.Get(c.Subject)
	if !ok || d.Disabled || c.Issued.Before(d.Created.Truncate(time.Second)) {
		return Authenticated{}, fmt.Errorf("token of %s: the user was deleted or disabled: %w", c.Subject, api.ErrUnauthenticated)
	}
	if c.PAT != "" {
		p, ok := s.pats.Get(c.PAT)
		if !ok || p.User != d.ID || subtle.ConstantTimeCompare([]byte(p.Hash), []byte(hashSecret(bearer))) != 1 {
			return Authenticated{}, fmt.Errorf("personal token of %s is revoked: %w", c.Subject, api.ErrUnauthenticated)
		}
	}
	if c.Issued.Before(d.From) || c.Mark != 0 && c.Mark <= d.Mark {
		return Authenticated{}, fmt.Errorf("token of %s is older than the password: %w", c.Subject, api.ErrUnauthenticated)
	}
	p := c.Principal()
	p.Tenant, p.Roles = d.ID.Tenant(), nil
	for _, r := range c.Roles {
		if slices.Contains(d.Roles, r) {
			p.Roles = append(p.Roles, r)
		}
	}
	return Authenticated{Principal: p, Expires: c.Expires, Mark: mark}, nil
}

// Recheck returns nil if the token is valid and its holder still has all roles of who, the result of
// an earlier Authenticate. Else it returns ErrUnauthenticated, which ends the requests that were
// opened with the token; they may be repeated with the remaining roles.
func (s *Service) Recheck(bearer string, who Authenticated) error {
	now, err := s.Authenticate(bearer)
	if err != nil {
		return err
	}
	for _, r := range who.Roles {
		if !now.Has(r) {
			return fmt.Errorf("token of %s: the user no longer has the role %s: %w", who.User, r, api.ErrUnauthenticated)
		}
	}
	return nil
}

// Sweep removes expired sessions, personal tokens and codes.
func (s *Service) Sweep(ctx context.Context) error {
	now := s.opt.Now()
	return errors.Join(
		s.refresh.DeleteWhere(ctx, func(r refreshDoc) bool { return !now.Before(r.Expires) }),
		s.pats.DeleteWhere(ctx, func(p patDoc) bool { return !now.Before(p.Expires) }),
		s.codes.DeleteWhere(ctx, func(c codeDoc) bool { return !now.Before(c.Expires) }),
	)
}

// Delegate signs a token with which the root sends one request, the object, to the machine
// audience on behalf of who. The token is valid once and only at that machine. It expires after
// jwt.DelegatedLife, or earlier with the token of who.
func (s *Service) Delegate(who Authenticated, audience, object string) (string, error) {
	text, _, err := s.delegate(who, audience, jwt.Claims{Use: jwt.UseCall, Object: object})
	return text, err
}

// Exchange signs a token with which who uses the API of the machine audience directly. It expires
// as in Delegate.
func (s *Service) Exchange(who Authenticated, audience string) (text string, expires time.Time, err error) {
	text, c, err := s.delegate(who, audience, jwt.Claims{Use: jwt.UseAccess})
	return text, c.Expires, err
}

func (s *Service) delegate(who Authenticated, audience string, c jwt.Claims) (string, jwt.Claims, error) {
	if audience == "" || audience == s.opt.Audience {
		return "", c, fmt.Errorf("delegate for %s to %q: the audience must be another machine: %w", who.User, audience, api.ErrInvalid)
	}
	life := min(jwt.DelegatedLife, who.Expires.Sub(s.opt.Now()))
	if who.User == "" || life <= 0 {
		return "", c, fmt.Errorf("delegate to %s: the token of %q has expired: %w", audience, who.User, api.ErrUnauthenticated)
	}
	c.Subject, c.Tenant, c.Roles, c.PAT = who.User, who.Tenant, who.Roles, who.PAT
	c.Mark = who.Mark
	return s.signer.Sign(c, []string{audience}, life)
}
