package account

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

const (
	MaxPATLife = 366 * 24 * time.Hour
	maxPATs    = 100 // of one user
)

// PAT describes a personal token, which has some or all of its user's roles. It has no secret.
type PAT struct {
	ID      string        `json:"id"`
	User    UserID        `json:"user"`
	Name    string        `json:"name"`
	Roles   []rights.Role `json:"roles"`
	Expires time.Time     `json:"expires"`
	Created time.Time     `json:"created"`
}

type patDoc struct {
	PAT
	Hash string `json:"hash"`
}

// CreatePAT makes a personal token with the given roles of the user; none: all of them. text is
// the token; only its hash is stored.
func (s *Service) CreatePAT(ctx context.Context, id UserID, name string, roles []rights.Role, life time.Duration) (text string, pat PAT, err error) {
	u, err := s.User(id)
	if err != nil {
		return "", PAT{}, err
	}
	if len(roles) == 0 {
		roles = u.Roles
	}
	for _, r := range roles {
		if !slices.Contains(u.Roles, r) {
			return "", PAT{}, fmt.Errorf("personal token %q of %s: the user does not have the role %s: %w", name, id, r, api.ErrForbidden)
		}
	}
	if name == "" || len(name) > 100 || life < time.Minute || life > MaxPATLife {
		return "", PAT{}, fmt.Errorf("personal token %q of %s: lifetime %s, want a name of 1 to 100 bytes and a lifetime of 1m to 366 days: %w", name, id, life, api.ErrInvalid)
	}
	if len(s.PATs(id)) >= maxPATs {
		return "", PAT{}, fmt.Errorf("personal token %q of %s: there are %d, revoke some: %w", name, id, maxPATs, api.ErrConflict)
	}
	pat = PAT{ID: newSecret()[:16], User: id, Name: name, Roles: slices.Clone(roles), Created: s.opt.Now()}
	text, c, err := s.signer.Sign(jwt.Claims{
		Subject: string(id), Tenant: id.Tenant(), Roles: roles, PAT: pat.ID, Use: jwt.UseAccess, Mark: s.revoked.Mark(),
	}, []string{s.opt.Audience}, life)
	if err != nil {
		return "", PAT{}, err
	}
	pat.Expires = c.Expires
	err = s.pats.Update(ctx, pat.ID, func(patDoc, bool) (patDoc, error) {
		return patDoc{PAT: pat, Hash: hashSecret(text)}, nil
	})
	return text, pat, err
}

func (s *Service) PATs(id UserID) []PAT {
	var all []PAT
	for _, p := range s.pats.All() {
		if p.User == id {
			all = append(all, p.PAT)
		}
	}
	return all
}

// RevokePAT revokes a personal token of the user at once. It fails with ErrNotFound if the token
// does not exist or belongs to another user.
func (s *Service) RevokePAT(ctx context.Context, id UserID, pat string) error {
	err := s.pats.Update(ctx, pat, func(p patDoc, ok bool) (patDoc, error) {
		if !ok || p.User != id {
			return p, fmt.Errorf("personal token %s of %s: %w", pat, id, api.ErrNotFound)
		}
		return p, docs.ErrDelete
	})
	if err == nil {
		s.revoked.PAT(string(id), pat)
	}
	return err
}
