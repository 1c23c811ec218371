package rules_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"testing"
)

const purityReason = "a core depends on its inputs only: clocks, randomness, I/O, goroutines and locks would make runs that no seed replays"

// pure are the cores and the packages that they import.
var pure = append([]string{"internal/eventlog", "internal/ipam", "internal/lifecycle", "internal/step", "internal/vivaldi", "scheduler-plugins"}, cores...)

// impure are packages below pure ones that perform I/O.
var impure = []string{"scheduler-plugins/choice", "scheduler-plugins/extsched/client", "scheduler-plugins/extsched/remote", "scheduler-plugins/extsched/wasm"}

var (
	impureImports = []string{
		"os", "net", "sync", "math/rand", "crypto/rand", "io", "context", "log", "runtime", "unsafe", "syscall", "plugin",
	}
	impureTime = []string{
		"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Local",
	}
)

// impurities lists what a pure file must not have.
func impurities(s source) []string {
	var bad []string
	say := func(n ast.Node, format string, args ...any) {
		bad = append(bad, s.at(n)+": "+fmt.Sprintf(format, args...))
	}
	clock := ""
	for p, name := range s.imports() {
		if inAny(p, impureImports) && p != "net/netip" { // plain values
			bad = append(bad, s.path+": imports "+p)
		}
		if p == "time" {
			clock = name
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			say(n, "starts a goroutine")
		case *ast.ChanType:
			say(n, "has a channel")
		case *ast.SelectStmt:
			say(n, "selects")
		case *ast.SendStmt:
			say(n, "sends on a channel")
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				say(n, "receives from a channel")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && clock != "" && x.Name == clock && slices.Contains(impureTime, n.Sel.Name) {
				say(n, "asks time.%s", n.Sel.Name)
			}
		}
		return true
	})
	return bad
}

func TestCoresArePure(t *testing.T) {
	var bad []string
	for _, s := range sources(t) {
		if !s.test && inAny(s.pkg, pure) && !inAny(s.pkg, impure) {
			bad = append(bad, impurities(s)...)
		}
	}
	report(t, purityReason, bad)
}

// TestImpuritiesAreFound tests the rule: what it reports and what it accepts.
func TestImpuritiesAreFound(t *testing.T) {
	clean := "package p\nimport \"time\"\nfunc f(now time.Time) time.Time { return now.Add(time.Second) }\n"
	if bad := impurities(parse(t, token.NewFileSet(), "p/p.go", clean)); len(bad) > 0 {
		t.Errorf("%v", bad)
	}
	for _, body := range []string{
		"import \"os\"\nvar _ = os.Args", "import \"math/rand/v2\"\nvar _ = rand.Int()", "import \"net/http\"\nvar _ http.Header",
		"import t \"time\"\nvar _ = t.Now()", "import \"time\"\nvar _ = time.Since", "func f() { go f() }", "var c chan int",
		"import \"sync/atomic\"\nvar _ atomic.Int64", "func f() { select {} }",
	} {
		if bad := impurities(parse(t, token.NewFileSet(), "p/p.go", "package p\n"+body+"\n")); len(bad) == 0 {
			t.Errorf("passes as pure: %s", body)
		}
	}
}
