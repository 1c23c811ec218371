//go:build !unix

package daemon

import "io/fs"

// groupOf returns -1, because files have no group on this system.
func groupOf(fs.FileInfo) int { return -1 }
