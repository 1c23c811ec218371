// Package problem writes the errors of the REST APIs: problem details (RFC 9457) with a stable code
// and the faults of a document with their JSON pointers. Importing the package makes huma's own
// errors use this form.
//
//	return nil, problem.Of(err, "the root's log")
//	problem.Write(w, problem.New(http.StatusNotFound, "no such path"))
package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
)

// Problem is an api.Problem for huma.
type Problem struct {
	api.Problem
	cause error // for Retry-After; may be nil
}

// Huma reads the form of its errors from a package variable, for all APIs of a process.
func init()                       { huma.NewError = fromHuma }
func (p *Problem) GetStatus() int { return p.Status }
func (p *Problem) Error() string  { return p.Problem.Error() }

func (p *Problem) ContentType(ct string) string {
	if ct == "application/json" {
		return "application/problem+json"
	}
	return ct
}

func (p *Problem) GetHeaders() http.Header {
	switch p.Status {
	case http.StatusUnauthorized:
		return http.Header{"Www-Authenticate": {"Bearer"}}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return http.Header{"Retry-After": {call.RetryAfter(p.cause)}}
	}
	return nil
}

// codes are the codes of statuses without an error kind in package api.
var codes = map[int]string{
	http.StatusBadRequest:           "malformed",
	http.StatusMethodNotAllowed:     "method_not_allowed",
	http.StatusNotAcceptable:        "not_acceptable",
	http.StatusUnsupportedMediaType: "unsupported_media_type",
	http.StatusPreconditionRequired: "precondition_required",
}

// New returns a problem with the status and its code.
func New(status int, detail string, fields ...api.ProblemField) *Problem {
	_, code := api.HTTPStatus(api.KindOf(status))
	if c, ok := codes[status]; ok {
		code = c
	}
	retry := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
	return &Problem{Problem: api.Problem{
		Type: api.ProblemType(code), Title: http.StatusText(status), Status: status, Code: code,
		Detail: detail, Errors: fields, Retryable: retry,
	}}
}

// faults is implemented by errors that list all faults of a document.
type faults interface{ ProblemFields() []api.ProblemField }

// Of returns the problem for an error. An error without a kind is internal: the problem does not
// have its text but refers to log, such as "the root's log", to which the caller writes the text.
func Of(err error, log string) *Problem {
	var p *Problem
	var wire *api.Problem
	var f faults
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &wire): // from another tier
		return &Problem{Problem: *wire}
	}
	status, _ := api.HTTPStatus(err)
	if status == http.StatusInternalServerError {
		return New(status, fmt.Sprintf("internal error; see %s", log))
	}
	p = New(status, err.Error())
	if errors.As(err, &f) {
		p.Errors = f.ProblemFields()
	}
	p.cause = err
	return p
}

// Write answers outside of huma.
func Write(w http.ResponseWriter, p *Problem) {
	for k, v := range p.GetHeaders() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // an error means that the client is gone
}

// fromHuma converts huma's own errors (validation, body too large).
func fromHuma(status int, msg string, errs ...error) huma.StatusError {
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
	return New(status, msg, fields...)
}

var index = regexp.MustCompile(`\[(\d+)\]`)

// pointer converts huma's ".items[3].name" to a JSON pointer.
func pointer(at string) string {
	return strings.ReplaceAll(index.ReplaceAllString(at, ".$1"), ".", "/")
}
