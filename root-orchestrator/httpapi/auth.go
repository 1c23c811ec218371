package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
)

func (a *API) registerAuth() {
	tags := []string{"sign-in"}
	slow := huma.Middlewares{remoteAddress} // for guess
	post := func(path, summary, about string) huma.Operation {
		return huma.Operation{
			Method: http.MethodPost, Path: path, Summary: summary, Description: about, Tags: tags,
			Errors: []int{401, 429}, Middlewares: slow,
		}
	}
	handle(a, post("/v1/auth/login", "Log in", ""), "", func(ctx context.Context, _ rights.Principal, in *struct{ Body api.Login }) (*sessionOut, error) {
		ctx, done, err := a.shares.guess(ctx, in.Body.User)
		if err != nil {
			return nil, err
		}
		s, err := a.opt.Accounts.Login(ctx, account.UserID(in.Body.User), in.Body.Password)
		done(err)
		return sessionOf(s, err)
	})
	handle(a, post("/v1/auth/redeem", "Redeem code", "Turns a one-use sign-in code into a password and a session."), "",
		func(ctx context.Context, _ rights.Principal, in *struct{ Body api.Redeem }) (*sessionOut, error) {
			ctx, done, err := a.shares.guess(ctx, in.Body.User)
			if err != nil {
				return nil, err
			}
			s, err := a.opt.Accounts.Redeem(ctx, account.UserID(in.Body.User), in.Body.Code, in.Body.Password)
			done(err)
			return sessionOf(s, err)
		})
	handle(a, post("/v1/auth/refresh", "Refresh session", "A refresh token counts once; the answer has the next."), "",
		func(ctx context.Context, _ rights.Principal, in *struct{ Body api.Refresh }) (*sessionOut, error) {
			s, err := a.opt.Accounts.Refresh(ctx, in.Body.Refresh)
			return sessionOf(s, err)
		})
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/auth/logout", Summary: "Log out", Tags: tags, DefaultStatus: http.StatusNoContent,
		Description: "Ends the session of the refresh token.",
	}, "", func(ctx context.Context, _ rights.Principal, in *struct{ Body api.Refresh }) (*nothing, error) {
		return nil, a.opt.Accounts.End(ctx, in.Body.Refresh)
	})
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/auth/me", Summary: "Who am I", OperationID: "whoAmI", Tags: tags, Errors: []int{401}, Security: signedIn,
	}, "", func(_ context.Context, p rights.Principal, _ *struct{}) (*struct{ Body rights.Principal }, error) {
		if p.User == "" {
			return nil, problem.New(http.StatusUnauthorized, "no token came along; sign in first")
		}
		return &struct{ Body rights.Principal }{p}, nil
	})
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/auth/streams/{id}", Summary: "Renew stream", Tags: tags, Errors: []int{401, 404}, Security: signedIn,
		Description: "A stream (logs, captures) ends when the token expires that opened it. Its answer has the headers Treeline-Stream and " +
			"Treeline-Stream-Life (seconds); shown here with a fresh token of the same user and the same rights, it goes on until that expires.",
	}, "", a.renewStream)
	a.registerPersonalTokens(tags)
}

type streamLife struct {
	Body struct {
		Life float64 `json:"life_seconds" doc:"For how long the stream goes on."`
	}
}

func (a *API) renewStream(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id" maxLength:"64" doc:"What Treeline-Stream says."`
},
) (*streamLife, error) {
	if p.User == "" {
		return nil, problem.New(http.StatusUnauthorized, "no token came along; sign in first")
	}
	fresh := ctx.Value(principalKey{}).(who)
	out, life := &streamLife{}, max(1, time.Until(fresh.Expires))
	out.Body.Life = life.Seconds()
	return out, a.grants.Renew(in.ID, life, func(was account.Authenticated) (func() error, error) {
		if was.User != p.User {
			return nil, missing("stream", in.ID)
		}
		return func() error { return a.opt.Accounts.Still(fresh.token, was) }, nil
	})
}

type sessionOut struct {
	CacheControl string `header:"Cache-Control"`
	Body         api.Session
}

func sessionOf(s account.Session, err error) (*sessionOut, error) {
	if err != nil {
		return nil, err
	}
	out := &sessionOut{CacheControl: "no-store", Body: api.Session{
		User: string(s.User.ID), Tenant: s.User.ID.Tenant(), Access: s.Access, Expires: s.AccessExpires, Refresh: s.Refresh, Roles: []string{},
	}}
	for _, r := range s.User.Roles {
		out.Body.Roles = append(out.Body.Roles, string(r))
	}
	return out, nil
}

type personalToken struct {
	account.PAT
	Token string `json:"token,omitempty" doc:"The token, shown once."`
}

func (a *API) registerPersonalTokens(tags []string) {
	handle(a, huma.Operation{
		Method: http.MethodPost, Path: "/v1/auth/tokens", Summary: "Create personal token", Tags: tags,
		DefaultStatus: http.StatusCreated, Errors: []int{409},
	}, rights.TokensWrite, func(ctx context.Context, p rights.Principal, in *struct {
		Body struct {
			Name  string        `json:"name" minLength:"1" maxLength:"100"`
			TTL   int           `json:"ttl_seconds" minimum:"60"`
			Roles []rights.Role `json:"roles,omitempty" doc:"Some of the user's; all, if none is named."`
		}
	},
	) (*struct{ Body personalToken }, error) {
		if p.PAT != "" {
			return nil, problem.New(http.StatusForbidden, "a personal token makes no personal tokens; sign in")
		}
		text, pat, err := a.opt.Accounts.CreatePAT(ctx, account.UserID(p.User), in.Body.Name, in.Body.Roles, time.Duration(in.Body.TTL)*time.Second)
		return &struct{ Body personalToken }{personalToken{pat, text}}, err
	})
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/auth/tokens", Summary: "List personal tokens", Tags: tags,
	}, rights.TokensWrite, func(_ context.Context, p rights.Principal, _ *struct{}) (*struct{ Body api.Page[account.PAT] }, error) {
		out := &struct{ Body api.Page[account.PAT] }{}
		out.Body.Items = append([]account.PAT{}, a.opt.Accounts.PATs(account.UserID(p.User))...)
		return out, nil
	})
	handle(a, huma.Operation{
		Method: http.MethodDelete, Path: "/v1/auth/tokens/{id}", Summary: "Revoke personal token", Tags: tags,
		DefaultStatus: http.StatusNoContent, Errors: []int{404},
	}, rights.TokensWrite, func(ctx context.Context, p rights.Principal, in *struct {
		ID string `path:"id"`
	},
	) (*nothing, error) {
		return nil, a.opt.Accounts.RevokePAT(ctx, account.UserID(p.User), in.ID)
	})
}
