package docs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCommandsOfHowToGuidesAreRun fails for commands of treeline in a block that no test runs, and for a block whose
// test does not exist or, with its scripts in testdata, has none of its commands.
func TestCommandsOfHowToGuidesAreRun(t *testing.T) {
	files, err := Documents(top)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string][]Block{} // by the name of the test
	for _, file := range files {
		blocks, err := Blocks(top, file)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			if name, ok := strings.CutPrefix(b.Info, "sh of "); ok {
				of[name] = append(of[name], b)
			} else if strings.HasPrefix(file, "docs/how-to/") && b.Info == "text" && commandLine.MatchString(b.Text) {
				t.Errorf("%s: no test runs %q: mark the block as sh test, or as sh of TestX", b, commandLine.FindString(b.Text))
			}
		}
	}
	err = filepath.WalkDir(filepath.Join(top, "testbed"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "elsewhere_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		scripts, globbed := filepath.Glob(filepath.Join(filepath.Dir(path), "testdata", "*", "*.txtar"))
		err = errors.Join(err, globbed)
		for _, script := range scripts {
			more, wrong := os.ReadFile(script)
			text, err = append(text, more...), errors.Join(err, wrong)
		}
		for name, blocks := range of {
			if !strings.Contains(string(text), "\nfunc "+name+"(") {
				continue
			}
			delete(of, name)
			for _, b := range blocks {
				for _, m := range commandLine.FindAllStringSubmatch(b.Text, -1) {
					m[1] += m[2]
					if !regexp.MustCompile(`\b` + regexp.QuoteMeta(m[1]) + `\b`).Match(text) {
						t.Errorf("%s: the file of %s has no command %q", b, name, m[1])
					}
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, blocks := range of {
		t.Errorf("%s: there is no test %s in testbed", blocks[0], name)
	}
}

// commandLine matches a command line of treeline or of the installation. The group is the command.
var commandLine = regexp.MustCompile(`(?m)^(?:treeline ([a-z-]+)|(?:sh )?\S*/install\.sh ([a-z]+)).*$`)
