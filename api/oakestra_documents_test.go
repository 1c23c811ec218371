package api_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

var update = flag.Bool("update", false, "write the expected outcomes of testdata/oakestra anew")

// TestDocumentsOfOakestra parses documents with the structure of Oakestra's own. For each of them,
// testdata/oakestra/outcomes.txt says that it is accepted, or lists all reasons why not.
func TestDocumentsOfOakestra(t *testing.T) {
	const dir = "testdata/oakestra/"
	files, err := filepath.Glob(dir + "[0-9]*")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	var got bytes.Buffer
	accepted := 0
	for _, path := range files {
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s: ", filepath.Base(path))
		if filepath.Ext(path) == ".yaml" {
			doc, err = yaml.ToJSON(doc)
		}
		if err == nil {
			_, err = api.ParseSLA(doc)
		}
		var faults *api.Faults
		switch {
		case err == nil:
			accepted++
			got.WriteString("accepted\n")
		case errors.As(err, &faults):
			got.WriteString("refused\n")
			for _, f := range faults.Faults {
				fmt.Fprintf(&got, "  %s\n", strings.TrimSuffix(f.Pointer+": "+f.Message+"; "+f.Fix, "; "))
			}
		default:
			fmt.Fprintf(&got, "refused\n  %v\n", err)
		}
	}
	fmt.Fprintf(&got, "%d of %d accepted as they are\n", accepted, len(files))
	t.Logf("%d of %d documents are accepted as they are", accepted, len(files))
	if *update {
		if err := os.WriteFile(dir+"outcomes.txt", got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(dir + "outcomes.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		w, g := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
		for i := range min(len(w), len(g)) {
			if w[i] != g[i] {
				t.Fatalf("outcomes.txt:%d\nwant %s\ngot  %s", i+1, w[i], g[i])
			}
		}
		t.Fatalf("want %d lines of outcomes, got %d", len(w), len(g))
	}
}
