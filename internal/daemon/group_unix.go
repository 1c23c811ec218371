//go:build unix

package daemon

import (
	"io/fs"
	"syscall"
)

func groupOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Gid)
	}
	return -1
}
