package httpapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/rest"
)

type invitation struct {
	User    account.UserID `json:"user"`
	Code    string         `json:"code" doc:"The one-use sign-in code, shown once."`
	Expires time.Time      `json:"expires"`
}

func (a *API) registerTenants() {
	tenants := rest.Tag("tenants")
	answer(a, tenants.Get("/v1/tenants", "List tenants"), rights.TenantsRead,
		func(_ context.Context, p rights.Principal, _ *rest.None) (api.Page[account.Tenant], error) {
			return api.Page[account.Tenant]{Items: visible(p, rights.TenantsRead, a.opt.Accounts.Tenants(),
				func(t account.Tenant) api.Tenant { return t.Path })}, nil
		})
	answer(a, tenants.Create("/v1/tenants", "Create tenant", 404, 409).
		About("Creates a tenant below the user's own. Only Admins of the system create tenants at the top."), rights.TenantsWrite, a.createTenant)
	answer(a, tenants.Get("/v1/tenants/{id}", "Get tenant", 404), rights.TenantsRead,
		func(_ context.Context, p rights.Principal, in *pathIn) (account.Tenant, error) {
			path := api.Tenant(api.FromPath(in.ID))
			if err := rights.Allowed(p, rights.TenantsRead, path); err != nil {
				return account.Tenant{}, err
			}
			return a.opt.Accounts.Tenant(path)
		})
	act(a, tenants.Delete("/v1/tenants/{id}", "Delete tenant", 404, 409).
		About("The tenant must have no users, tenants below it, applications, volumes, snapshots, configs, secrets, custom kinds, addons, webhooks, join tokens that can be used, or clusters."), rights.TenantsWrite, a.deleteTenant)
}

// pathIn is the input for an object without a revision.
type pathIn struct {
	ID string `path:"id" doc:"The id, with ~ for /."`
}

func (a *API) createTenant(ctx context.Context, p rights.Principal, in *struct {
	Body struct {
		Path  api.Tenant `json:"path"`
		Title string     `json:"title,omitempty"`
	}
},
) (account.Tenant, error) {
	path := in.Body.Path
	if path == p.Tenant {
		return account.Tenant{}, fmt.Errorf("create tenant %s: it exists: %w", path, api.ErrConflict)
	}
	if err := rights.Allowed(p, rights.TenantsWrite, path); err != nil {
		return account.Tenant{}, err
	}
	records.Of(ctx, tenantRecord(path))
	return a.opt.Accounts.CreateTenant(ctx, path, in.Body.Title)
}

func (a *API) deleteTenant(ctx context.Context, p rights.Principal, in *pathIn) error {
	path := api.Tenant(api.FromPath(in.ID))
	if err := rights.Allowed(p, rights.TenantsWrite, path); err != nil {
		return err
	}
	records.Of(ctx, tenantRecord(path))
	if path == p.Tenant {
		return fmt.Errorf("delete tenant %s: it is your own: %w", path, api.ErrForbidden)
	}
	a.tenants.Lock()
	defer a.tenants.Unlock()
	// A later tenant of the same path would get all of this.
	owned := map[string]int{
		"webhook": count(a.webhooks.All(), func(w api.Webhook) bool { return w.Tenant == path }),
		"join token": count(a.opt.Tokens.List(), func(r jointoken.Record) bool {
			return r.Tenant == path && r.Left() > 0 && r.Expires.After(a.opt.Now())
		}),
	}
	err := a.owner.Read(ctx, func() {
		owned["application"], owned["volume"], owned["snapshot"] = len(a.core.Apps(path)), len(a.core.Volumes(path)), len(a.core.Snapshots(path))
		owned["config"], owned["secret"] = len(a.core.AllValues(api.KindConfig, path)), len(a.core.AllValues(api.KindSecret, path))
		owned["custom kind"], owned["addon"] = len(a.core.CustomKinds(path)), len(a.core.Addons(path))
		owned["cluster"] = count(a.core.Clusters(), func(c api.Cluster) bool { return c.Tenant == path })
	})
	if err != nil {
		return err
	}
	var left []string
	for _, what := range slices.Sorted(maps.Keys(owned)) {
		if n := owned[what]; n > 0 {
			left = append(left, fmt.Sprintf("%s (%d)", what, n))
		}
	}
	if left != nil {
		return fmt.Errorf("delete tenant %s: it still has %s; remove them first: %w", path, strings.Join(left, ", "), api.ErrConflict)
	}
	return a.opt.Accounts.DeleteTenant(ctx, path)
}

// tenantRecord returns a record of a tenant, for the readers of the tenant above it. A later tenant of the same
// path must not have it.
func tenantRecord(path api.Tenant) records.Record { return records.Object("tenant", string(path)) }

func rolesText(roles []rights.Role) string {
	if len(roles) == 0 {
		return "no roles"
	}
	return "roles " + strings.Trim(fmt.Sprint(roles), "[]")
}

