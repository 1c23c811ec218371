package account

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// CreateTenant makes a tenant. The parent of a sub-tenant must exist (ErrNotFound).
func (s *Service) CreateTenant(ctx context.Context, path api.Tenant, title string) (Tenant, error) {
	if !api.ValidTenant(path) || len(title) > 200 {
		return Tenant{}, fmt.Errorf("tenant %q: the path is 1 to 8 parts of lower-case letters, digits and inner hyphens, the title at most 200 bytes: %w", path, api.ErrInvalid)
	}
	if i := strings.LastIndexByte(string(path), '/'); i >= 0 {
		if _, err := s.Tenant(path[:i]); err != nil {
			return Tenant{}, fmt.Errorf("create tenant %s: %w", path, err)
		}
	}
	t := Tenant{Path: path, Title: title, Created: s.opt.Now()}
	err := s.tenants.Update(ctx, string(path), func(_ Tenant, ok bool) (Tenant, error) {
		if ok {
			return t, fmt.Errorf("create tenant %s: it exists: %w", path, api.ErrConflict)
		}
		return t, nil
	})
	return t, err
}

// Tenant returns the tenant with the path, or ErrNotFound.
func (s *Service) Tenant(path api.Tenant) (Tenant, error) {
	t, ok := s.tenants.Get(string(path))
	if !ok {
		return Tenant{}, fmt.Errorf("tenant %q: %w", path, api.ErrNotFound)
	}
	return t, nil
}

// Tenants returns all tenants, sorted by path.
func (s *Service) Tenants() []Tenant { return s.tenants.All() }

// DeleteTenant removes a tenant without users and sub-tenants; else ErrConflict. The caller
// checks whether it still owns applications or clusters.
func (s *Service) DeleteTenant(ctx context.Context, path api.Tenant) error {
	return s.tenants.Update(ctx, string(path), func(t Tenant, ok bool) (Tenant, error) {
		if !ok {
			return t, fmt.Errorf("delete tenant %s: %w", path, api.ErrNotFound)
		}
		below := func(o api.Tenant) bool { return strings.HasPrefix(string(o), string(path)+"/") }
		if slices.ContainsFunc(s.tenants.All(), func(o Tenant) bool { return below(o.Path) }) ||
			slices.ContainsFunc(s.users.All(), func(u userDoc) bool { return u.ID.Tenant() == path }) {
			return t, fmt.Errorf("delete tenant %s: it has users or parts, remove them first: %w", path, api.ErrConflict)
		}
		return t, docs.ErrDelete
	})
}

// CreateUser makes a user without a password; Invite gives the code to set one.
func (s *Service) CreateUser(ctx context.Context, id UserID, email string, roles []rights.Role) (User, error) {
	if err := s.checkUser(id, email, roles); err != nil {
		return User{}, err
	}
	if _, ok := s.users.Get(string(id)); !ok { // DeleteUser may have failed after it deleted the user
		if err := s.deleteCredentials(ctx, id); err != nil {
			return User{}, err
		}
	}
	d := userDoc{User: User{ID: id, Email: email, Roles: slices.Clone(roles), Created: s.opt.Now()}, Mark: s.revoked.Mark()}
	err := s.users.Update(ctx, string(id), func(_ userDoc, ok bool) (userDoc, error) {
		if ok {
			return d, fmt.Errorf("create user %s: the name is taken: %w", id, api.ErrConflict)
		}
		return d, nil
	})
	return d.public(), err
}

func (s *Service) checkUser(id UserID, email string, roles []rights.Role) error {
	if err := id.Check(); err != nil {
		return err
	}
	if t := id.Tenant(); t != rights.System {
		if _, err := s.Tenant(t); err != nil {
			return fmt.Errorf("user %s: %w", id, err)
		}
	}
	for _, r := range roles {
		if !slices.Contains(rights.Roles, r) {
			return fmt.Errorf("user %s: no role is called %q, want some of %v: %w", id, r, rights.Roles, api.ErrInvalid)
		}
	}
	if len(email) > 254 || len(roles) > len(rights.Roles) {
		return fmt.Errorf("user %s: the e-mail address or the list of roles is too long: %w", id, api.ErrInvalid)
	}
	return nil
}

