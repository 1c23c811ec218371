package daemon

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// maxSocketPath is the longest path of a unix socket, in bytes without the final NUL (unix(7)).
const maxSocketPath = 107

// CheckSocket returns an error (ErrInvalid) if the path of a unix socket is too long. The
// kernel's own error, "invalid argument", names neither the path nor the limit.
func CheckSocket(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("the path of the unix socket %s has %d bytes, at most %d: choose a directory with a shorter path: %w",
			path, len(path), maxSocketPath, api.ErrInvalid)
	}
	return nil
}
