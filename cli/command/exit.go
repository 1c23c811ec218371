package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/ref"
)

const (
	exitOK           = 0
	exitFailed       = 1
	exitUsage        = 2
	exitNotPlaceable = 3
	exitTimeout      = 4
	exitAuth         = 5
	exitNotFound     = 6
	exitConflict     = 7
	exitUnreachable  = 8
)

var (
	errUsage        = errors.New("usage")
	errNotPlaceable = errors.New("not placeable")
	// errReported is the error of a command that has already printed its error.
	errReported = errors.New("reported")
)

func usage(format string, args ...any) error {
	return fmt.Errorf("%w%s", hidden{errUsage}, fmt.Sprintf(format, args...))
}

// hidden adds a kind to an error without adding text.
type hidden struct{ kind error }

func (hidden) Error() string   { return "" }
func (h hidden) Unwrap() error { return h.kind }

func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[exited](err); ok {
		return e.code & 0xff
	}
	var several *ref.Ambiguous
	if errors.As(err, &several) {
		return exitUsage
	}
	for _, e := range []struct {
		kind error
		code int
	}{
		{errUsage, exitUsage},
		{errNotPlaceable, exitNotPlaceable},
		{api.ErrUnauthenticated, exitAuth},
		{api.ErrForbidden, exitAuth},
		{api.ErrNotFound, exitNotFound},
		{api.ErrConflict, exitConflict},
		{api.ErrPrecondition, exitConflict},
		{api.ErrTimeout, exitTimeout},
		{context.DeadlineExceeded, exitTimeout},
		{api.ErrUnavailable, exitUnreachable},
	} {
		if errors.Is(err, e.kind) {
			return e.code
		}
	}
	if errors.Is(err, errPlan) {
		return exitUsage // 1 would mean that the plan has changes
	}
	return exitFailed
}

// fixes are hints for errors whose message does not contain one.
var fixes = []struct {
	kind error
	fix  string
}{
	{api.ErrUnauthenticated, "sign in: treeline login"},
	{api.ErrForbidden, "show your roles with treeline whoami; an Organization_Admin can assign others"},
	{api.ErrPrecondition, "the object changed meanwhile; read it again and repeat"},
	{errFetch, "check the address and whether its server runs"},
	{api.ErrUnavailable, "check the address with treeline ctx show, and whether the root runs"},
}

// hasHint reports whether a message already contains a hint.
func hasHint(message string) bool {
	return strings.Contains(message, "treeline ") || strings.Contains(message, "try again")
}

// report prints an error and a hint, and returns the exit code.
func (c *cli) report(ctx context.Context, err error) int {
	code := exitCode(err)
	if _, ran := errors.AsType[exited](err); err == nil || ran || errors.Is(err, errReported) {
		return code
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return code // interrupted by the user
	}
	p := c.progress()
	lines := strings.Split(strings.TrimRight(err.Error(), "\n"), "\n")
	for i, l := range lines {
		if i == 0 {
			l = "treeline: " + l
			fmt.Fprintln(c.Err, p.Paint(output.Bad, output.Clean(l)))
			continue
		}
		fmt.Fprintln(c.Err, output.Clean(l))
	}
	if code == exitUsage {
		return code
	}
	for _, f := range fixes {
		if !errors.Is(err, f.kind) || hasHint(err.Error()) {
			continue
		}
		fix := f.fix
		if _, answered := errors.AsType[*api.Problem](err); answered && f.kind == api.ErrUnavailable {
			fix = "see what is away with treeline doctor" // the server itself was reached
			if c.own() != "" {
				break
			}
		}
		fmt.Fprintln(c.Err, fix)
		break
	}
	return code
}
