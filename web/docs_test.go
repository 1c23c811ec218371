package web_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/web"
	"github.com/treeline-edge/treeline/web/docs"
)

// request asks a handler for a path, which may be one that no browser sends.
func request(h http.Handler, at string) *http.Response {
	r := httptest.NewRequest("GET", "/", nil)
	r.URL = &url.URL{Path: at}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	check(t, err)
	return string(text)
}

var (
	reference = regexp.MustCompile(` (?:href|src)="([^"]*)"`)
	anchor    = regexp.MustCompile(` id="([^"]*)"`)
)

// TestEveryLinkOfTheDocsLeads follows each link and asset of each page from the contents on, at both tiers, and finds each page that
// the site has, except decisions, in the contents.
func TestEveryLinkOfTheDocsLeads(t *testing.T) {
	for _, tier := range []string{web.Root, web.Cluster} {
		h := web.Handler(tier, http.NotFoundHandler())
		pages := map[string]string{}
		open := []string{docs.Path}
		for len(open) > 0 {
			at := open[0]
			open = open[1:]
			if _, ok := pages[at]; ok {
				continue
			}
			r := request(h, at)
			pages[at] = body(t, r)
			if r.StatusCode != http.StatusOK {
				t.Errorf("%s: %s is answered %d, want 200", tier, at, r.StatusCode)
			}
			if !strings.HasPrefix(at, docs.Path) || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
				continue
			}
			if regexp.MustCompile(`(?i)<script>|<style| style=| on[a-z]+="|<!--`).MatchString(strings.ReplaceAll(pages[at], "<!doctype", "")) {
				t.Errorf("%s: %s has inline code, styles or comments", tier, at)
			}
			for _, m := range reference.FindAllStringSubmatch(pages[at], -1) {
				to, _, _ := strings.Cut(m[1], "#")
				switch {
				case to == "", strings.HasPrefix(to, "https://"):
				case strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "//"):
					open = append(open, to)
				default:
					t.Errorf("%s: %s links to %q, want a path of this origin or https", tier, at, m[1])
				}
			}
		}
		for at, page := range pages {
			for _, m := range reference.FindAllStringSubmatch(page, -1) {
				to, id, _ := strings.Cut(m[1], "#")
				if id == "" || strings.HasPrefix(to, "https://") {
					continue
				}
				target := pages[to]
				if to == "" {
					target = page
				}
				if !strings.Contains(target, ` id="`+id+`"`) {
					t.Errorf("%s: %s links to %s, which has no such heading", tier, at, m[1])
				}
			}
			seen := map[string]bool{}
			for _, m := range anchor.FindAllStringSubmatch(page, -1) {
				if seen[m[1]] {
					t.Errorf("%s: %s has the id %q twice", tier, at, m[1])
				}
				seen[m[1]] = true
			}
		}
		for _, file := range documents(t) {
			at := docs.Path + strings.TrimSuffix(strings.TrimPrefix(file, "docs/"), ".md")
			if strings.HasSuffix(file, "/README.md") {
				at = strings.TrimSuffix(at, "README")
			}
			if pages[at] == "" {
				t.Errorf("%s: %s is not reached from the contents", tier, file)
			}
		}
		if len(pages) < 100 {
			t.Errorf("%s: %d pages are reached, want all", tier, len(pages))
		}
	}
}

// documents returns the Markdown files of docs.
func documents(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		some, err := filepath.Glob("../" + pattern)
		check(t, err)
		for _, f := range some {
			all = append(all, strings.TrimPrefix(filepath.ToSlash(f), "../"))
		}
	}
	return all
}

