package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// Exit codes of the daemons and of the command line.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2 // invalid arguments or configuration; nothing was changed
	ExitTimeout     = 4
	ExitAuth        = 5
	ExitNotFound    = 6
	ExitConflict    = 7 // another process holds the role or the store
	ExitUnavailable = 8 // a dependency cannot be reached
)

// ExitCode returns the exit code for the kind of an error.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	for _, e := range []struct {
		kind error
		code int
	}{
		{api.ErrUnauthenticated, ExitAuth},
		{api.ErrForbidden, ExitAuth},
		{api.ErrNotFound, ExitNotFound},
		{api.ErrConflict, ExitConflict},
		{store.ErrConflict, ExitConflict},
		{api.ErrTimeout, ExitTimeout},
		{api.ErrUnavailable, ExitUnavailable},
	} {
		if errors.Is(err, e.kind) {
			return e.code
		}
	}
	return ExitFailure
}

// Main is a daemon's main function: it loads the configuration, calls run, whose context ends with
// SIGTERM or SIGINT, and exits. run calls NotifyReady. SIGUSR1 switches the log's level to debug, and back.
func Main[C any](name string, defaults C, run func(ctx context.Context, cfg C, log *slog.Logger) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	// A second signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	toggle := make(chan os.Signal, 1)
	if len(toggleSignals) > 0 {
		signal.Notify(toggle, toggleSignals...)
	}
	os.Exit(start(ctx, name, defaults, Source{Args: os.Args[1:], Env: os.Getenv, Stdout: os.Stdout}, os.Stderr, toggle, run))
}

// Run is Main without signals and exit: it returns the exit code. The Log in cfg, if there is one,
// configures the logger, which becomes slog's default. Run prints errors to stderr, one line per
// fault.
func Run[C any](ctx context.Context, name string, defaults C, src Source, stderr io.Writer, run func(ctx context.Context, cfg C, log *slog.Logger) error) int {
	return start(ctx, name, defaults, src, stderr, nil, run)
}

func start[C any](ctx context.Context, name string, defaults C, src Source, stderr io.Writer, toggle <-chan os.Signal, run func(ctx context.Context, cfg C, log *slog.Logger) error) int {
	var warnings []string
	src.Warn = func(text string) { warnings = append(warnings, text) }
	cfg, err := Load(name, defaults, src)
	if errors.Is(err, ErrDone) {
		return ExitOK
	}
	if err != nil {
		report(stderr, name, err)
		return ExitUsage
	}
	options := logOf(cfg)
	log, level, err := options.open(stderr)
	if err != nil {
		report(stderr, name, err)
		return ExitUsage
	}
	slog.SetDefault(log)
	for _, text := range warnings {
		log.Warn(text)
	}
	protect(log, oomScoreAdjFile)
	stopProfiles, err := serveProfiles(options.Pprof, log)
	if err != nil {
		report(stderr, name, err)
		return ExitCode(err)
	}
	defer stopProfiles()
	running, ended := context.WithCancel(ctx)
	defer ended()
	go toggleLevel(running, level, log, toggle)
	stopNotice := context.AfterFunc(ctx, func() { _ = Notify(Stopping) })
	defer stopNotice()
	err = run(ctx, cfg, log)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	if err != nil {
		report(stderr, name, err)
	}
	return ExitCode(err)
}

func report(w io.Writer, name string, err error) {
	for line := range strings.Lines(err.Error()) {
		_, _ = fmt.Fprintf(w, "%s: %s\n", name, strings.TrimSpace(line))
	}
}

func logOf(cfg any) Log {
	v := reflect.ValueOf(cfg)
	for i := range v.NumField() {
		if v.Type().Field(i).IsExported() {
			if l, ok := v.Field(i).Interface().(Log); ok {
				return l
			}
		}
	}
	return DefaultLog()
}
