package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
)

var update = flag.Bool("update", false, "write docs/reference/openapi.json anew")

// The committed OpenAPI document equals the served one.
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

// Each operation counts towards its user's fair share, so each has the answer 429 in the OpenAPI
// document.
func TestEveryOperationMayAnswerTooManyRequests(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) {
		now := time.Now()
		o.Rate, o.Now = 1, func() time.Time { return now }
	})
	operations := 0
	for at, item := range r.web.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			operations++
			path := strings.NewReplacer("{", "", "}", "").Replace(at)
			code := 0
			for range 5 { // one user may have four requests at a time
				code = r.from("192.0.2.1", op.Method, path, "", "").Code
			}
			if code != http.StatusTooManyRequests {
				t.Errorf("%s %s: request too many is answered %d, want 429", op.Method, at, code)
			}
			if op.Responses["429"] == nil {
				t.Errorf("%s %s: the description has no 429", op.Method, at)
			}
		}
	}
	if operations < 10 {
		t.Errorf("%d operations are described, want all", operations)
	}
}
