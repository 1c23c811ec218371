package daemon

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/term"

	"github.com/treeline-edge/treeline/api"
)

// Log is the part of a daemon's configuration for logs and profiles. Use it as a named field with the tag
// yaml:",inline": the Validate of an embedded Log would be promoted and called twice.
type Log struct {
	Format string `yaml:"log_format" usage:"auto, text or json; auto is text on a terminal"`
	Level  string `yaml:"log_level" usage:"debug, info, warn or error; the signal SIGUSR1 switches to debug and back"`
	Pprof  string `yaml:"pprof_socket" usage:"absolute path of a unix socket at which /debug/pprof/ is served to the daemon's user; profiles contain secrets. Empty: nowhere"`
}

func DefaultLog() Log { return Log{Format: "auto", Level: "info"} }

// Validate fails with ErrInvalid for an unknown format or level, or a path that cannot be that of a socket.
func (l Log) Validate() error {
	if l.Pprof != "" && !filepath.IsAbs(l.Pprof) {
		return Invalid("pprof_socket", "%q is not an absolute path", l.Pprof)
	}
	if err := CheckSocket(l.Pprof); err != nil {
		return err
	}
	_, _, err := l.open(io.Discard)
	return err
}

// Logger returns a logger that writes to w.
func (l Log) Logger(w io.Writer) (*slog.Logger, error) {
	log, _, err := l.open(w)
	return log, err
}

// open returns a logger that writes to w, and its level, which may be changed.
func (l Log) open(w io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	if l.Level != "" {
		if err := level.UnmarshalText([]byte(l.Level)); err != nil {
			return nil, nil, fmt.Errorf("log_level %q, want debug, info, warn or error: %w", l.Level, api.ErrInvalid)
		}
	}
	o := slog.HandlerOptions{Level: level}
	format := cmp.Or(l.Format, "auto")
	if f, ok := w.(*os.File); format == "auto" && ok && term.IsTerminal(int(f.Fd())) {
		format = "text"
	}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, &o)), level, nil
	case "json", "auto":
		return slog.New(slog.NewJSONHandler(w, &o)), level, nil
	}
	return nil, nil, fmt.Errorf("log_format %q, want auto, text or json: %w", l.Format, api.ErrInvalid)
}
