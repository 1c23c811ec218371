package rules_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// debian are programs of Debian's essential and required packages, and Go: they are
// on every machine that scripts/test runs on.
var debian = []string{"bash", "cat", "dpkg", "dpkg-deb", "go", "sh", "sleep", "tar", "true"}

// TestProgramsAreListed compares the programs that the sources start by name with
// those whose packages scripts/lib.sh installs.
func TestProgramsAreListed(t *testing.T) {
	text, err := os.ReadFile("../../scripts/lib.sh")
	if err != nil {
		t.Fatal(err)
	}
	listed := slices.Clone(debian)
	for _, m := range regexp.MustCompile(`(?m)[\s(]([\w.+-]+):[\w.+-]+`).FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, m[1])
	}
	if len(listed) < len(debian)+10 {
		t.Fatalf("found %d programs in scripts/lib.sh: the pattern looks for the wrong thing", len(listed)-len(debian))
	}
	found := 0
	var bad []string
	for _, s := range sources(t) {
		for _, p := range started(s) {
			found++
			if !slices.Contains(listed, p.name) {
				bad = append(bad, fmt.Sprintf("%s: %s", s.at(p.at), p.name))
			}
		}
	}
	if found < 30 {
		t.Errorf("found %d programs in the sources: the rule looks in the wrong place", found)
	}
	report(t, "scripts/test gives PATH the programs of the packages in scripts/lib.sh and no others: a program that is not listed there is missing on a fresh machine", bad)
}

type program struct {
	at   ast.Node
	name string
}

// started returns the programs that a file starts or requires by name. It omits paths, and does not find
// programs that are arguments of others.
func started(s source) []program {
	first := map[string]int{"exec.Command": 0, "exec.LookPath": 0, "exec.CommandContext": 1, "programtest.Need": 1}
	var out []program
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := f.X.(*ast.Ident)
		if !ok {
			return true
		}
		from, ok := first[pkg.Name+"."+f.Sel.Name]
		if !ok {
			return true
		}
		args := call.Args[min(from, len(call.Args)):]
		if pkg.Name == "exec" {
			args = args[:min(1, len(args))]
		}
		for _, a := range args {
			if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if name, err := strconv.Unquote(lit.Value); err == nil && !strings.Contains(name, "/") {
					out = append(out, program{a, name})
				}
			}
		}
		return true
	})
	return out
}

func TestStartedProgramsAreFound(t *testing.T) {
	got := started(parse(t, token.NewFileSet(), "p/p.go", `package p
func f(t T) {
	exec.Command("a", "b")
	exec.CommandContext(ctx, "c")
	exec.Command("/bin/d")
	exec.LookPath(name)
	programtest.Need(t, "e", "f")
}
`))
	var names []string
	for _, p := range got {
		names = append(names, p.name)
	}
	if want := []string{"a", "c", "e", "f"}; !slices.Equal(names, want) {
		t.Fatalf("found %q, want %q", names, want)
	}
}
