//go:build !unix

package daemon

import "io/fs"

// groupOf returns the group of a file: none, where files have no such thing.
func groupOf(fs.FileInfo) int { return -1 }
