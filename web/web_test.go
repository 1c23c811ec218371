package web_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/evanw/esbuild/pkg/api"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/web"
)

var update = flag.Bool("update", false, "write the generated files anew")

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares a committed file with what it should be, or writes it.
func same(t *testing.T, name string, want []byte) {
	t.Helper()
	if *update {
		check(t, os.WriteFile(name, want, 0o644))
		return
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("web/%s is stale (%v); write it with: go generate ./web", name, err)
	}
}

// The bundle in dist is that of the sources.
func TestBundleIsFresh(t *testing.T) {
	built := api.Build(api.BuildOptions{
		EntryPoints: []string{"src/main.tsx", "src/docs.ts", "src/style.css", "src/docs.css"}, EntryNames: "[name]", ChunkNames: "[name]", Outdir: "dist",
		Bundle: true, Splitting: true, Format: api.FormatESModule, Target: api.ES2022, Charset: api.CharsetUTF8,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, LineLimit: 500, LegalComments: api.LegalCommentsNone,
		JSX: api.JSXAutomatic, JSXImportSource: "preact", NodePaths: []string{"third_party"},
	})
	for _, m := range append(built.Errors, built.Warnings...) {
		t.Errorf("%s: %v", m.Text, m.Location)
	}
	made := map[string][]byte{}
	for _, f := range built.OutputFiles {
		made[filepath.Base(f.Path)] = f.Contents
	}
	for _, name := range []string{"index.html", "icon.svg"} {
		text, err := os.ReadFile("src/" + name)
		check(t, err)
		made[name] = text
	}
	there, err := os.ReadDir("dist")
	check(t, err)
	for _, e := range there {
		if made[e.Name()] == nil && *update {
			check(t, os.Remove("dist/"+e.Name()))
		} else if made[e.Name()] == nil {
			t.Errorf("web/dist/%s has no source; remove it with: go generate ./web", e.Name())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		same(t, "dist/"+name, made[name])
	}
}

// esbuild removes types without checking them.
func TestTypesAreRight(t *testing.T) {
	programtest.Need(t, "node", "tsc")
	if out, err := exec.CommandContext(t.Context(), "tsc", "-p", ".").CombinedOutput(); err != nil {
		t.Errorf("tsc: %v\n%s", err, out)
	}
}

// The TypeScript types of the API's objects are those of the OpenAPI documents.
func TestTypesAreFresh(t *testing.T) {
	type schema struct {
		Ref        string `json:"$ref"`
		Type       any
		Enum       []any
		Items      json.RawMessage
		Properties map[string]json.RawMessage
		Required   []string
		Additional json.RawMessage `json:"additionalProperties"`
	}
	var typeOf func(raw json.RawMessage) string
	typeOf = func(raw json.RawMessage) string {
		var s schema
		if json.Unmarshal(raw, &s) != nil {
			return "unknown"
		}
		kind := fmt.Sprint(s.Type)
		switch {
		case s.Ref != "":
			return s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		case len(s.Enum) > 0:
			var of []string
			for _, v := range s.Enum {
				of = append(of, fmt.Sprintf("%q", v))
			}
			return strings.Join(of, " | ")
		case strings.Contains(kind, "array"):
			of := typeOf(s.Items)
			if strings.Contains(of, " ") {
				of = "(" + of + ")"
			}
			return of + "[]"
		case strings.Contains(kind, "integer"), strings.Contains(kind, "number"):
			return "number"
		case strings.Contains(kind, "string"):
			return "string"
		case strings.Contains(kind, "boolean"):
			return "boolean"
		case len(s.Additional) > 0 && s.Additional[0] == '{':
			return "Record<string, " + typeOf(s.Additional) + ">"
		}
		return "unknown"
	}
	all := map[string]schema{}
	for _, name := range []string{"cluster-openapi.json", "openapi.json"} {
		text, err := os.ReadFile("../docs/reference/" + name)
		check(t, err)
		var doc struct {
			Components struct{ Schemas map[string]schema }
		}
		check(t, json.Unmarshal(text, &doc))
		maps.Copy(all, doc.Components.Schemas)
	}
	var b strings.Builder
	b.WriteString("// Made by `go generate ./web` from the OpenAPI documents; do not edit.\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(name, "Page") {
			continue
		}
		fmt.Fprintf(&b, "\nexport interface %s {\n", name)
		s := all[name]
		for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
			mark := "?"
			if slices.Contains(s.Required, key) {
				mark = ""
			}
			if !regexp.MustCompile(`^\w+$`).MatchString(key) {
				key = fmt.Sprintf("%q", key)
			}
			fmt.Fprintf(&b, "  %s%s: %s;\n", key, mark, typeOf(s.Properties[strings.Trim(key, `"`)]))
		}
		b.WriteString("}\n")
	}
	same(t, "src/types.ts", []byte(b.String()))
}

// maxSize bounds what a browser loads for the whole dashboard.
const maxSize = 250_000

func TestDashboardIsSmallAndLocked(t *testing.T) {
	h := web.Handler(web.Root, http.NotFoundHandler())
	get := func(path, encoding, etag string) *http.Response {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Accept-Encoding", encoding)
		r.Header.Set("If-None-Match", etag)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
	there, err := os.ReadDir("dist")
	check(t, err)
	total := 0
	for _, e := range there {
		path := web.Path + strings.TrimPrefix(e.Name(), "index.html")
		packed, plain := get(path, "gzip", ""), get(path, "", "")
		size, err := io.Copy(io.Discard, packed.Body)
		check(t, err)
		total += int(size)
		if packed.Header.Get("Content-Encoding") != "gzip" || plain.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: Content-Encoding %q and %q, want gzip only if the client accepts it", path, packed.Header.Get("Content-Encoding"), plain.Header.Get("Content-Encoding"))
		}
		policy := packed.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self'") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") {
			t.Errorf("%s: Content-Security-Policy %q, want the own origin only", path, policy)
		}
		if again := get(path, "gzip", packed.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s: the second request is answered %d, want 304", path, again.StatusCode)
		}
		text, err := io.ReadAll(plain.Body)
		check(t, err)
		if e.Name() == "index.html" && regexp.MustCompile(`(?i)<script>|<style| style=| on[a-z]+=|//`).Match(text) {
			t.Errorf("%s has inline code or a reference to another origin:\n%s", path, text)
		}
	}
	if total == 0 || total > maxSize {
		t.Errorf("the dashboard has %d bytes compressed, want at most %d", total, maxSize)
	}
	t.Logf("%d bytes compressed", total)
	if r := get("/", "", ""); r.StatusCode != http.StatusFound || r.Header.Get("Location") != web.Path {
		t.Errorf("GET / is answered %d to %q, want a redirect to %s", r.StatusCode, r.Header.Get("Location"), web.Path)
	}
	if r := get("/v1/apps", "", ""); r.StatusCode != http.StatusNotFound {
		t.Errorf("GET /v1/apps is answered %d, want the next handler's 404", r.StatusCode)
	}
}
