package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"

	"github.com/treeline-edge/treeline/api"
)

// Log is the logging part of a daemon's configuration. Use it as a named field with the tag
// yaml:",inline": the Validate of an embedded Log would be promoted and called twice.
type Log struct {
	Format string `yaml:"log_format" usage:"auto, text or json; auto is text on a terminal"`
	Level  string `yaml:"log_level" usage:"debug, info, warn or error"`
}

func DefaultLog() Log { return Log{Format: "auto", Level: "info"} }

// Validate fails with ErrInvalid for an unknown format or level.
func (l Log) Validate() error {
	_, err := l.handler(io.Discard)
	return err
}

// Logger returns a logger that writes to w.
func (l Log) Logger(w io.Writer) (*slog.Logger, error) {
	h, err := l.handler(w)
	if err != nil {
		return nil, err
	}
	return slog.New(h), nil
}

func (l Log) handler(w io.Writer) (slog.Handler, error) {
	var o slog.HandlerOptions
	var level slog.Level
	if l.Level != "" {
		if err := level.UnmarshalText([]byte(l.Level)); err != nil {
			return nil, fmt.Errorf("log_level %q, want debug, info, warn or error: %w", l.Level, api.ErrInvalid)
		}
	}
	o.Level = level
	switch l.Format {
	case "text":
		return slog.NewTextHandler(w, &o), nil
	case "json":
		return slog.NewJSONHandler(w, &o), nil
	case "auto", "":
		if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return slog.NewTextHandler(w, &o), nil
		}
		return slog.NewJSONHandler(w, &o), nil
	}
	return nil, fmt.Errorf("log_format %q, want auto, text or json: %w", l.Format, api.ErrInvalid)
}
