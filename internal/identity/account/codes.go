package account

import (
	"cmp"
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// FirstAdmin is the user that Bootstrap makes.
const FirstAdmin UserID = "admin"

// Code lets a user set a password once.
type Code struct {
	User    UserID
	Text    string // the secret; only its hash is stored
	Expires time.Time
}

// LogValue keeps the secret out of logs.
func (c Code) LogValue() slog.Value {
	return slog.GroupValue(slog.String("user", string(c.User)), slog.Time("expires", c.Expires))
}

type codeDoc struct {
	User    UserID    `json:"user"`
	Hash    string    `json:"hash"`
	Expires time.Time `json:"expires"`
}

// Bootstrap creates the first admin and a sign-in code if no Admin of the system can sign in;
// else it returns an empty code. It may be called at every start: until a code is redeemed, each
// call makes a new one, which replaces the earlier ones.
func (s *Service) Bootstrap(ctx context.Context) (Code, error) {
	if !s.lastAdmin("") {
		return Code{}, nil
	}
	err := s.users.Update(ctx, string(FirstAdmin), func(d userDoc, ok bool) (userDoc, error) {
		if !ok {
			d = userDoc{User: User{ID: FirstAdmin, Created: s.opt.Now()}}
		}
		d.Roles, d.Disabled = []rights.Role{rights.Admin}, false
		return d, nil
	})
	if err != nil {
		return Code{}, fmt.Errorf("make the first admin: %w", err)
	}
	return s.Invite(ctx, FirstAdmin, s.opt.CodeLife)
}

// Invite makes a code with which the user sets a first or a new password, and invalidates the
// user's earlier codes. A zero life is Options.CodeLife.
func (s *Service) Invite(ctx context.Context, id UserID, life time.Duration) (Code, error) {
	if _, err := s.User(id); err != nil {
		return Code{}, err
	}
	life = cmp.Or(life, s.opt.CodeLife)
	if life < 0 || life > 7*24*time.Hour {
		return Code{}, fmt.Errorf("sign-in code for user %s: lifetime %s, want at most 7 days: %w", id, life, api.ErrInvalid)
	}
	c := Code{User: id, Text: newSecret(), Expires: s.opt.Now().Add(life)}
	err := s.codes.Update(ctx, string(id), func(codeDoc, bool) (codeDoc, error) {
		return codeDoc{User: id, Hash: hashSecret(c.Text), Expires: c.Expires}, nil
	})
	return c, err
}

// Redeem consumes a code, sets the password and opens a session. It fails with ErrUnauthenticated
// if the code is wrong, used or expired. If the password is refused, the code stays valid.
func (s *Service) Redeem(ctx context.Context, id UserID, code, password string) (Session, error) {
	check := func(c codeDoc, ok bool) error {
		right := subtle.ConstantTimeCompare([]byte(c.Hash), []byte(hashSecret(code))) == 1
		if !ok || !right || !s.opt.Now().Before(c.Expires) {
			return fmt.Errorf("the code is wrong, used or expired; ask for a new one: %w", api.ErrUnauthenticated)
		}
		return nil
	}
	if err := check(s.codes.Get(string(id))); err != nil {
		return Session{}, err // before the expensive hash of the password
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return Session{}, err
	}
	err = s.codes.Update(ctx, string(id), func(c codeDoc, ok bool) (codeDoc, error) {
		if err := check(c, ok); err != nil {
			return c, err
		}
		return c, docs.ErrDelete
	})
	if err != nil {
		return Session{}, err
	}
	if err := s.putHash(ctx, id, hash); err != nil {
		return Session{}, err
	}
	mark := s.revoked.Mark()
	d, ok := s.users.Get(string(id))
	if !ok || d.Disabled {
		return Session{}, errRefused
	}
	return s.open(ctx, d, mark)
}
