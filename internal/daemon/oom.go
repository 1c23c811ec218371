package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
)

const (
	// oomScoreAdj is what a daemon's oom_score_adj is at most, as in deploy/systemd.
	oomScoreAdj     = -900
	oomScoreAdjFile = "/proc/self/oom_score_adj"
)

// protect has the kernel kill other processes first when memory is short, however
// the daemon was started. A lower score stays. Lowering it takes CAP_SYS_RESOURCE;
// without it the score stays too, and workloads have a higher one all the same.
func protect(log *slog.Logger, file string) {
	err := lower(file, oomScoreAdj)
	switch {
	case errors.Is(err, fs.ErrPermission):
		log.Debug("oom_score_adj not lowered: it takes CAP_SYS_RESOURCE", "wanted", oomScoreAdj)
	case errors.Is(err, fs.ErrNotExist): // no Linux
	case err != nil:
		log.Warn("oom_score_adj not lowered", "wanted", oomScoreAdj, "err", err)
	}
}

func lower(file string, to int) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read oom_score_adj: %w", err)
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || now <= to {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set oom_score_adj: %w", err)
	}
	_, err = f.WriteString(strconv.Itoa(to))
	return errors.Join(err, f.Close())
}
