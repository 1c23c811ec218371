package api

import "errors"

// The kinds of errors, for programs. The text around them is for people. HTTPStatus maps kinds to
// status codes.
var (
	ErrInvalid         = errors.New("invalid")
	ErrUnauthenticated = errors.New("not signed in")
	ErrForbidden       = errors.New("not allowed")
	ErrNotFound        = errors.New("not found")
	ErrConflict        = errors.New("conflict")
	ErrPrecondition    = errors.New("changed meanwhile")
	ErrGone            = errors.New("no longer kept")
	ErrTooLarge        = errors.New("too large")
	ErrUnavailable     = errors.New("unavailable")
	ErrTooMany         = errors.New("too many requests") // of this caller; others are served
	ErrTimeout         = errors.New("timed out")
	ErrFull            = errors.New("no space left")
)

var statuses = []struct {
	kind   error
	status int
	code   string
}{
	{ErrInvalid, 422, "invalid"},
	{ErrUnauthenticated, 401, "unauthenticated"},
	{ErrForbidden, 403, "forbidden"},
	{ErrNotFound, 404, "not_found"},
	{ErrConflict, 409, "conflict"},
	{ErrPrecondition, 412, "precondition_failed"},
	{ErrGone, 410, "gone"},
	{ErrTooLarge, 413, "too_large"},
	{ErrFull, 507, "full"},
	{ErrTimeout, 504, "timeout"},
	{ErrTooMany, 429, "too_many_requests"},
	{ErrUnavailable, 503, "unavailable"},
}

// HTTPStatus returns the status and the stable code of an error's kind, or 500 and "internal" if it
// has none.
func HTTPStatus(err error) (status int, code string) {
	for _, s := range statuses {
		if errors.Is(err, s.kind) {
			return s.status, s.code
		}
	}
	return 500, "internal"
}

// KindOf returns the kind of error for a status code, or nil.
func KindOf(status int) error {
	for _, s := range statuses {
		if s.status == status {
			return s.kind
		}
	}
	return nil
}
