package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/internal/durable"
)

func TestAFailedWriteKeepsTheOldContent(t *testing.T) {
	dir := t.TempDir()
	if err := durable.WriteJSON(dir, "state", 1); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteJSON(dir, "state", func() {}); err == nil {
		t.Error("a function was written as JSON")
	}
	if err := os.Mkdir(filepath.Join(dir, "state.new"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteJSON(dir, "state", 2); err == nil {
		t.Error("written over a directory")
	}
	if text, err := os.ReadFile(filepath.Join(dir, "state")); err != nil || string(text) != "1" {
		t.Errorf("the file has %q (%v), want the first content", text, err)
	}
	if err := durable.WriteJSON(filepath.Join(dir, "none"), "state", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("write into a directory that does not exist: %v, want ErrNotExist", err)
	}
}
