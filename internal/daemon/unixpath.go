package daemon

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// maxSocketPath is what an address of a unix socket has room for, less the NUL at its
// end (unix(7)).
const maxSocketPath = 107

// CheckSocket says what is wrong with the path of a unix socket (ErrInvalid). The
// kernel says "invalid argument" to one that is too long, and names neither it nor why.
func CheckSocket(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("the unix socket %s has a path of %d bytes, of which the kernel takes at most %d: choose a directory with a shorter path: %w",
			path, len(path), maxSocketPath, api.ErrInvalid)
	}
	return nil
}
