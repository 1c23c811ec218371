package httpapi

import (
	"errors"
	"net/http"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
)

// problem is api.Problem as huma writes it.
type problem struct{ api.Problem }

// GetStatus is huma's.
func (p *problem) GetStatus() int { return p.Status }

func (p *problem) Error() string { return p.Problem.Error() }

// ContentType is huma's.
func (p *problem) ContentType(ct string) string {
	if ct == "application/json" {
		return "application/problem+json"
	}
	return ct
}

// problemOf is the answer to an error. What is of no kind is our fault; its text
// stays in our log.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	wire := *call.Problem(err)
	if wire.Status == http.StatusInternalServerError {
		wire.Detail = "something went wrong here; the cluster's log says what"
	}
	return &problem{wire}
}

// codes are those of statuses that no kind of error stands for.
var codes = map[int]string{
	http.StatusBadRequest:           "malformed",
	http.StatusMethodNotAllowed:     "method_not_allowed",
	http.StatusUnsupportedMediaType: "unsupported_media_type",
}

func newProblem(status int, detail string, fields ...api.ProblemField) *problem {
	_, code := api.HTTPStatus(api.KindOf(status))
	if c, ok := codes[status]; ok {
		code = c
	}
	return &problem{api.Problem{
		Type: api.ProblemType(code), Title: http.StatusText(status), Status: status, Code: code, Detail: detail, Errors: fields,
	}}
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
				f.Pointer = strings.ReplaceAll(index.ReplaceAllString(at, ".$1"), ".", "/")
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
