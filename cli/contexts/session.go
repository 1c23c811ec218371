package contexts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// early is how long before its expiry an access token is renewed, so that it does not expire during
// a request.
const early = 20 * time.Second

// Session implements client.Tokens for a context. It renews the access token with the refresh
// token, for all commands that share the file. It is safe for concurrent use.
type Session struct {
	file    *File
	name    string
	refresh func(ctx context.Context, token string) (api.Session, error)
	now     func() time.Time

	mu  sync.Mutex // guards ctx
	ctx Context
}

// NewSession returns the session of a context. refresh exchanges a refresh token for a new session
// at the root.
func NewSession(f *File, name string, c Context, now func() time.Time, refresh func(ctx context.Context, token string) (api.Session, error)) *Session {
	return &Session{file: f, name: name, ctx: c, now: now, refresh: refresh}
}

// Token implements client.Tokens. ErrUnauthenticated: there is no session, or it has ended.
func (s *Session) Token(ctx context.Context, refused string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.good(s.ctx, refused) {
		return s.ctx.Access, nil
	}
	err := s.file.Update(func(all *All) error {
		c, err := all.Get(s.name)
		if err != nil {
			return err
		}
		if !s.good(c, refused) { // another command may have renewed the token
			if c.Refresh == "" {
				return s.ended("not signed in")
			}
			got, err := s.refresh(ctx, c.Refresh)
			switch {
			case errors.Is(err, api.ErrUnauthenticated):
				return s.ended("session ended")
			case err != nil:
				return fmt.Errorf("renew session: %w", err)
			}
			c.SetSession(got)
			all.Contexts[s.name] = c
		}
		s.ctx = c
		return nil
	})
	if err != nil {
		return "", err
	}
	return s.ctx.Access, nil
}

func (s *Session) good(c Context, refused string) bool {
	return c.Access != "" && c.Access != refused && s.now().Add(early).Before(c.Expires)
}

func (s *Session) ended(what string) error {
	return fmt.Errorf("%s in context %s; run treeline login: %w", what, s.name, api.ErrUnauthenticated)
}
