//go:build unix

package daemon

import (
	"io/fs"
	"os"
	"syscall"
)

// toggleSignals switch the level of logs.
var toggleSignals = []os.Signal{syscall.SIGUSR1}

func groupOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Gid)
	}
	return -1
}
