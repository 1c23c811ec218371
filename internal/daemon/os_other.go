//go:build !unix

package daemon

import (
	"io/fs"
	"os"
)

var toggleSignals []os.Signal // this system has none

// groupOf returns -1, because files have no group on this system.
func groupOf(fs.FileInfo) int { return -1 }
