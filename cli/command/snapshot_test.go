package command

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestBrokenSnapshotLeavesTheEarlierFile: a file is complete or not there.
func TestBrokenSnapshotLeavesTheEarlierFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db.snapshot")
	for _, c := range []struct {
		text string
		err  error
		want string
	}{{"half", api.ErrUnavailable, ""}, {"whole", nil, "whole"}, {"half", io.ErrUnexpectedEOF, "whole"}, {"newer", nil, "newer"}} {
		err := writeFile(path, func(w io.Writer) error {
			_, err := io.WriteString(w, c.text)
			return errors.Join(err, c.err)
		})
		if !errors.Is(err, c.err) {
			t.Errorf("write %q: got %v, want %v", c.text, err, c.err)
		}
		text, err := os.ReadFile(path)
		if c.want == "" && !errors.Is(err, os.ErrNotExist) || string(text) != c.want {
			t.Errorf("the file after %q: got %q, %v, want %q", c.text, text, err, c.want)
		}
		if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
			t.Errorf("left after %q: %v", c.text, left)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: got %v, %v, want 0600", info.Mode(), err)
	}
}
