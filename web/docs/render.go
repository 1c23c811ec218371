package docs

import (
	"bytes"
	"encoding/json"
	"html/template"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	tables "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	markup "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

type heading struct {
	ID, Text string
	level    int
	node     ast.Node
}

func (s *Site) parse(file string, source []byte) ast.Node {
	ids := anchors{}
	doc := markdown(file, s).Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	return doc
}

func markdown(file string, s *Site) goldmark.Markdown {
	return goldmark.New(
		// The policy forbids style attributes.
		goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(parts{file, s}, 1))),
	)
}

// render returns a page's title, its body, and its headings of the second level. HTML in the text is left out.
func (s *Site) render(file string, source []byte) (title string, body template.HTML, second []heading) {
	doc := s.parse(file, source)
	for _, h := range headings(doc, source) {
		switch {
		case h.level == 1 && title == "":
			title = h.Text
		case h.level == 2:
			second = append(second, h)
		}
	}
	var b bytes.Buffer
	if err := markdown(file, s).Renderer().Render(&b, source, doc); err != nil {
		return title, template.HTML(template.HTMLEscapeString(err.Error())), nil //nolint:gosec // escaped
	}
	return title, template.HTML(b.String()), second //nolint:gosec // goldmark escapes, and leaves out HTML of the source
}

func headings(doc ast.Node, source []byte) (all []heading) {
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		h, ok := n.(*ast.Heading)
		if ok && entering {
			id, _ := h.AttributeString("id")
			name, _ := id.([]byte)
			all = append(all, heading{string(name), textOf(h, source), h.Level, h})
		}
		return ast.WalkContinue, nil
	})
	return all
}

// textOf returns the text of a node without its marks.
func textOf(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Text:
			if entering {
				b.Write(n.Segment.Value(source))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			if entering {
				b.WriteByte(' ')
				b.Write(n.Lines().Value(source))
			}
		case *tables.TableCell, *ast.Paragraph, *ast.ListItem, *ast.TextBlock:
			b.WriteByte(' ')
		case *ast.AutoLink:
			if entering {
				b.Write(n.Label(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// sections returns the headings of the second level with the links below them.
func (s *Site) sections(file string, source []byte) (all []section) {
	doc := s.parse(file, source)
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				all = append(all, section{Title: textOf(n, source)})
			}
		case *ast.Link:
			if to, inside := s.resolve(file, string(n.Destination)); inside && to != "" && len(all) > 0 {
				last := &all[len(all)-1]
				last.Links = append(last.Links, link{Title: textOf(n, source), URL: to})
			}
		}
		return ast.WalkContinue, nil
	})
	return all
}

// resolve returns the URL for a link of a file, and whether it leads to this daemon. The URL is empty if the
// link leads to a file that the site does not have, such as a source of the program.
func (s *Site) resolve(file, to string) (url string, inside bool) {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return to, false
	}
	at, anchor, marked := strings.Cut(to, "#")
	if marked {
		anchor = "#" + anchor
	}
	if at == "" {
		return anchor, true
	}
	target := path.Join(path.Dir(file), at)
	if api, ok := map[string]string{"docs/reference/openapi.json": "root", "docs/reference/cluster-openapi.json": "cluster"}[target]; ok {
		if api == s.tier {
			return "/v1/docs", true
		}
		target = "docs/reference/api.md"
	}
	if p, ok := s.byFile[target]; ok {
		return p.url + anchor, true
	}
	if p, ok := s.byFile[path.Join(target, "README.md")]; ok {
		return p.url + anchor, true
	}
	return "", true
}

// anchors makes the ids of headings as GitHub does, so that links work in both.
type anchors map[string]int

func (a anchors) Generate(value []byte, _ ast.NodeKind) []byte {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(string(value))) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case unicode.IsLetter(r), unicode.IsNumber(r), r == '-', r == '_':
			b.WriteRune(r)
		}
	}
	id := b.String()
	n := a[id]
	if a[id]++; n > 0 {
		id += "-" + strconv.Itoa(n)
	}
	return []byte(id)
}

func (a anchors) Put(value []byte) { a[string(value)]++ }

// parts renders what differs from goldmark's own: links, and what may be wider than a phone.
type parts struct {
	file string
	site *Site
}

