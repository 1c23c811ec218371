package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/cluster-openapi.json anew")

// TestOpenAPIIsFresh keeps the committed description the same as the served one.
func TestOpenAPIIsFresh(t *testing.T) {
	r := newRig(t)
	var got bytes.Buffer
	text, err := json.Marshal(r.web.OpenAPI())
	check(t, err)
	check(t, json.Indent(&got, text, "", "  "))
	got.WriteByte('\n')
	file := filepath.Join("..", "..", "docs", "reference", "cluster-openapi.json")
	if *update {
		check(t, os.WriteFile(file, got.Bytes(), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(want, got.Bytes()) {
		t.Errorf("docs/reference/cluster-openapi.json is stale (%v); write it with: go test ./cluster-orchestrator/httpapi -run OpenAPI -update", err)
	}
	if w := r.raw("", "GET", "/v1/openapi.json", ""); w.Code != 200 || !json.Valid(w.Body.Bytes()) {
		t.Errorf("served: %d", w.Code)
	}
}
