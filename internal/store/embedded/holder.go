package embedded

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// holder describes the process that has f locked, such as " (root-orchestrator, process 4711)". It is
// empty if the system does not tell, for example because that process is in another container.
func holder(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	pid := lockedBy(string(locks), stat.Ino)
	if pid == "" {
		return ""
	}
	name, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return fmt.Sprintf(" (process %s)", pid)
	}
	return fmt.Sprintf(" (%s, process %s)", strings.TrimSpace(string(name)), pid)
}

// lockedBy returns the id of the process with an flock on the inode, from lines such as
// "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1835011 0 EOF". It compares no device, because some file
// systems report another one there than to stat; it returns "" if the inode does not name one process.
func lockedBy(locks string, inode uint64) string {
	pid := ""
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], fmt.Sprintf(":%d", inode)) {
			continue
		}
		if pid != "" || strings.HasPrefix(f[4], "-") || f[4] == "0" {
			return ""
		}
		pid = f[4]
	}
	return pid
}
