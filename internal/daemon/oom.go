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
	// oomScoreAdj is the highest oom_score_adj of a daemon, as in deploy/systemd.
	oomScoreAdj     = -900
	oomScoreAdjFile = "/proc/self/oom_score_adj"
)

// protect lowers the daemon's oom_score_adj to oomScoreAdj, so that the kernel kills workloads
// first when memory is short. It keeps a lower score. Without CAP_SYS_RESOURCE it cannot lower the
// score, but workloads still have a higher one.
func protect(log *slog.Logger, file string) {
	err := lower(file, oomScoreAdj)
	switch {
	case errors.Is(err, fs.ErrPermission):
		log.Debug("oom_score_adj not lowered: CAP_SYS_RESOURCE is missing", "wanted", oomScoreAdj)
	case errors.Is(err, fs.ErrNotExist): // not Linux
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