func count[T any](all []T, is func(T) bool) (n int) {
	for _, o := range all {
		if is(o) {
			n++
		}
	}
	return n
}

func (a *API) registerUsers() {
	users := rest.Tag("users")
	answer(a, users.Get("/v1/users", "List users"), rights.UsersRead,
		func(_ context.Context, p rights.Principal, _ *rest.None) (api.Page[account.User], error) {
			return api.Page[account.User]{Items: visible(p, rights.UsersRead, a.opt.Accounts.Users(),
				func(u account.User) api.Tenant { return u.ID.Tenant() })}, nil
		})
	answer(a, users.Create("/v1/users", "Create user", 404, 409).
		About("Creates a user without a password, and the one-use code to set it with."), rights.UsersWrite, a.createUser)
	answer(a, users.Get("/v1/users/{id}", "Get user", 404), rights.UsersRead,
		func(_ context.Context, p rights.Principal, in *pathIn) (account.User, error) {
			return a.user(p, rights.UsersRead, in.ID)
		})
	answer(a, users.Create("/v1/users/{id}/invite", "Invite user", 404).
		About("Creates a new one-use code, for example for a forgotten password. An earlier code becomes invalid."), rights.UsersWrite,
		func(ctx context.Context, p rights.Principal, in *pathIn) (invitation, error) {
			// Whoever sets the password of a user gets the rights of that user.
			u, err := a.managed(p, in.ID)
			if err != nil {
				return invitation{}, err
			}
			return a.invite(ctx, u.ID)
		})
	answer(a, users.Put("/v1/users/{id}", "Change user", 404, 409), rights.UsersWrite, a.changeUser)
	act(a, users.Delete("/v1/users/{id}", "Delete user", 404, 409), rights.UsersWrite,
		func(ctx context.Context, p rights.Principal, in *pathIn) error {
			u, err := a.managed(p, in.ID)
			if err != nil {
				return err
			}
			return a.opt.Accounts.DeleteUser(ctx, u.ID)
		})
}

// user returns a user on whom the principal may do the action.
func (a *API) user(p rights.Principal, action rights.Action, segment string) (account.User, error) {
	id := account.UserID(api.FromPath(segment))
	if err := rights.Allowed(p, action, id.Tenant()); err != nil {
		return account.User{}, err
	}
	return a.opt.Accounts.User(id)
}

// managed returns a user that the principal may change: the principal could grant all the user's
// roles and the additional ones.
func (a *API) managed(p rights.Principal, segment string, additional ...rights.Role) (account.User, error) {
	u, err := a.user(p, rights.UsersWrite, segment)
	if err != nil {
		return u, err
	}
	if p.PAT != "" && p.User == string(u.ID) {
		// With a password the token would outlive its end.
		return u, fmt.Errorf("change user %s: a personal token cannot change its own user; sign in: %w", u.ID, api.ErrForbidden)
	}
	return u, rights.MayGrant(p, append(u.Roles, additional...), u.ID.Tenant())
}

func (a *API) invite(ctx context.Context, id account.UserID) (invitation, error) {
	c, err := a.opt.Accounts.Invite(ctx, id, 24*time.Hour)
	return invitation{User: c.User, Code: c.Text, Expires: c.Expires}, err
}

func (a *API) createUser(ctx context.Context, p rights.Principal, in *struct {
	Body struct {
		ID    account.UserID `json:"id" doc:"<tenant>/<name>"`
		Email string         `json:"email,omitempty"`
		Roles []rights.Role  `json:"roles"`
	}
},
) (invitation, error) {
	id := in.Body.ID
	records.Of(ctx, records.Object("user", string(id))).Text = rolesText(in.Body.Roles)
	if err := rights.MayGrant(p, in.Body.Roles, id.Tenant()); err != nil {
		return invitation{}, err
	}
	if _, err := a.opt.Accounts.CreateUser(ctx, id, in.Body.Email, in.Body.Roles); err != nil {
		return invitation{}, err
	}
	return a.invite(ctx, id)
}

func (a *API) changeUser(ctx context.Context, p rights.Principal, in *struct {
	ID   string `path:"id" doc:"The id, with ~ for /."`
	Body struct {
		Email    string        `json:"email,omitempty"`
		Roles    []rights.Role `json:"roles"`
		Disabled bool          `json:"disabled,omitempty"`
	}
},
) (account.User, error) {
	u, err := a.managed(p, in.ID, in.Body.Roles...)
	if err != nil {
		return u, err
	}
	text := rolesText(in.Body.Roles)
	if in.Body.Disabled {
		text += ", disabled"
	}
	records.Of(ctx, records.Object("user", string(u.ID))).Text = text
	return a.opt.Accounts.UpdateUser(ctx, u.ID, func(u *account.User) error {
		u.Email, u.Roles, u.Disabled = in.Body.Email, in.Body.Roles, in.Body.Disabled
		return nil
	})
}
