package problem_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/problem"
)

type document struct{ error }

func (document) ProblemFields() []api.ProblemField {
	return []api.ProblemField{{Pointer: "/vcpu", Detail: "did you mean vcpus"}}
}

func TestErrorsBecomeProblems(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
		says   string
		retry  bool
	}{
		{fmt.Errorf("node n1: %w", api.ErrNotFound), 404, "not_found", "node n1", false},
		{fmt.Errorf("no store: %w", api.ErrUnavailable), 503, "unavailable", "no store", true},
		{errors.New("secret of ours"), 500, "internal", "see the root's log", false},
		{fmt.Errorf("asked: %w", &api.Problem{Status: 409, Code: "conflict", Detail: "another tier's"}), 409, "conflict", "another tier's", false},
		{problem.New(http.StatusTooManyRequests, "wait"), 429, "too_many_requests", "wait", true},
	} {
		p := problem.Of(c.err, "the root's log")
		if p.Status != c.status || p.Code != c.code || !strings.Contains(p.Detail, c.says) || p.Retryable != c.retry || strings.Contains(p.Detail, "secret") {
			t.Errorf("%v: %+v", c.err, p.Problem)
		}
	}
	if p := problem.Of(fmt.Errorf("SLA: %w: %w", document{errors.New("a fault")}, api.ErrInvalid), ""); len(p.Errors) != 1 || p.Errors[0].Pointer != "/vcpu" {
		t.Errorf("a document's faults: %+v", p.Errors)
	}
}

func TestHumasErrorsHaveOurForm(t *testing.T) {
	err := huma.NewError(422, "validation failed",
		&huma.ErrorDetail{Location: "body.items[3].name", Message: "too long"},
		&huma.ErrorDetail{Location: "query.tail", Message: "too small"})
	var p *problem.Problem
	if !errors.As(err, &p) || p.Errors[0].Pointer != "/items/3/name" || p.Errors[1].Where != "query.tail" {
		t.Errorf("%+v", err)
	}
}

func TestWrittenWithItsHeaders(t *testing.T) {
	w := httptest.NewRecorder()
	problem.Write(w, problem.New(http.StatusUnauthorized, "sign in"))
	var p api.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Detail != "sign in" || w.Code != 401 ||
		w.Header().Get("WWW-Authenticate") != "Bearer" || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %v %s %v", w.Code, w.Header(), w.Body, err)
	}
}
