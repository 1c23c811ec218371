package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestManualPagesAreWritten(t *testing.T) {
	r := newTerminal(t)
	dir := filepath.Join(r.dir, "man1")
	r.must("", "man", dir)
	for page, want := range map[string]string{"treeline.1": "SYNOPSIS", "treeline-get-instances.1": "--sort-by", "treeline-logs.1": "--previous"} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), want) {
			t.Errorf("%s: %v, want %q in\n%s", page, err, want, text)
		}
	}
}

// Completion offers the names of what exists, and of commands that take several names those that are not
// given yet.
func TestNamesAreCompleted(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.must("", "apply", "-f", r.file("shop.yaml", shop), "--detach")
	for _, tt := range []struct {
		line []string
		want string
	}{
		{[]string{"get", "services", ""}, "shop.prod.job.v1\nshop.prod.web.v1\n"},
		{[]string{"get", "services", "shop.prod.web.v1", ""}, "shop.prod.job.v1\n"},
		{[]string{"logs", "shop/web#"}, "shop/web#0\trequested\nshop/web#1\trequested\n"},
		{[]string{"scale", "shop.prod.web.v1", ""}, ""},
		{[]string{"user", "set", "adm"}, "admin\tAdmin\n"},
		{[]string{"--tenant", ""}, "acme\n"},
		{[]string{"--context", ""}, "test\n"},
	} {
		out := r.must("", append([]string{"__complete"}, tt.line...)...)
		if names, _, _ := strings.Cut(out, ":"); names != tt.want {
			t.Errorf("%q completes to %q, want %q", tt.line, names, tt.want)
		}
	}
}
