package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// TestProgramsTypeCheckOnOtherSystems type-checks all programs for the other architecture of the daemons, and the
// CLI for the other systems that it runs on. It takes a fraction of the time of a build, which scripts/release does.
func TestProgramsTypeCheckOnOtherSystems(t *testing.T) {
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		goos, arch string
		programs   []string
	}{
		{"linux", "arm64", []string{"./cli", "./root-orchestrator", "./cluster-orchestrator", "./node-engine", "./netmanager"}},
		{"darwin", "arm64", []string{"./cli"}},
		{"windows", "amd64", []string{"./cli"}},
	} {
		t.Run(c.goos+"-"+c.arch, func(t *testing.T) {
			found, err := packages.Load(&packages.Config{
				Context: t.Context(), Dir: top,
				Env:  append(os.Environ(), "GOOS="+c.goos, "GOARCH="+c.arch, "CGO_ENABLED=0"),
				Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedTypesSizes | packages.NeedModule,
				ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
					f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
					if err == nil && !strings.HasPrefix(name, top+string(filepath.Separator)) {
						for _, d := range f.Decls { // only what Treeline's packages refer to
							if fn, ok := d.(*ast.FuncDecl); ok {
								fn.Body = nil
							}
						}
					}
					return f, err
				},
			}, c.programs...)
			if err != nil {
				t.Fatal(err)
			}
			ours := 0
			packages.Visit(found, nil, func(p *packages.Package) {
				if p.Module == nil || !p.Module.Main {
					return
				}
				ours++
				for _, err := range p.Errors {
					t.Errorf("%s for %s/%s: %s: give the file a build tag, or use what both systems have", p.PkgPath, c.goos, c.arch, err)
				}
			})
			if len(found) != len(c.programs) || ours < 20 {
				t.Errorf("%d programs with %d packages of Treeline were found, want %d and more than 20", len(found), ours, len(c.programs))
			}
		})
	}
}
