package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/problem"
)

func etag(r api.Revision) string { return `"` + strconv.FormatUint(uint64(r), 10) + `"` }

// ifMatch returns the revision in an If-Match header, 0 for any. A missing header that is required
// is an error with status 428, an invalid one ErrPrecondition.
func ifMatch(header string, required bool) (api.Revision, error) {
	header = strings.TrimSpace(header)
	switch {
	case header == "" && required:
		return 0, errPreconditionMissing
	case header == "" || header == "*":
		return 0, nil
	}
	digits := strings.TrimSuffix(strings.TrimPrefix(header, `"`), `"`)
	r, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || r == 0 || len(digits) != len(header)-2 {
		return 0, fmt.Errorf("If-Match %q is not an ETag of this API, for example %s: %w", header, etag(17), api.ErrPrecondition)
	}
	return api.Revision(r), nil
}

// notModified reports whether an If-None-Match header contains the revision or *.
func notModified(header string, r api.Revision) bool {
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		if tag == etag(r) || tag == "*" {
			return true
		}
	}
	return false
}

var errPreconditionMissing = errors.New("If-Match is missing: send the object's ETag, or * for any")

func problemOf(err error) *problem.Problem {
	if errors.Is(err, errPreconditionMissing) {
		return problem.New(http.StatusPreconditionRequired, err.Error())
	}
	return problem.Of(err, "the root's log")
}

// mustMatch checks the header If-Match, which is required, against the present revision of an object.
func mustMatch(header, object string, have api.Revision) error {
	want, err := ifMatch(header, true)
	if err == nil && want != 0 && want != have {
		err = fmt.Errorf("%s is at revision %d, not %d; get it again and repeat: %w", object, have, want, api.ErrPrecondition)
	}
	return err
}
