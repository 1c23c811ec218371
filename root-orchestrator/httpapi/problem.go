package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
)

// problem is api.Problem as huma writes it.
type problem struct{ api.Problem }

func (p *problem) GetStatus() int { return p.Status }

func (p *problem) Error() string { return p.Problem.Error() }

func (p *problem) ContentType(ct string) string {
	if ct == "application/json" {
		return "application/problem+json"
	}
	return ct
}

// GetHeaders is for huma.
func (p *problem) GetHeaders() http.Header {
	switch p.Status {
	case http.StatusUnauthorized:
		return http.Header{"Www-Authenticate": {"Bearer"}}
	case http.StatusServiceUnavailable:
		return http.Header{"Retry-After": {"1"}}
	}
	return nil
}

// errPreconditionMissing asks for If-Match.
var errPreconditionMissing = errors.New("If-Match is missing: send the object's ETag, or * for whatever it is now")

// codes are those of statuses that no kind of error stands for.
var codes = map[int]string{
	http.StatusBadRequest:           "malformed",
	http.StatusMethodNotAllowed:     "method_not_allowed",
	http.StatusNotAcceptable:        "not_acceptable",
	http.StatusUnsupportedMediaType: "unsupported_media_type",
	http.StatusPreconditionRequired: "precondition_required",
	http.StatusTooManyRequests:      "too_many_requests",
}

func newProblem(status int, detail string, fields ...api.ProblemField) *problem {
	_, code := api.HTTPStatus(api.KindOf(status))
	if c, ok := codes[status]; ok {
		code = c
	}
	retry := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
	return &problem{api.Problem{
		Type: api.ProblemType(code), Title: http.StatusText(status), Status: status, Code: code,
		Detail: detail, Errors: fields, Retryable: retry,
	}}
}

// faults is implemented by errors that hold all the faults of a document.
type faults interface{ ProblemFields() []api.ProblemField }

// problemOf is the answer to an error. What is of no kind is our fault; its text
// stays in our log.
func problemOf(err error) *problem {
	var p *problem
	var wire *api.Problem
	var f faults
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &wire): // from a cluster, handed on
		return &problem{*wire}
	case errors.Is(err, errPreconditionMissing):
		return newProblem(http.StatusPreconditionRequired, err.Error())
	}
	status, _ := api.HTTPStatus(err)
	if status == http.StatusInternalServerError {
		return newProblem(status, "something went wrong here; the root's log says what")
	}
	p = newProblem(status, err.Error())
	if errors.As(err, &f) {
		p.Errors = f.ProblemFields()
	}
	return p
}

// writeProblem answers outside of huma.
func writeProblem(w http.ResponseWriter, p *problem) {
	for k, v := range p.GetHeaders() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // who asked is gone
}

// humaError is huma's own errors (validation, body too large) in our form.
func humaError(status int, msg string, errs ...error) huma.StatusError {
	var fields []api.ProblemField
	for _, err := range errs {
		var d huma.ErrorDetailer
		switch {
		case err == nil:
		case errors.As(err, &d):
			e := d.ErrorDetail()
			f := api.ProblemField{Detail: e.Message}
			if at, ok := strings.CutPrefix(e.Location, "body"); ok {
				f.Pointer = pointer(at)
			} else {
				f.Where = e.Location
			}
			fields = append(fields, f)
		default:
			fields = append(fields, api.ProblemField{Detail: err.Error()})
		}
	}
	return newProblem(status, msg, fields...)
}

var index = regexp.MustCompile(`\[(\d+)\]`)

// pointer turns huma's ".items[3].name" into a JSON pointer.
func pointer(at string) string {
	return strings.ReplaceAll(index.ReplaceAllString(at, ".$1"), ".", "/")
}
