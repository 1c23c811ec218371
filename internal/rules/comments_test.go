package rules_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	code, said := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		code[s.pkg] = true
		doc := s.file.Doc.Text()
		if strings.HasPrefix(doc, "Package "+s.file.Name.Name+" ") || s.file.Name.Name == "main" && doc != "" {
			said[s.pkg] = true
		}
	}
	var bad []string
	for pkg := range code {
		if !said[pkg] {
			bad = append(bad, pkg+` has no comment that begins "Package …" (of a main: any)`)
		}
	}
	report(t, "a package comment says what the package is for; readers start there", bad)
}

func TestExportedNamesAreDocumented(t *testing.T) {
	var bad []string
	for _, s := range sources(t) {
		if s.file.Name.Name == "main" || strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		bad = append(bad, undocumented(s)...)
	}
	report(t, "the comment of an exported name gives its meaning, units and errors, so that users need not read the code", bad)
}

// plain are methods that need no comment because they implement a well-known interface.
var plain = []string{"Error", "Unwrap", "Is", "String", "Len", "Less", "Swap", "Close", "Name", "ServeHTTP"}

// undocumented lists the exported names of a file without a doc comment. The comment of a group counts
// for all its names, and a comment at the end of a line for those of the line.
func undocumented(s source) []string {
	var bad []string
	miss := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		said := slices.ContainsFunc(docs, func(d *ast.CommentGroup) bool { return strings.TrimSpace(d.Text()) != "" })
		if name.IsExported() && !said {
			bad = append(bad, fmt.Sprintf("%s: %s", s.at(name), name.Name))
		}
	}
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil && (!receiver(d).IsExported() || slices.Contains(plain, d.Name.Name)) {
				continue
			}
			miss(d.Name, d.Doc)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					miss(spec.Name, d.Doc, spec.Doc, spec.Comment)
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						miss(n, d.Doc, spec.Doc, spec.Comment)
					}
				}
			}
		}
	}
	return bad
}

// receiver returns the type name of a method's receiver.
func receiver(d *ast.FuncDecl) *ast.Ident {
	x := d.Recv.List[0].Type
	for {
		switch t := x.(type) {
		case *ast.StarExpr:
			x = t.X
		case *ast.IndexExpr:
			x = t.X
		case *ast.IndexListExpr:
			x = t.X
		case *ast.Ident:
			return t
		default:
			return ast.NewIdent("_")
		}
	}
}

func TestUndocumentedNamesAreFound(t *testing.T) {
	text := `package p
func A() {}
// B is said.
func B() {}
type c struct{}
func (c) D() {}
type E[T any] struct{}
func (*E[T]) F() {}
const (
	G = 1
	H = 2 // said
)
`
	got := undocumented(parse(t, token.NewFileSet(), "p/p.go", text))
	want := []string{"p/p.go:2: A", "p/p.go:7: E", "p/p.go:8: F", "p/p.go:10: G"}
	if !slices.Equal(got, want) {
		t.Fatalf("got %v", got)
	}
}
