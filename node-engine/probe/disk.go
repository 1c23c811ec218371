package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Disk returns the size in MiB of the file system of path, or of its nearest existing parent.
func Disk(path string) (int64, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	for {
		var s unix.Statfs_t
		err := unix.Statfs(path, &s)
		if errors.Is(err, fs.ErrNotExist) && path != "/" {
			path = filepath.Dir(path)
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("measure the disk of %s: %w", path, err)
		}
		return int64(s.Blocks * uint64(s.Bsize) >> 20), nil
	}
}
