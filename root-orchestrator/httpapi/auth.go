package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/rest"
)

func (a *API) registerAuth() {
	signIn := rest.Tag("sign-in")
	session := func(path, summary, about string) rest.Operation {
		op := signIn.Post(path, summary, 401).About(about)
		op.Middlewares = huma.Middlewares{remoteAddress} // for guess
		return op
	}
	handle(a, session("/v1/auth/login", "Log in", ""), "",
		func(ctx context.Context, _ rights.Principal, in *rest.Body[api.Login]) (*sessionOut, error) {
			return a.signIn(ctx, in.Body.User, func(ctx context.Context, user account.UserID) (account.Session, error) {
				return a.opt.Accounts.Login(ctx, user, in.Body.Password)
			})
		})
	handle(a, session("/v1/auth/redeem", "Redeem code", "Exchanges a one-use sign-in code for a password and a session."), "",
		func(ctx context.Context, _ rights.Principal, in *rest.Body[api.Redeem]) (*sessionOut, error) {
			return a.signIn(ctx, in.Body.User, func(ctx context.Context, user account.UserID) (account.Session, error) {
				return a.opt.Accounts.Redeem(ctx, user, in.Body.Code, in.Body.Password)
			})
		})
	handle(a, session("/v1/auth/refresh", "Refresh session", "A refresh token is valid once; the answer has the next one."), "",
		func(ctx context.Context, _ rights.Principal, in *rest.Body[api.Refresh]) (*sessionOut, error) {
			s, err := a.opt.Accounts.Refresh(ctx, in.Body.Refresh)
			return a.sessionOf(s), err
		})
	logOut := signIn.Post("/v1/auth/logout", "Log out").About("Ends the session of the refresh token.")
	logOut.DefaultStatus = http.StatusNoContent
	act(a, logOut, "", func(ctx context.Context, _ rights.Principal, in *rest.Body[api.Refresh]) error {
		return a.opt.Accounts.End(ctx, in.Body.Refresh)
	})
	password := session("/v1/auth/password", "Change password", "Changes the user's own password, given the present one, and ends the user's sessions and personal tokens.")
	password.Security, password.DefaultStatus = signedIn, http.StatusNoContent
	act(a, password, "", a.changePassword)
	me := signIn.Get("/v1/auth/me", "Who am I", 401).Named("whoAmI")
	me.Security = signedIn
	answer(a, me, "", func(_ context.Context, p rights.Principal, _ *rest.None) (rights.Principal, error) {
		if p.User == "" {
			return p, errNoToken
		}
		return p, nil
	})
	renew := signIn.Post("/v1/auth/streams/{id}", "Renew stream", 401, 404).About(rest.AboutRenewal)
	renew.Security = signedIn
	answer(a, renew, "", a.renewStream)
	a.registerPersonalTokens(signIn)
}

var errNoToken = problem.New(http.StatusUnauthorized, "the request has no token; sign in first")

func (a *API) renewStream(ctx context.Context, p rights.Principal, in *rest.RenewStream) (rest.StreamLife, error) {
	if p.User == "" {
		return rest.StreamLife{}, errNoToken
	}
	fresh := ctx.Value(principalKey{}).(who)
	life := max(1, time.Until(fresh.Expires))
	return rest.StreamLife{Seconds: life.Seconds()}, a.grants.Renew(in.ID, life, func(was account.Authenticated) (func() error, error) {
		if was.User != p.User {
			return nil, missing("stream", in.ID)
		}
		return func() error { return a.opt.Accounts.Recheck(fresh.token, was) }, nil
	})
}

// signIn starts a session, unless too many attempts of the user's address have failed.
func (a *API) signIn(ctx context.Context, user string, start func(context.Context, account.UserID) (account.Session, error)) (*sessionOut, error) {
	ctx, done, err := a.shares.guess(ctx, user)
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, account.UserID(user))
	done(err)
	records.Of(ctx, records.Object("user", string(s.User.ID))).By = string(s.User.ID)
	return a.sessionOf(s), err
}

