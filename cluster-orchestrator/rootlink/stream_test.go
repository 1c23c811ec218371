package rootlink

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestAskAnswersAsHTTP(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Authorization")+" "+string(body))
	})
	answer, err := ask(t.Context(), h, wire.StreamRequest{Method: "POST", Path: "/v1/x?y=1", Body: []byte("{}"), Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer)
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 418 ") || !strings.Contains(string(text), "POST /v1/x?y=1  {}") {
		t.Errorf("%q, %v", text, err)
	}
	_ = answer.Close()
	_ = answer.Close()
	for _, path := range []string{"/metrics", "/v1/node/renew", "/v1/join/node", ""} {
		if _, err := ask(t.Context(), h, wire.StreamRequest{Method: "GET", Path: path}); !errors.Is(err, api.ErrForbidden) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAskerWhoLeavesEndsTheHandler(t *testing.T) {
	ended := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for {
			if _, err := io.WriteString(w, "more\n"); err != nil {
				return
			}
		}
	})
	answer, err := ask(t.Context(), h, wire.StreamRequest{Method: "GET", Path: "/v1/logs"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := answer.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	_ = answer.Close()
	<-ended
}
