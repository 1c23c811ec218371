// Package docsgen writes the parts of docs that are made from tables in the code. Its test
// fails if a committed file is stale. To update them:
//
//	go generate ./testbed/docsgen
package docsgen

//go:generate go test . -run TestDocsAreFresh -update

import (
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/command"
	"github.com/treeline-edge/treeline/internal/lifecycle"
)

const generated = "<!-- Made by `go generate ./testbed/docsgen`; do not edit. -->\n"

// SLA returns docs/reference/sla.md.
func SLA() string {
	var b strings.Builder
	b.WriteString("# The SLA\n" + generated + `
A developer submits an SLA: the services that should exist, what they require, and where they may run. The
format is Oakestra's SLA v2.0 with a few fields of Treeline's own, as JSON or YAML, at most 1 MiB and nested at most
` + fmt.Sprint(api.MaxSLADepth) + ` deep. A JSON Schema of it is [sla.schema.json](sla.schema.json).

**Honour or refuse.** Each field below is *enforced*, *informational* or *refused*. No field is
accepted and ignored: a refused field with a value other than a neutral one is an error that names it. Neutral values
(` + "`0`, `\"\"`, `[]`, `{}`, `false`, `null`" + `) are accepted, because Oakestra's files contain them. An
unknown key is an error too. All errors of a document are reported together, each with its JSON pointer.

`)
	for _, s := range []struct {
		status api.FieldStatus
		title  string
		intro  string
	}{
		{api.Enforced, "Enforced", "Treeline enforces these fields."},
		{api.Informational, "Informational", "These fields are stored or checked, and have no effect."},
		{api.Refused, "Refused", "These fields are refused, each with the reason or what to write instead."},
	} {
		fmt.Fprintf(&b, "## %s\n%s\n\n", s.title, s.intro)
		if s.status == api.Refused {
			b.WriteString("| Field | Type | Meaning | Refused |\n| --- | --- | --- | --- |\n")
		} else {
			b.WriteString("| Field | Type | Meaning | Default | Bounds |\n| --- | --- | --- | --- | --- |\n")
		}
		for _, f := range api.Fields {
			if f.Status != s.status || f.Pointer == "" {
				continue
			}
			if f.Status == api.Refused {
				row(&b, code(f.Pointer), string(f.Type), f.Doc, f.Until)
				continue
			}
			row(&b, code(f.Pointer), string(f.Type), f.Doc, defaultOf(f), f.Bounds())
		}
		b.WriteString("\n")
	}
	b.WriteString(`## Units
Numbers without a unit have [Oakestra's units](oakestra.md#units). The API returns
stored units: bandwidth in Mbit/s, rigidness in seconds, and locations with the latitude first.

## Defaults that the parser fills in
- ` + "`virtualization: docker`" + ` becomes ` + "`container`" + `.
- Without ` + "`arch`" + `, the processor of ` + "`platform`" + ` is required; without both, any processor suits.
- Every other absent field stays absent and has its default above.
`)
	return b.String()
}

// CLI returns docs/reference/cli.md.
func CLI() (string, error) {
	commands, err := command.Reference()
	return "# The commands\n" + generated + `
All commands of ` + "`treeline`" + `, with their flags; ` + "`treeline COMMAND --help`" + ` prints the same. The flags of the first section
apply to every command. ` + "`treeline man DIR`" + ` writes manual pages, and ` + "`treeline completion SHELL`" + ` a script with which the shell completes
commands, flags and the names of what exists.

` + string(commands), err
}

// Lifecycle returns docs/reference/lifecycle.md.
func Lifecycle() string {
	var b strings.Builder
	b.WriteString("# The lifecycle of an instance\n" + generated + `
Every instance is in one of these states, with a [reason](../how-to/troubleshooting.md#reasons-of-states-and-events) and a detail. Desired state comes only from the tier above,
observed state only from the tier below. Messages with an older epoch are dropped.

` + LifecycleDiagram() + `
| From | Event | To |
| --- | --- | --- |
`)
	for _, e := range lifecycle.Edges() {
		row(&b, code(string(e.From)), code(string(e.Event)), code(string(e.To)))
	}
	b.WriteString("\nA `one_shot` ends for good in `completed`, or in `failed` with the reason `" + string(api.ReasonAttemptsSpent) +
		"` after `max_attempts`\nfailures of its own: then only `withdraw` or a new SLA revision changes its state. " +
		"Restarts and failures are counted per SLA\nrevision, on all nodes and clusters together.\n")
	b.WriteString("\nThe same as text:\n\n```text\n" + lifecycle.Text() + "```\n")
	return b.String()
}

// LifecycleDiagram returns the fenced diagram in docs/architecture.md.
func LifecycleDiagram() string { return "```mermaid\n" + lifecycle.Diagram() + "```\n" }

// Embed replaces the text between the markers of a name in a document, and fails if there are
// none.
func Embed(doc, name, text string) (string, error) {
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
	head, rest, ok := strings.Cut(doc, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the document has no %q … %q", strings.TrimSpace(begin), end)
	}
	return head + begin + text + end + tail, nil
}

func row(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
	}
	b.WriteString("|\n")
}

func code(s string) string { return "`" + s + "`" }

func defaultOf(f api.Field) string {
	if f.Required {
		return "**required**"
	}
	return f.Default
}
