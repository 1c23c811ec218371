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
	"net/http"
	"path"
	"strings"
)

//go:embed dist
var dist embed.FS

// Path is where the dashboard is.
const Path = "/ui/"

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

type file struct {
	etag, mediaType string
	plain, packed   []byte
}

// Handler serves the dashboard of a tier below Path, and leads from / to it. next serves all other
// paths.
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
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files[r.URL.Path]
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			next.ServeHTTP(w, r)
		case ok:
			f.serve(w, r)
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
	return file{hex.EncodeToString(sum[:8]), mediaType, text, packed.Bytes()}
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // a new version of the daemon has the same names
	h.Set("Vary", "Accept-Encoding")
	body, etag := f.plain, f.etag
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		body, etag = f.packed, etag+"-gzip"
	}
	h.Set("ETag", `"`+etag+`"`)
	if r.Header.Get("If-None-Match") == `"`+etag+`"` {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if len(body) != len(f.plain) {
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", f.mediaType)
	h.Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // the client is gone
}
