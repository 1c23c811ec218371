package nodelink

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Repeated joins of an unknown client fill neither the log nor a single log line.
func TestRefusedJoinsDoNotFillTheLog(t *testing.T) {
	var out bytes.Buffer
	d := NewServer(ServerOptions{Log: slog.New(slog.NewTextHandler(&out, nil))})
	body := `{"token":"nonsense","info":{"id":"n1","hostname":"` + strings.Repeat("x", 50_000) + `"}}`
	for range 500 {
		r := httptest.NewRequest("POST", "/v1/join/node", strings.NewReader(body))
		w := httptest.NewRecorder()
		d.Handler().ServeHTTP(w, r)
		if w.Code < 400 || w.Code == http.StatusInternalServerError {
			t.Fatalf("joined with nonsense: %d %s", w.Code, w.Body)
		}
	}
	if n := strings.Count(out.String(), "join of a node refused"); n == 0 || n > 20 {
		t.Errorf("500 refused joins of one address wrote %d lines, want a few", n)
	}
	if n := out.Len(); n > 20_000 {
		t.Errorf("500 refused joins of one address wrote %d bytes", n)
	}
}
