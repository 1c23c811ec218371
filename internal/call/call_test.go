package call

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestErrorsKeepTheirKindOnTheWire(t *testing.T) {
	var answer error
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer != nil {
			Write(w, answer)
			return
		}
		var in map[string]string
		_ = json.NewDecoder(r.Body).Decode(&in)
		_ = json.NewEncoder(w).Encode(in)
	}))
	for _, kind := range []error{api.ErrConflict, api.ErrUnauthenticated, api.ErrFull, api.ErrNotFound, api.ErrInvalid} {
		answer = fmt.Errorf("join n1: %w", kind)
		err := JSON(t.Context(), srv.Client(), srv.URL, nil, nil)
		var p *api.Problem
		if !errors.Is(err, kind) || !errors.As(err, &p) || p.Detail != answer.Error() {
			t.Errorf("%v became %v", answer, err)
		}
	}
	answer = nil
	var out map[string]string
	if err := JSON(t.Context(), srv.Client(), srv.URL, map[string]string{"a": "b"}, &out); err != nil || out["a"] != "b" {
		t.Errorf("answered %v, %v", out, err)
	}
	srv.Close()
	if err := JSON(t.Context(), srv.Client(), srv.URL, nil, nil); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestAnswerThatIsNoProblem(t *testing.T) {
	p := ParseProblem("text/html", 502, []byte("<html>proxy</html>"))
	if p.Status != 502 || p.Detail != "answered 502 <html>proxy</html>" {
		t.Errorf("%+v", p)
	}
}
