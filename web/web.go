// Package web serves the dashboard, which the root and the clusters share. Its sources are in src; the
// bundle of them in dist is committed, so that building a daemon needs Go only. To update it:
//
//	go generate ./web
//
// The pages call the REST API of the daemon that serves them, with the token of their user. The
// server has no state for them.
package web

//go:generate go test . -run "AreFresh|IsFresh" -update

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/treeline-edge/treeline"
	"github.com/treeline-edge/treeline/web/docs"
)

//go:embed dist
var dist embed.FS

// Path is where the dashboard is, and APIPath its page about the REST API, which needs no session.
const (
	Path    = "/ui/"
	APIPath = "/v1/docs"
)

// The tiers that have a dashboard.
const (
	Root    = "root"
	Cluster = "cluster"
)

// policy allows the pages to load from and connect to their own origin only, and no scripts or
// styles except the bundle's. Trusted types make the browser refuse text as HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

var types = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
}

// file is compressed; few clients want it otherwise.
type file struct {
	etag, mediaType string
	status, size    int // size is that of the text
	packed          []byte
}

// Handler serves the dashboard of a tier below Path and at APIPath, the documentation below docs.Path, and leads
// from / to the dashboard. next serves all other paths.
func Handler(tier string, next http.Handler) http.Handler {
	files := map[string]file{}
	entries, err := dist.ReadDir("dist")
	if err != nil {
		panic(err) // the directory is embedded
	}
	for _, e := range entries {
		text, err := dist.ReadFile("dist/" + e.Name())
		if err != nil {
			panic(err)
		}
		name := e.Name()
		if name == "index.html" {
			text = bytes.ReplaceAll(text, []byte("TIER"), []byte(tier))
			name = ""
		}
		files[Path+name] = newFile(types[path.Ext(e.Name())], text)
	}
	files[APIPath] = files[Path]
	pages := docs.New(treeline.Pages, tier, func(mediaType string, status int, text []byte) http.Handler {
		f := newFile(mediaType, text)
		f.status = status
		return f
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files[r.URL.Path]
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			next.ServeHTTP(w, r)
		case ok:
			f.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path+"/", docs.Path):
			pages.ServeHTTP(w, r)
		case r.URL.Path == "/", r.URL.Path+"/" == Path:
			http.Redirect(w, r, Path, http.StatusFound)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func newFile(mediaType string, text []byte) file {
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(text)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("compress into memory: %v", err))
	}
	sum := sha256.Sum256(text)
	return file{hex.EncodeToString(sum[:8]), mediaType, http.StatusOK, len(text), packed.Bytes()}
}

func (f file) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // a new version of the daemon has the same names
	h.Set("Vary", "Accept-Encoding")
	zipped := strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	size, etag := f.size, f.etag
	if zipped {
		size, etag = len(f.packed), etag+"-gzip"
	}
	h.Set("ETag", `"`+etag+`"`)
	if f.status == http.StatusOK && r.Header.Get("If-None-Match") == `"`+etag+`"` {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if zipped {
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", f.mediaType)
	h.Set("Content-Length", fmt.Sprint(size))
	w.WriteHeader(f.status)
	if r.Method == http.MethodHead {
		return
	}
	if zipped {
		_, _ = w.Write(f.packed) // the client is gone
		return
	}
	if z, err := gzip.NewReader(bytes.NewReader(f.packed)); err == nil { // packed is our own
		_, _ = io.Copy(w, z) //nolint:gosec // as long as f.size
	}
}
