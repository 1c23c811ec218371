package httpapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/operators"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
)

// TestAnInterruptedRevocationIsCompleted: the named token is gone already, a join token that was created with it is not.
func TestAnInterruptedRevocationIsCompleted(t *testing.T) {
	r := newRig(t)
	for _, by := range []string{operators.UserOf("night"), operators.UserOf("day")} {
		_, _, err := r.desk.Create(t.Context(), jointoken.Order{Scope: jointoken.ForNode, Cluster: "munich", Tenant: "acme", TTL: time.Hour, By: by})
		check(t, err)
	}
	r.ask("admin", "DELETE", "/v1/operators/night", nil, http.StatusNoContent, nil)
	if left := r.desk.List(); len(left) != 1 || left[0].By != operators.UserOf("day") {
		t.Errorf("join tokens: got %+v, want only that of the other operator", left)
	}
	r.ask("admin", "DELETE", "/v1/operators/night", nil, http.StatusNotFound, nil)
}

// TestARevokedOperatorCreatesNoJoinToken: the named token is revoked while a request with it is under way.
func TestARevokedOperatorCreatesNoJoinToken(t *testing.T) {
	r := newRig(t)
	r.ask("revoked", "POST", "/v1/tokens", api.TokenRequest{}, http.StatusUnauthorized, nil)
	if left := r.desk.List(); len(left) != 0 {
		t.Errorf("join tokens: got %+v, want none", left)
	}
}

// TestJoinTokensEndWithTheOperatorTokenThatMadeThem: otherwise the holder of one that has expired could still join nodes.
func TestJoinTokensEndWithTheOperatorTokenThatMadeThem(t *testing.T) {
	r := newRig(t)
	r.ask("admin", "POST", "/v1/operators", api.OperatorRequest{Name: "guest", TTL: 600}, http.StatusCreated, nil)
	r.ask("guest", "POST", "/v1/tokens", api.TokenRequest{TTL: 7200}, http.StatusCreated, nil)
	r.ask("guest", "POST", "/v1/tokens", api.TokenRequest{}, http.StatusCreated, nil)
	for _, made := range r.desk.List() {
		if at := time.Until(made.Expires); at > 10*time.Minute {
			t.Errorf("join token of a named token that lasts 10 minutes: got one that lasts %s", at)
		}
	}
	if n := len(r.desk.List()); n != 2 {
		t.Errorf("got %d join tokens, want 2", n)
	}
}
