package httpapi

import (
	"html/template"
	"net/http"
	"sort"

	"github.com/danielgtaylor/huma/v2"
)

// docs serves the OpenAPI document as one page without external resources.
func (a *API) docs(w http.ResponseWriter, _ *http.Request) {
	type operation struct {
		Method, Path, Summary, Description string
		Open                               bool
	}
	groups := map[string][]operation{}
	for path, item := range a.huma.OpenAPI().Paths {
		for method, op := range map[string]*huma.Operation{
			"GET": item.Get, "PUT": item.Put, "POST": item.Post, "DELETE": item.Delete,
		} {
			if op == nil {
				continue
			}
			tag := op.Tags[0]
			groups[tag] = append(groups[tag], operation{method, path, op.Summary, op.Description, len(op.Security) == 0})
		}
	}
	for _, ops := range groups {
		sort.Slice(ops, func(i, j int) bool { return ops[i].Path+ops[i].Method < ops[j].Path+ops[j].Method })
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_ = docsPage.Execute(w, map[string]any{"Groups": groups, "About": description}) // the client is gone
}

var docsPage = template.Must(template.New("docs").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Treeline root API</title>
<style>
:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}body{max-width:60rem;margin:2rem auto;padding:0 1rem}
pre{white-space:pre-wrap;font:inherit}code{font:13px ui-monospace,monospace}li{margin:.4rem 0;list-style:none}ul{padding:0}
b{display:inline-block;width:4.5rem}small{display:block;margin-left:4.5rem;opacity:.75}
</style>
<h1>Treeline root API</h1><pre>{{.About}}</pre><p>The whole of it, with types: <a href="/v1/openapi.json">openapi.json</a></p>
{{range $tag, $ops := .Groups}}<h2>{{$tag}}</h2><ul>{{range $ops}}<li><b>{{.Method}}</b><code>{{.Path}}</code> — {{.Summary}}{{if .Open}} (no token){{end}}
{{with .Description}}<small>{{.}}</small>{{end}}</li>{{end}}</ul>{{end}}
</html>
`))
