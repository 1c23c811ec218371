package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// OpenData opens a daemon's data directory and creates it, with mode 0700, if it does not exist. It
// removes the stale files, with which an earlier process announced that it was ready.
func OpenData(path string, stale ...string) (*os.Root, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	for _, name := range stale {
		if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("remove the old %s file: %w", name, err), dir.Close())
		}
	}
	return dir, nil
}
