package rules_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/treeline-edge/treeline"

// source is one Go file of the module.
type source struct {
	path string // from the module's root, with slashes
	pkg  string // its folder; "." is the root
	test bool   // a _test.go file, or a package with a test suite
	file *ast.File
	fset *token.FileSet
}

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(n.Pos()).Line)
}

// imports maps the import paths of the file to their local names.
func (s source) imports() map[string]string {
	out := map[string]string{}
	for _, i := range s.file.Imports {
		p := strings.Trim(i.Path.Value, `"`)
		out[p] = path.Base(p)
		if i.Name != nil {
			out[p] = i.Name.Name
		}
	}
	return out
}

// sources parses the module once for all rules.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	fset := token.NewFileSet()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		name := d.Name()
		if d.IsDir() {
			if rel != "." && (name == "testdata" || name == "node_modules" || name[0] == '.' || name[0] == '_') {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		s := parse(t, fset, filepath.ToSlash(rel), string(text))
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("found %d files: the rules look in the wrong place", len(out))
	}
	return out
}

func parse(t *testing.T, fset *token.FileSet, name, text string) source {
	t.Helper()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	pkg := path.Dir(name)
	return source{
		path: name, pkg: pkg, file: file, fset: fset,
		test: strings.HasSuffix(name, "_test.go") || isSuite(pkg),
	}
}

// isSuite reports whether a package has a test suite for other packages, such as storetest.
func isSuite(pkg string) bool {
	base := path.Base(pkg)
	return strings.HasSuffix(base, "test") && base != "test"
}

// in reports whether pkg is the folder or within it; "folder/" is within it only.
func in(pkg, folder string) bool {
	if strings.HasSuffix(folder, "/") {
		return strings.HasPrefix(pkg, folder)
	}
	return pkg == folder || strings.HasPrefix(pkg, folder+"/")
}

func inAny(pkg string, folders []string) bool {
	return slices.ContainsFunc(folders, func(r string) bool { return in(pkg, r) })
}

// inside returns the package of this module with the import path, or "".
func inside(importPath string) string {
	if importPath == module {
		return "."
	}
	p, _ := strings.CutPrefix(importPath, module+"/")
	if p == importPath {
		return ""
	}
	return p
}

// outside reports whether an import path belongs to another module.
func outside(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return strings.Contains(first, ".") && inside(importPath) == ""
}

// report fails the test with all violations of a rule and its reason.
func report(t *testing.T, reason string, breaches []string) {
	t.Helper()
	if len(breaches) > 0 {
		slices.Sort(breaches)
		t.Errorf("%s\n  why: %s", strings.Join(slices.Compact(breaches), "\n"), reason)
	}
}