func (p parts) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindLink, p.link)
	r.Register(ast.KindHeading, p.heading)
	r.Register(ast.KindFencedCodeBlock, p.code)
	r.Register(tables.KindTable, p.table)
	r.Register(ast.KindHTMLBlock, func(util.BufWriter, []byte, ast.Node, bool) (ast.WalkStatus, error) { return ast.WalkSkipChildren, nil })
	r.Register(ast.KindRawHTML, func(util.BufWriter, []byte, ast.Node, bool) (ast.WalkStatus, error) { return ast.WalkSkipChildren, nil })
}

func (p parts) link(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	to := string(n.(*ast.Link).Destination)
	url, inside := p.site.resolve(p.file, to)
	if url == "" || markup.IsDangerousURL([]byte(url)) {
		return ast.WalkContinue, nil // its text only
	}
	if !entering {
		_, err := w.WriteString("</a>")
		return ast.WalkContinue, err
	}
	_, _ = w.WriteString(`<a href="`)
	_, _ = w.Write(util.EscapeHTML(util.URLEscape([]byte(url), true)))
	if !inside {
		_, _ = w.WriteString(`" rel="noreferrer`)
	}
	_, err := w.WriteString(`">`)
	return ast.WalkContinue, err
}

func (p parts) heading(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	h := n.(*ast.Heading)
	level := strconv.Itoa(h.Level)
	value, _ := h.AttributeString("id")
	id, _ := value.([]byte)
	id = util.EscapeHTML(id)
	if entering {
		_, err := w.WriteString("<h" + level + ` id="` + string(id) + `">`)
		return ast.WalkContinue, err
	}
	if h.Level > 1 {
		_, _ = w.WriteString(` <a class="anchor" href="#` + string(id) + `" aria-label="Link to ` + template.HTMLEscapeString(textOf(h, source)) + `">#</a>`)
	}
	_, err := w.WriteString("</h" + level + ">\n")
	return ast.WalkContinue, err
}

func (p parts) code(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	kind, _, _ := strings.Cut(string(n.(*ast.FencedCodeBlock).Language(source)), " ")
	code := template.HTMLEscapeString(strings.TrimRight(string(n.Lines().Value(source)), "\n"))
	block := `<pre tabindex="0"`
	if kind == "sh" {
		block += ` class="commands"`
	}
	block += "><code>" + code + "</code></pre>\n"
	if kind == "mermaid" { // drawn by other viewers of Markdown only
		block = "<details><summary>The diagram as Mermaid</summary>" + block + "</details>\n"
	}
	_, err := w.WriteString(block)
	return ast.WalkContinue, err
}

func (p parts) table(w util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
	mark := `<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>` + "\n"
	if !entering {
		mark = "</table></div>\n"
	}
	_, err := w.WriteString(mark)
	return ast.WalkContinue, err
}

// found is a part of a page as the search has it: the page's title and the part's, its URL and text.
type found [4]string

// makeIndex returns the text of all pages by heading. Decisions have their titles only.
func (s *Site) makeIndex() []byte {
	all := []found{}
	urls, _ := s.URLs()
	for _, url := range urls {
		p := s.pages[url]
		if path.Ext(p.file) != ".md" || p.file == contents {
			continue
		}
		if text, err := fs.ReadFile(s.source, p.file); err == nil {
			all = append(all, s.split(p, text)...)
		}
	}
	text, _ := json.Marshal(all)
	return text
}

func (s *Site) split(p *page, source []byte) (all []found) {
	doc := s.parse(p.file, source)
	title := ""
	decision := strings.HasPrefix(p.file, "docs/adr/") && p.url != Path+"adr/"
	var body strings.Builder
	flush := func() {
		if len(all) > 0 {
			all[len(all)-1][3] = strings.TrimSpace(body.String())
		}
		body.Reset()
	}
	levels := headings(doc, source)
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		i := slices.IndexFunc(levels, func(h heading) bool { return h.node == n })
		if i < 0 {
			if !decision {
				body.WriteString(textOf(n, source) + " ")
			}
			continue
		}
		h := levels[i]
		switch flush(); {
		case h.level == 1 && title == "":
			title = h.Text
			all = append(all, found{title, "", p.url, ""})
		case !decision:
			all = append(all, found{title, h.Text, p.url + "#" + h.ID, ""})
		}
	}
	flush()
	return all
}
