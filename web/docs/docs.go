// Package docs serves the pages of documentation as a site, offline: for each Markdown file a page,
// and the other files as they are. Scripts and styles are those of the dashboard's bundle.
//
// A page is made at its first request and kept compressed, so that a daemon whose documentation nobody reads
// spends nothing on it, and a stranger can make it render each page once.
package docs

import (
	"bytes"
	"cmp"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
)

// Path is where the site is.
const Path = "/docs/"

// IndexPath is where the scripts of the pages find the text of all pages, to search it.
const IndexPath = Path + "search.json"

// contents is the page with the contents, which the navigation of each page follows.
const contents = "docs/README.md"

// Pack returns a handler that serves a text of a media type with a status. It is called once for each text, which it need
// not keep as it is.
type Pack func(mediaType string, status int, text []byte) http.Handler

// Site serves the pages for a tier.
type Site struct {
	source fs.FS
	tier   string
	pack   Pack

	load   func() // finds the files, once
	pages  map[string]*page
	byFile map[string]*page
	nav    []section
	fault  error

	index, missing func() http.Handler
}

// page is one file of the source.
type page struct {
	file, url string
	packed    func() http.Handler // made once
}

// New returns the site of the files in source for a tier, whose API the pages link to.
func New(source fs.FS, tier string, pack Pack) *Site {
	s := &Site{source: source, tier: tier, pack: pack}
	s.load = sync.OnceFunc(func() { s.fault = s.find() })
	s.index = sync.OnceValue(func() http.Handler { return pack("application/json", http.StatusOK, s.makeIndex()) })
	s.missing = sync.OnceValue(func() http.Handler {
		return pack(html, http.StatusNotFound, s.frame("", "No such page", `<h1>No such page</h1><p>Search, or begin at the <a href="/docs/">contents</a>.</p>`, nil))
	})
	return s
}

// ServeHTTP serves what is at the request's path. It looks the path up among those of the files, and opens no other file.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.load()
	at := r.URL.Path
	if at == IndexPath {
		s.index().ServeHTTP(w, r)
		return
	}
	if p, ok := s.pages[at]; ok {
		p.packed().ServeHTTP(w, r)
		return
	}
	for _, other := range []string{at + "/", strings.TrimSuffix(at, ".md"), strings.TrimSuffix(at, "README.md"), strings.TrimSuffix(at, "/")} {
		if p, ok := s.pages[other]; ok {
			http.Redirect(w, r, p.url, http.StatusFound)
			return
		}
	}
	s.missing().ServeHTTP(w, r)
}

// URLs returns the paths of all pages and files, in order.
func (s *Site) URLs() (all []string, err error) {
	s.load()
	for url := range s.pages {
		all = append(all, url)
	}
	slices.Sort(all)
	return all, s.fault
}

func (s *Site) find() error {
	s.pages, s.byFile = map[string]*page{}, map[string]*page{}
	err := fs.WalkDir(s.source, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		p := &page{file: file, url: urlOf(file)}
		p.packed = sync.OnceValue(func() http.Handler { return s.make(p) })
		s.pages[p.url], s.byFile[file] = p, p
		return nil
	})
	if err == nil {
		err = s.readContents()
	}
	return err
}

// urlOf returns the path of a file's page: docs/how-to/jobs.md is /docs/how-to/jobs.
func urlOf(file string) string {
	at := strings.TrimPrefix(file, "docs/")
	if dir, name := path.Split(file); name == "README.md" && dir != "" {
		return Path + strings.TrimPrefix(dir, "docs/")
	}
	return Path + strings.TrimSuffix(at, ".md")
}

const (
	html  = "text/html; charset=utf-8"
	plain = "text/plain; charset=utf-8"
)

var types = map[string]string{".svg": "image/svg+xml", ".png": "image/png", ".json": "application/json"}

func (s *Site) make(p *page) http.Handler {
	text, err := fs.ReadFile(s.source, p.file)
	switch {
	case err != nil: // the files are embedded
		return s.pack(plain, http.StatusInternalServerError, []byte(err.Error()))
	case path.Ext(p.file) == ".md":
		title, body, headings := s.render(p.file, text)
		return s.pack(html, http.StatusOK, s.frame(p.url, title, body, headings))
	}
	return s.pack(cmp.Or(types[path.Ext(p.file)], plain), http.StatusOK, text)
}

// section is a part of the contents.
type section struct {
	Title string
	Links []link
}

type link struct {
	Title, URL string
	Here       bool
}

// readContents reads the sections of the page with the contents, and the links in their lists.
func (s *Site) readContents() error {
	text, err := fs.ReadFile(s.source, contents)
	if err != nil {
		return err
	}
	s.nav = s.sections(contents, text)
	return nil
}

func (s *Site) frame(url, title string, body template.HTML, headings []heading) []byte {
	view := struct {
		Tier, Title string
		Nav         []section
		Body        template.HTML
		Headings    []heading
	}{s.tier, title, make([]section, len(s.nav)), body, headings}
	for i, n := range s.nav {
		view.Nav[i] = section{n.Title, slices.Clone(n.Links)}
		for j := range n.Links {
			view.Nav[i].Links[j].Here = n.Links[j].URL == url
		}
	}
	var b bytes.Buffer
	if err := frame.Execute(&b, view); err != nil {
		return []byte(err.Error()) // the template is tested with every page
	}
	return b.Bytes()
}

var frame = template.Must(template.New("frame").Parse(`<!doctype html>
<html lang="en" data-tier="{{.Tier}}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{.Title}} · Treeline docs</title>
<link rel="icon" href="/ui/icon.svg">
<link rel="stylesheet" href="/ui/style.css">
<link rel="stylesheet" href="/ui/docs.css">
<script type="module" src="/ui/docs.js"></script>
</head>
<body class="docs">
<a class="skip" href="#main">Skip to the content</a>
<header>
<a class="brand" href="/ui/"><img src="/ui/icon.svg" alt="" width="20" height="20"> Treeline</a>
<nav aria-label="Parts"><a href="/ui/">Dashboard</a><a href="/docs/" aria-current="true">Docs</a><a href="/v1/docs">API</a></nav>
<search class="search"><label><span>Search</span> <input id="search" type="search" autocomplete="off" spellcheck="false" maxlength="100" disabled></label></search>
</header>
<div class="columns">
<nav class="contents" aria-label="Contents"><details open><summary>Contents</summary>
{{range .Nav}}<h2>{{.Title}}</h2><ul>{{range .Links}}<li><a href="{{.URL}}"{{if .Here}} aria-current="page"{{end}}>{{.Title}}</a></li>{{end}}</ul>
{{end}}</details></nav>
<main id="main" tabindex="-1">
<div id="found" role="status" hidden></div>
<article>{{.Body}}</article>
</main>
{{with .Headings}}<nav class="page" aria-label="On this page"><h2>On this page</h2><ul>{{range .}}<li><a href="#{{.ID}}">{{.Text}}</a></li>{{end}}</ul></nav>{{end}}
</div>
</body>
</html>
`))
