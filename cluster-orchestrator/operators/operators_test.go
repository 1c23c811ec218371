package operators_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/operators"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// open returns the tokens in st, as after a restart.
func open(t *testing.T, st store.Store) *operators.Store {
	t.Helper()
	loaded, err := store.Load(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	s, err := operators.New(st, loaded, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestANamedTokenEndsWhenItIsRevokedOrExpires(t *testing.T) {
	st := mem.New()
	s := open(t, st)
	night, r, err := s.Create(t.Context(), operators.Order{Name: "night", TTL: time.Hour, By: "operator"})
	if err != nil || r.User() != "operator:night" || len(r.Roles) != 1 || r.Roles[0] != rights.InfrastructureProvider {
		t.Fatalf("%+v, %v", r, err)
	}
	day, _, err := s.Create(t.Context(), operators.Order{Name: "day", Roles: []rights.Role{rights.Admin}, TTL: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Create(t.Context(), operators.Order{Name: "day", TTL: time.Hour}); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a second token of the name: %v, want conflict", err)
	}
	s = open(t, st)
	for _, token := range []string{night, day} {
		if _, err := s.Verify(token); err != nil {
			t.Errorf("after a restart: %v", err)
		}
	}
	secret := night[strings.LastIndexByte(night, '.')+1:]
	for _, wrong := range []string{"", "TLN.", "TLN.night.", "TLN.day." + secret, "TLN.night." + secret[1:], "night." + secret, night + "x", secret} {
		if _, err := s.Verify(wrong); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("token %q: %v, want it refused", wrong, err)
		}
	}
	loaded, err := store.Load(t.Context(), st)
	if err != nil || len(loaded) != 2 {
		t.Fatalf("the store has %d documents, %v; want 2", len(loaded), err)
	}
	for _, d := range loaded {
		if strings.Contains(string(d.Data), secret) {
			t.Errorf("the store has the secret: %s", d.Data)
		}
	}

	if _, err := s.Revoke(t.Context(), "night"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Revoke(t.Context(), "night"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("revoke again: %v, want not found", err)
	}
	again, _, err := s.Create(t.Context(), operators.Order{Name: "night", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Good(r); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a request with the revoked token, after another of its name was made: %v, want it refused", err)
	}
	s = open(t, st)
	if _, err := s.Verify(night); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("the revoked token after a restart: %v, want it refused", err)
	}
	if _, err := s.Verify(again); err != nil {
		t.Errorf("the other token of its name: %v", err)
	}
	defer func(t time.Time) { now = t }(now)
	now = now.Add(time.Hour)
	if _, err := s.Verify(again); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("the expired token: %v, want it refused", err)
	}
	if all := s.List(); len(all) != 1 || all[0].Name != "day" {
		t.Errorf("list has %+v, want only day", all)
	}
}

func TestNamedTokensAreBounded(t *testing.T) {
	s := open(t, mem.New())
	for _, o := range []operators.Order{
		{Name: "", TTL: time.Hour},
		{Name: "a.b", TTL: time.Hour},
		{Name: "a", TTL: time.Second},
		{Name: "a", TTL: 367 * 24 * time.Hour},
		{Name: "a", TTL: time.Hour, Roles: []rights.Role{rights.ApplicationProvider}},
	} {
		if _, _, err := s.Create(t.Context(), o); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%+v: %v, want invalid", o, err)
		}
	}
	for i := range 64 {
		if _, _, err := s.Create(t.Context(), operators.Order{Name: fmt.Sprint("o", i), TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Create(t.Context(), operators.Order{Name: "more", TTL: time.Hour}); !errors.Is(err, api.ErrConflict) {
		t.Errorf("the 65th token: %v, want conflict", err)
	}
	defer func(t time.Time) { now = t }(now)
	now = now.Add(time.Hour)
	if _, _, err := s.Create(t.Context(), operators.Order{Name: "more", TTL: time.Hour}); err != nil {
		t.Errorf("after the others have expired: %v", err)
	}
}
