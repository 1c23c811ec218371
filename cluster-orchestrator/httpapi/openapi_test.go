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

	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
)

var update = flag.Bool("update", false, "write docs/reference/cluster-openapi.json anew")

// TestOpenAPIIsFresh compares the committed description with the served one.
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

// TestEveryOperationMayAnswerTooManyRequests: each operation counts towards its caller's share,
// so its description must have 429.
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
			for range 5 { // one caller has four requests
				code = r.raw("", op.Method, path, "").Code
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
