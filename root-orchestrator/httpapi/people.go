package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// invitation answers the making of a user and of a new code.
type invitation struct {
	User    account.UserID `json:"user"`
	Code    string         `json:"code" doc:"The one-use sign-in code, shown once."`
	Expires time.Time      `json:"expires"`
}

func (a *API) registerPeople() {
	a.registerTenants()
	a.registerUsers()
}

func (a *API) registerTenants() {
	tags := []string{"tenants"}
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/tenants", Summary: "List tenants", Tags: tags,
	}, rights.TenantsRead, func(_ context.Context, p rights.Principal, _ *struct{}) (*struct{ Body api.Page[account.Tenant] }, error) {
		out := &struct{ Body api.Page[account.Tenant] }{}
		out.Body.Items = []account.Tenant{}
		for _, t := range a.opt.Accounts.Tenants() {
			if rights.Allowed(p, rights.TenantsRead, t.Path) == nil {
				out.Body.Items = append(out.Body.Items, t)
			}
		}
		return out, nil
	})
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/tenants", Summary: "Create tenant", Tags: tags, Errors: []int{404, 409},
		DefaultStatus: http.StatusCreated,
		Description:   "A tenant below one's own; at the top, an Admin of the system's alone.",
	}, rights.TenantsWrite, func(ctx context.Context, p rights.Principal, in *struct {
		Body struct {
			Path  api.Tenant `json:"path"`
			Title string     `json:"title,omitempty"`
		}
	},
	) (*struct{ Body account.Tenant }, error) {
		path := in.Body.Path
		if path == p.Tenant {
			return nil, fmt.Errorf("create tenant %s: it exists: %w", path, api.ErrConflict)
		}
		if err := rights.Allowed(p, rights.TenantsWrite, path); err != nil {
			return nil, err
		}
		t, err := a.opt.Accounts.CreateTenant(ctx, path, in.Body.Title)
		return &struct{ Body account.Tenant }{t}, err
	})
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/tenants/{id}", Summary: "Get tenant", Tags: tags, Errors: []int{404},
	}, rights.TenantsRead, func(_ context.Context, p rights.Principal, in *pathIn) (*struct{ Body account.Tenant }, error) {
		path := api.Tenant(api.FromPath(in.ID))
		if err := rights.Allowed(p, rights.TenantsRead, path); err != nil {
			return nil, err
		}
		t, err := a.opt.Accounts.Tenant(path)
		return &struct{ Body account.Tenant }{t}, err
	})
	handle(a, huma.Operation{
		Method: http.MethodDelete, Path: "/v1/tenants/{id}", Summary: "Delete tenant", Tags: tags, Errors: []int{404, 409},
		DefaultStatus: http.StatusNoContent, Description: "One without users, parts, applications and clusters.",
	}, rights.TenantsWrite, a.deleteTenant)
}

// pathIn names an object that has no revision.
type pathIn struct {
	ID string `path:"id" doc:"The id, with ~ for /."`
}

func (a *API) deleteTenant(ctx context.Context, p rights.Principal, in *pathIn) (*nothing, error) {
	path := api.Tenant(api.FromPath(in.ID))
	if err := rights.Allowed(p, rights.TenantsWrite, path); err != nil {
		return nil, err
	}
	if path == p.Tenant {
		return nil, fmt.Errorf("delete tenant %s: it is your own: %w", path, api.ErrForbidden)
	}
	owns := false
	err := a.owner.Read(ctx, func() {
		owns = len(a.core.Apps(path)) > 0
		for _, c := range a.core.Clusters() {
			owns = owns || c.Tenant == path
		}
	})
	if err != nil {
		return nil, err
	}
	if owns {
		return nil, fmt.Errorf("delete tenant %s: it has applications or clusters, remove them first: %w", path, api.ErrConflict)
	}
	return nil, a.opt.Accounts.DeleteTenant(ctx, path)
}

