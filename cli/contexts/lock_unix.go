//go:build unix

package contexts

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/treeline-edge/treeline/api"
)

// lock waits for the exclusive lock of f. Closing f releases it.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }

// checkMode returns ErrForbidden if users other than the owner have access to the file.
func checkMode(path string, info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s contains sessions and has mode %o, want 600; run chmod 600 %s: %w", path, mode, path, api.ErrForbidden)
	}
	return nil
}