// User returns the user with the id, or ErrNotFound.
func (s *Service) User(id UserID) (User, error) {
	d, ok := s.users.Get(string(id))
	if !ok {
		return User{}, fmt.Errorf("user %s: %w", id, api.ErrNotFound)
	}
	return d.public(), nil
}

// Users returns all users, sorted by id.
func (s *Service) Users() []User {
	var all []User
	for _, d := range s.users.All() {
		all = append(all, d.public())
	}
	return all
}

// UpdateUser changes Email, Roles and Disabled of a user. Changes of other fields are ignored. It
// fails with ErrConflict if no Admin of the system tenant could sign in afterwards.
func (s *Service) UpdateUser(ctx context.Context, id UserID, change func(*User) error) (User, error) {
	var out User
	var less bool // the user lost a right
	err := s.users.Update(ctx, string(id), func(d userDoc, ok bool) (userDoc, error) {
		if !ok {
			return d, fmt.Errorf("update user %s: %w", id, api.ErrNotFound)
		}
		u := d.public()
		if err := change(&u); err != nil {
			return d, err
		}
		if err := s.checkUser(id, u.Email, u.Roles); err != nil {
			return d, err
		}
		next := d
		next.Email, next.Roles, next.Disabled = u.Email, slices.Clone(u.Roles), u.Disabled
		if isAdmin(d) && !isAdmin(next) && s.lastAdmin(id) {
			return d, fmt.Errorf("update user %s: no other user is Admin of the system: %w", id, api.ErrConflict)
		}
		out = next.public()
		less = next.Disabled && !d.Disabled || slices.ContainsFunc(d.Roles, func(r rights.Role) bool { return !slices.Contains(next.Roles, r) })
		return next, nil
	})
	if err != nil {
		return User{}, err
	}
	if less {
		s.revoked.User(string(id))
	}
	if out.Disabled {
		err = s.SignOut(ctx, id)
	}
	return out, err
}

func isAdmin(d userDoc) bool {
	return d.ID.Tenant() == rights.System && slices.Contains(d.Roles, rights.Admin) && !d.Disabled && d.Hash != ""
}

func (s *Service) lastAdmin(id UserID) bool {
	return !slices.ContainsFunc(s.users.All(), func(d userDoc) bool { return d.ID != id && isAdmin(d) })
}

// DeleteUser removes a user with all credentials.
func (s *Service) DeleteUser(ctx context.Context, id UserID) error {
	err := s.users.Update(ctx, string(id), func(d userDoc, ok bool) (userDoc, error) {
		if !ok {
			return d, fmt.Errorf("delete user %s: %w", id, api.ErrNotFound)
		}
		if isAdmin(d) && s.lastAdmin(id) {
			return d, fmt.Errorf("delete user %s: no other user is Admin of the system: %w", id, api.ErrConflict)
		}
		return d, docs.ErrDelete
	})
	if err != nil {
		return err
	}
	s.revoked.User(string(id))
	return s.deleteCredentials(ctx, id)
}

// deleteCredentials deletes all credentials of a deleted user, so that a new user of the same name
// does not inherit them.
func (s *Service) deleteCredentials(ctx context.Context, id UserID) error {
	if err := s.codes.Delete(ctx, string(id)); err != nil {
		return err
	}
	if err := s.pats.DeleteWhere(ctx, func(p patDoc) bool { return p.User == id }); err != nil {
		return err
	}
	return s.SignOut(ctx, id)
}

// SetPassword changes a user's password, given the old one, and ends the user's sessions.
func (s *Service) SetPassword(ctx context.Context, id UserID, old, password string) error {
	if _, err := s.check(ctx, id, old); err != nil {
		return err
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return err
	}
	return s.putHash(ctx, id, hash)
}

func (s *Service) putHash(ctx context.Context, id UserID, hash string) error {
	err := s.users.Update(ctx, string(id), func(d userDoc, ok bool) (userDoc, error) {
		if !ok {
			return d, fmt.Errorf("set the password of user %s: %w", id, api.ErrNotFound)
		}
		d.Hash, d.From, d.Mark = hash, s.opt.Now().Truncate(time.Second), s.revoked.Mark()
		return d, nil
	})
	if err != nil {
		return err
	}
	s.revoked.User(string(id))
	return errors.Join(s.SignOut(ctx, id), s.pats.DeleteWhere(ctx, func(p patDoc) bool { return p.User == id }))
}