func (a *API) registerUsers() {
	tags := []string{"users"}
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/users", Summary: "List users", Tags: tags,
	}, rights.UsersRead, func(_ context.Context, p rights.Principal, _ *struct{}) (*struct{ Body api.Page[account.User] }, error) {
		out := &struct{ Body api.Page[account.User] }{}
		out.Body.Items = []account.User{}
		for _, u := range a.opt.Accounts.Users() {
			if rights.Allowed(p, rights.UsersRead, u.ID.Tenant()) == nil {
				out.Body.Items = append(out.Body.Items, u)
			}
		}
		return out, nil
	})
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/users", Summary: "Create user", Tags: tags, Errors: []int{404, 409},
		DefaultStatus: http.StatusCreated,
		Description:   "Makes a user without a password, and the one-use code to set it with.",
	}, rights.UsersWrite, a.createUser)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/users/{id}", Summary: "Get user", Tags: tags, Errors: []int{404},
	}, rights.UsersRead, func(_ context.Context, p rights.Principal, in *pathIn) (*struct{ Body account.User }, error) {
		u, err := a.user(p, rights.UsersRead, in.ID)
		return &struct{ Body account.User }{u}, err
	})
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/users/{id}/invite", Summary: "Invite user", Tags: tags, Errors: []int{404},
		DefaultStatus: http.StatusCreated,
		Description:   "Makes a new one-use code, for a forgotten password say; an earlier one does not count any more.",
	}, rights.UsersWrite, func(ctx context.Context, p rights.Principal, in *pathIn) (*struct{ Body invitation }, error) {
		u, err := a.user(p, rights.UsersWrite, in.ID)
		if err != nil {
			return nil, err
		}
		// A user who sets the password of another gets the rights of that one.
		if err := rights.MayGrant(p, u.Roles, u.ID.Tenant()); err != nil {
			return nil, err
		}
		return a.invite(ctx, u.ID)
	})
	handle(a, huma.Operation{
		Method: http.MethodPut, Path: "/v1/users/{id}", Summary: "Change user", Tags: tags, Errors: []int{404, 409},
	}, rights.UsersWrite, a.changeUser)
	handle(a, huma.Operation{
		Method: http.MethodDelete, Path: "/v1/users/{id}", Summary: "Delete user", Tags: tags, Errors: []int{404, 409},
		DefaultStatus: http.StatusNoContent,
	}, rights.UsersWrite, func(ctx context.Context, p rights.Principal, in *pathIn) (*nothing, error) {
		u, err := a.user(p, rights.UsersWrite, in.ID)
		if err != nil {
			return nil, err
		}
		if err := rights.MayGrant(p, u.Roles, u.ID.Tenant()); err != nil {
			return nil, err
		}
		return nil, a.opt.Accounts.DeleteUser(ctx, u.ID)
	})
}

// user is a user that the principal may do the action on.
func (a *API) user(p rights.Principal, action rights.Action, segment string) (account.User, error) {
	id := account.UserID(api.FromPath(segment))
	if err := rights.Allowed(p, action, id.Tenant()); err != nil {
		return account.User{}, err
	}
	return a.opt.Accounts.User(id)
}

func (a *API) invite(ctx context.Context, id account.UserID) (*struct{ Body invitation }, error) {
	c, err := a.opt.Accounts.Invite(ctx, id, 24*time.Hour)
	return &struct{ Body invitation }{invitation{User: c.User, Code: c.Text, Expires: c.Expires}}, err
}

func (a *API) createUser(ctx context.Context, p rights.Principal, in *struct {
	Body struct {
		ID    account.UserID `json:"id" doc:"<tenant>/<name>"`
		Email string         `json:"email,omitempty"`
		Roles []rights.Role  `json:"roles"`
	}
},
) (*struct{ Body invitation }, error) {
	id := in.Body.ID
	if err := rights.MayGrant(p, in.Body.Roles, id.Tenant()); err != nil {
		return nil, err
	}
	if _, err := a.opt.Accounts.CreateUser(ctx, id, in.Body.Email, in.Body.Roles); err != nil {
		return nil, err
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
) (*struct{ Body account.User }, error) {
	u, err := a.user(p, rights.UsersWrite, in.ID)
	if err != nil {
		return nil, err
	}
	if err := rights.MayGrant(p, append(u.Roles, in.Body.Roles...), u.ID.Tenant()); err != nil {
		return nil, err
	}
	u, err = a.opt.Accounts.UpdateUser(ctx, u.ID, func(u *account.User) error {
		u.Email, u.Roles, u.Disabled = in.Body.Email, in.Body.Roles, in.Body.Disabled
		return nil
	})
	return &struct{ Body account.User }{u}, err
}
