package httpapi

import (
	"errors"
	"net/http"

	"github.com/treeline-edge/treeline/internal/problem"
)

// errPreconditionMissing asks for If-Match.
var errPreconditionMissing = errors.New("If-Match is missing: send the object's ETag, or * for whatever it is now")

// problemOf returns the problem for an error.
func problemOf(err error) *problem.Problem {
	if errors.Is(err, errPreconditionMissing) {
		return problem.New(http.StatusPreconditionRequired, err.Error())
	}
	return problem.Of(err, "the root's log")
}
