package rules_test

import (
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
