package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"

	"github.com/treeline-edge/treeline/api"
)

// Log is the part of a daemon's configuration that says how it logs: a named
// field with the tag yaml:",inline". (Embedded, its Validate would become the
// outer struct's, and be asked twice.)
type Log struct {
	Format string `yaml:"log_format" usage:"auto, text or json; auto is text on a terminal"`
	Level  string `yaml:"log_level" usage:"debug, info, warn or error"`
}

// DefaultLog is auto at info.
func DefaultLog() Log { return Log{Format: "auto", Level: "info"} }

// Validate reports a format or a level that is none (ErrInvalid).
func (l Log) Validate() error {
	_, err := l.handler(io.Discard)
	return err
}

// Logger writes to w.
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
