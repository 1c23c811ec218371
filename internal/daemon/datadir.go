package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// OpenData opens a daemon's data directory and creates it, with mode 0700, if it does not exist.
func OpenData(path string) (*os.Root, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	return dir, nil
}

// RemoveStale removes a file with which an earlier process announced that it was ready. Call it when
// no other process can be using the directory.
func RemoveStale(dir *os.Root, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the old %s file: %w", name, err)
	}
	return nil
}
