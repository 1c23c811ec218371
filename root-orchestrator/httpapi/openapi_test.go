package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/openapi.json anew")

// TestOpenAPIIsFresh keeps the committed description the same as the served one.
func TestOpenAPIIsFresh(t *testing.T) {
	r := newRig(t)
	var got bytes.Buffer
	text, err := json.Marshal(r.web.OpenAPI())
	check(t, err)
	check(t, json.Indent(&got, text, "", "  "))
	got.WriteByte('\n')
	file := filepath.Join("..", "..", "docs", "reference", "openapi.json")
	if *update {
		check(t, os.MkdirAll(filepath.Dir(file), 0o755))
		check(t, os.WriteFile(file, got.Bytes(), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(want, got.Bytes()) {
		t.Errorf("docs/reference/openapi.json is stale (%v); write it with: go test ./root-orchestrator/httpapi -run OpenAPI -update", err)
	}
	status, _, served := r.raw("GET", "/v1/openapi.json", "", "")
	if status != 200 || !json.Valid([]byte(served)) {
		t.Errorf("served: %d", status)
	}
}

func TestDocsLoadNothingFromElsewhere(t *testing.T) {
	r := newRig(t)
	status, _, page := r.raw("GET", "/v1/docs", "", "")
	if status != 200 || regexp.MustCompile(`(src|href)="(https?:)?//`).MatchString(page) || !regexp.MustCompile(`/v1/instances/\{id\}/why`).MatchString(page) {
		t.Errorf("%d %s", status, page)
	}
}