// changePassword needs the present password and a sign-in, so that neither a stolen personal token nor an
// unlocked terminal suffices.
func (a *API) changePassword(ctx context.Context, p rights.Principal, in *rest.Body[api.ChangePassword]) error {
	switch {
	case p.User == "":
		return errNoToken
	case p.PAT != "":
		return problem.New(http.StatusForbidden, "a personal token cannot change the password; sign in")
	}
	records.Of(ctx, records.Object("user", p.User))
	ctx, done, err := a.shares.guess(ctx, p.User)
	if err != nil {
		return err
	}
	// The change revokes the token of this request, which ends its context before the sessions are deleted.
	err = a.opt.Accounts.SetPassword(context.WithoutCancel(ctx), account.UserID(p.User), in.Body.Old, in.Body.Password)
	if errors.Is(err, api.ErrInvalid) {
		done(nil) // the present password was right
		return err
	}
	done(err)
	if errors.Is(err, api.ErrUnauthenticated) { // 401 would mean that the session has ended
		return problem.New(http.StatusForbidden, "the present password is wrong")
	}
	return err
}

type sessionOut struct {
	CacheControl string `header:"Cache-Control"`
	Body         api.Session
}

func (a *API) sessionOf(s account.Session) *sessionOut {
	out := &sessionOut{CacheControl: "no-store", Body: api.Session{
		User: string(s.User.ID), Tenant: s.User.ID.Tenant(), Access: s.Access, Expires: s.AccessExpires, Refresh: s.Refresh, Roles: []string{},
		Replicas: a.opt.Replicas(),
	}}
	for _, r := range s.User.Roles {
		out.Body.Roles = append(out.Body.Roles, string(r))
	}
	return out
}

type personalToken struct {
	account.PAT
	Token string `json:"token,omitempty" doc:"The token, shown once."`
}

func (a *API) registerPersonalTokens(signIn rest.Tag) {
	answer(a, signIn.Create("/v1/auth/tokens", "Create personal token", 409), rights.TokensWrite, a.createPersonalToken)
	answer(a, signIn.Get("/v1/auth/tokens", "List personal tokens"), rights.TokensWrite,
		func(_ context.Context, p rights.Principal, _ *rest.None) (api.Page[account.PAT], error) {
			return api.Page[account.PAT]{Items: append([]account.PAT{}, a.opt.Accounts.PATs(account.UserID(p.User))...)}, nil
		})
	act(a, signIn.Delete("/v1/auth/tokens/{id}", "Revoke personal token", 404), rights.TokensWrite,
		func(ctx context.Context, p rights.Principal, in *struct {
			ID string `path:"id"`
		},
		) error {
			records.Of(ctx, records.Object("user", p.User)).Text = "token " + in.ID
			return a.opt.Accounts.RevokePAT(ctx, account.UserID(p.User), in.ID)
		})
}

func (a *API) createPersonalToken(ctx context.Context, p rights.Principal, in *struct {
	Body struct {
		Name  string        `json:"name" minLength:"1" maxLength:"100"`
		TTL   int           `json:"ttl_seconds" minimum:"60"`
		Roles []rights.Role `json:"roles,omitempty" doc:"Some of the user's roles; without it, all."`
	}
},
) (personalToken, error) {
	if p.PAT != "" {
		return personalToken{}, problem.New(http.StatusForbidden, "a personal token cannot create personal tokens; sign in")
	}
	record := records.Of(ctx, records.Object("user", p.User))
	text, pat, err := a.opt.Accounts.CreatePAT(ctx, account.UserID(p.User), in.Body.Name, in.Body.Roles, time.Duration(in.Body.TTL)*time.Second)
	record.Text = fmt.Sprintf("token %s, %q until %s", pat.ID, pat.Name, pat.Expires.UTC().Format(time.RFC3339))
	if len(in.Body.Roles) > 0 {
		record.Text += ", " + rolesText(in.Body.Roles)
	}
	return personalToken{pat, text}, err
}