// Paths that lead out of the pages, and those of files that are embedded under another path, are not served.
func TestAHostilePathServesNothing(t *testing.T) {
	h := web.Handler(web.Root, http.NotFoundHandler())
	for _, at := range []string{
		"/docs/../go.mod", "/docs/..", "/docs/../../etc/passwd", "/docs/%2e%2e/go.mod", "/docs/..%2fgo.mod", `/docs/..\go.mod`, "/docs//etc/passwd",
		"/docs/./how-to/jobs", "/docs/how-to/../../go.mod", "/docs/how-to/jobs\x00.md", "/docs/docs/how-to/jobs", "/docs/go.mod", "/docs/web/web.go",
		"/docs/deploy", "/docs/deploy/", "/docs/" + strings.Repeat("a/", 4000), "/docs/<script>alert(1)</script>", "/docs///", "/docs/how-to/jobs/x",
	} {
		r := request(h, at)
		text := body(t, r)
		if r.StatusCode != http.StatusNotFound || strings.Contains(text, "alert(") || strings.Contains(text, "module github") {
			t.Errorf("%.60q is answered %d, want 404 without a part of the path", at, r.StatusCode)
		}
		if p := r.Header.Get("Content-Security-Policy"); !strings.Contains(p, "script-src 'self'") {
			t.Errorf("%.60q: policy %q", at, p)
		}
	}
	for at, want := range map[string]string{"/docs": "/docs/", "/docs/how-to/jobs.md": "/docs/how-to/jobs", "/docs/how-to/jobs/": "/docs/how-to/jobs", "/docs/adr": "/docs/adr/", "/docs/adr/README.md": "/docs/adr/"} {
		if r := request(h, at); r.StatusCode != http.StatusFound || r.Header.Get("Location") != want {
			t.Errorf("%s leads with %d to %q, want %s", at, r.StatusCode, r.Header.Get("Location"), want)
		}
	}
}

func TestExamplesAreServedAsTheyAre(t *testing.T) {
	h := web.Handler(web.Root, http.NotFoundHandler())
	r := request(h, "/docs/deploy/examples/hello.yaml")
	want, err := os.ReadFile("../deploy/examples/hello.yaml")
	check(t, err)
	if got := body(t, r); got != string(want) || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("hello.yaml is served as %q with %d bytes, want plain text of %d", r.Header.Get("Content-Type"), len(got), len(want))
	}
}

// The search of the pages finds each page by its title, and parts of pages by their headings.
func TestSearchIndexHasAllPages(t *testing.T) {
	h := web.Handler(web.Root, http.NotFoundHandler())
	var parts [][4]string
	check(t, json.Unmarshal([]byte(body(t, request(h, docs.IndexPath))), &parts))
	pages := map[string]bool{}
	for _, p := range parts {
		at, id, _ := strings.Cut(p[2], "#")
		if p[0] == "" {
			t.Errorf("%s has no title", p[2])
		}
		if !pages[at] && id != "" {
			t.Errorf("%s comes before its page", p[2])
		}
		pages[at] = true
	}
	if len(pages) < 100 || len(parts) < 300 {
		t.Errorf("the index has %d pages and %d parts, want all", len(pages), len(parts))
	}
}

// The links from the dashboard to pages lead.
func TestLinksOfTheDashboardToTheDocsLead(t *testing.T) {
	h := web.Handler(web.Root, http.NotFoundHandler())
	link := regexp.MustCompile(`["'](/docs/[^"'{]*)["']`)
	seen := 0
	for _, pattern := range []string{"src/*.ts*", "src/*/*.ts*", "src/*/*/*.ts*"} {
		files, err := filepath.Glob(pattern)
		check(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			check(t, err)
			for _, m := range link.FindAllStringSubmatch(string(text), -1) {
				seen++
				at, id, _ := strings.Cut(m[1], "#")
				r := request(h, at)
				if page := body(t, r); r.StatusCode != http.StatusOK || id != "" && !strings.Contains(page, ` id="`+id+`"`) {
					t.Errorf("%s links to %s: status %d, or no such heading", file, m[1], r.StatusCode)
				}
			}
		}
	}
	if seen < 3 {
		t.Errorf("the dashboard has %d links to the docs", seen)
	}
}

// A session is not needed to read about the API.
func TestThePageAboutTheAPIIsServed(t *testing.T) {
	for _, tier := range []string{web.Root, web.Cluster} {
		r := request(web.Handler(tier, http.NotFoundHandler()), web.APIPath)
		if text := body(t, r); r.StatusCode != http.StatusOK || !strings.Contains(text, `data-tier="`+tier+`"`) || !strings.Contains(text, "/ui/main.js") {
			t.Errorf("%s: %s is answered %d", tier, web.APIPath, r.StatusCode)
		}
	}
}
