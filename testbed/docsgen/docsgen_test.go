package docsgen_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/docsgen"
)

var update = flag.Bool("update", false, "write the documents instead of comparing them")

func TestDocsAreFresh(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	architecture := filepath.Join(docs, "architecture.md")
	prose, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	embedded, err := docsgen.Embed(string(prose), "lifecycle", docsgen.LifecycleDiagram())
	if err != nil {
		t.Fatalf("%s: %v", architecture, err)
	}
	commands, err := docsgen.CLI()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		architecture: embedded,
		filepath.Join(docs, "reference", "cli.md"):          commands,
		filepath.Join(docs, "reference", "sla.md"):          docsgen.SLA(),
		filepath.Join(docs, "reference", "sla.schema.json"): string(api.SLASchema()),
		filepath.Join(docs, "reference", "lifecycle.md"):    docsgen.Lifecycle(),
	} {
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is stale (%v): run go generate ./testbed/docsgen", path, err)
		}
	}
}

func TestEveryFieldIsInTheReference(t *testing.T) {
	doc := docsgen.SLA()
	for _, f := range api.Fields {
		if f.Pointer != "" && !strings.Contains(doc, "| `"+f.Pointer+"` |") {
			t.Errorf("%s is not in the reference", f.Pointer)
		}
	}
}

func TestEmbedNeedsItsMarkers(t *testing.T) {
	got, err := docsgen.Embed("a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n", "x", "new\n")
	if err != nil || got != "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := docsgen.Embed("a", "x", "new"); err == nil {
		t.Fatal("a document without markers is to be an error")
	}
}
